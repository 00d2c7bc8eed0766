"""A cluster imitated on this machine, for tests of what only happens between nodes.

A node is a set of Linux namespaces: a network of its own, with one interface, a host name, processes
(so pids of different nodes collide), mounts with a /dev/shm and an /etc/hosts of its own. All of it
hangs on one process, the node's init: killing that is the node's power loss. A head, as the node
on which a batch script runs, has the bridge that connects all; mpirun starts there and reaches the
nodes by `multinode_agent.sh`, where a cluster has ssh. The head itself takes no ranks.

Nothing of this machine is changed and nothing has a name that could be left behind or taken: when
this process goes, for whatever reason, the kernel takes every init with it, and with the inits all
the rest. It needs root and a kernel that allows namespaces; `why_not` says what is in the way.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import launcher
import processes

AGENT = Path(__file__).with_name("multinode_agent.sh")
SUBNET = "10.77.0"
HEAD_ADDRESS = f"{SUBNET}.254"
_TOOLS = ("ip", "nsenter", "unshare", "setpriv", "mount", "hostname")

# `unshare` forks the init into the new namespaces; whoever dies takes the next one along.
_UNSHARE = ["setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child"]
_HEAD = [*_UNSHARE, "--net", "--uts", "--ipc", "--mount"]
_NODE = [*_HEAD, "--pid", "--mount-proc"]

# A bridge without an address of its own takes that of a port: the head's would change when a node
# dies, and the others would talk to the old one until it is forgotten. An init that ignores SIGCHLD
# leaves no zombies of the orphans it inherits.
_INIT = """
set -e
hostname "$1"
mount -t tmpfs -o mode=1777 shm /dev/shm
mkdir /dev/shm/session
mount --bind "$2" /etc/hosts
ip link set lo up
if [ "$3" ]; then
  ip link add eth0 address 02:00:0a:4d:00:fe type bridge
  ip addr add "$3" dev eth0
  ip link set eth0 up
fi
echo up
exec env --ignore-signal=CHLD sleep infinity
"""


# A node has a /dev/shm of its own for what MPI keeps there, so `Launch` need not move that.
_NODE_SESSION = [f"--unset={name}" for name in launcher.BACKING_DIRECTORIES]
_NODE_SESSION += ["TMPDIR=/dev/shm/session"]


@functools.cache
def why_not() -> str:
    """What keeps this machine from imitating nodes; empty if nothing does."""
    if os.geteuid() != 0:
        return "imitated nodes need root"
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if lacking:
        return f"imitated nodes need {', '.join(lacking)} (packages iproute2, util-linux, hostname)"
    try:
        with Nodes(2):
            return ""
    except OSError as error:
        return f"the kernel does not let this process make nodes: {error}"


class Nodes:
    """A head and `n` nodes. Use it in a `with` block.

    Attributes:
        hosts: Host names, of the form node0-<pid>-<number>.
        addresses: IPv4 addresses, in the order of `hosts`.
    """

    def __init__(self, n: int) -> None:
        """Start the nodes.

        Raises:
            OSError: The kernel or a missing tool forbids it.
        """
        tag = f"{os.getpid()}-{uuid.uuid4().hex[:4]}"
        self.hosts = [f"node{i}-{tag}" for i in range(n)]
        self.addresses = [f"{SUBNET}.{i + 1}" for i in range(n)]
        self._inits: list[int] = []
        self._pid_namespaces: list[int] = []
        self._outer: list[subprocess.Popen[str]] = []
        self._launches: list[launcher.Launch] = []
        # The agent looks up the init of a host here.
        self._folder = Path(tempfile.mkdtemp(prefix=f"{launcher.PREFIX}{os.getpid()}-nodes-"))
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self.hosts)

    def __enter__(self) -> Nodes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> None:
        head = f"head-{self.hosts[0].partition('-')[2]}"
        lines = zip([HEAD_ADDRESS, *self.addresses], [head, *self.hosts], strict=True)
        hosts_file = self._folder / "etc-hosts"
        hosts_file.write_text(
            "127.0.0.1\tlocalhost\n" + "".join(f"{address}\t{host}\n" for address, host in lines)
        )
        init = ["sh", "-c", _INIT, "init"]
        self._head = self._spawn([*_HEAD, *init, head, str(hosts_file), f"{HEAD_ADDRESS}/24"])
        for index, host in enumerate(self.hosts):
            pid = self._spawn([*_NODE, *init, host, str(hosts_file), ""])
            self._inits.append(pid)
            self._pid_namespaces.append(os.stat(f"/proc/{pid}/ns/pid").st_ino)
            (self._folder / host).write_text(str(pid))
            port = f"port{index}"
            on_head = ["nsenter", f"--target={self._head}", "--net", "ip", "link"]
            _run(*on_head, "add", port, "type", "veth", "peer", "eth0", "netns", str(pid))
            _run(*on_head, "set", port, "master", "eth0", "up")
            on_node = ["nsenter", f"--target={pid}", "--net", "ip"]
            _run(*on_node, "addr", "add", f"{self.addresses[index]}/24", "dev", "eth0")
            _run(*on_node, "link", "set", "eth0", "up")

    def _spawn(self, args: list[str]) -> int:
        """Start an init, wait until it has set itself up, and return its pid."""
        process = subprocess.Popen(
            args,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._outer.append(process)
        assert process.stdout is not None
        assert process.stderr is not None
        if process.stdout.readline() != "up\n":
            process.kill()
            raise OSError(process.stderr.read().strip() or f"{args[0]} failed")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        return int(children.split()[0])

    def hostfile(self, ranks_per_node: Sequence[int]) -> Path:
        """Write a hostfile with so many slots per node; 0 leaves a node out."""
        slots = zip(self.hosts, ranks_per_node, strict=True)
        path = self._folder / f"hostfile-{uuid.uuid4().hex[:8]}"
        path.write_text("".join(f"{host} slots={n}\n" for host, n in slots if n))
        return path

    def on_head(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        cwd: Path | None = None,
    ) -> launcher.Launch:
        """Start a command on the head, as a batch script does; any mpirun in it knows the nodes.

        Args:
            argv: Program and arguments. Files are shared, like on a cluster.
            env: Added to its environment; ranks on the nodes see of it what mpirun carries there.
            timeout: Seconds it may take until `wait` calls it hung.
            cwd: Folder to run in.
        """
        cluster = {
            "MPIPS_TEST_NODES": str(self._folder),
            "PRTE_MCA_plm_ssh_agent": str(AGENT),
            "PRTE_MCA_prte_if_include": "eth0",
            "PRTE_MCA_hwloc_default_binding_policy": "none",
            "OMPI_MCA_btl": "tcp,self,sm",
            "OMPI_MCA_btl_tcp_if_include": "eth0",
        }
        enter = ["nsenter", f"--target={self._head}", "--net", "--uts", "--ipc", "--mount"]
        command = [*enter, f"--wd={cwd or Path.cwd()}", "env", *_NODE_SESSION, *argv]
        environment = {**launcher.site_environment(), **cluster, **(env or {})}
        launched = launcher.Launch(command, environment, timeout)
        self._launches.append(launched)
        return launched

    def start(
        self,
        ranks_per_node: Sequence[int],
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        extra_mpirun: Sequence[str] = (),
        cwd: Path | None = None,
    ) -> launcher.Launch:
        """Start `argv` by mpirun, with so many ranks on each node.

        Args:
            ranks_per_node: Number of ranks per node; 0 leaves a node out.
            argv: Program and arguments.
            env: For the ranks of all nodes (`mpirun -x`).
            timeout: Seconds the launch may take until `wait` calls it hung.
            extra_mpirun: More arguments of mpirun.
            cwd: Folder of the ranks.
        """
        mpirun = shutil.which("mpirun", path=launcher.site_environment()["PATH"]) or "mpirun"
        command = [mpirun, "--hostfile", str(self.hostfile(ranks_per_node))]
        command += ["-n", str(sum(ranks_per_node)), "--map-by", "slot", "--bind-to", "none"]
        for name in env or {}:
            command += ["-x", name]
        return self.on_head([*command, *extra_mpirun, *argv], env, timeout, cwd)

    def mpirun(
        self,
        ranks_per_node: Sequence[int],
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        extra_mpirun: Sequence[str] = (),
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Do as `start` does, wait for the end and return exit code and output.

        Raises:
            AssertionError: It took longer than `timeout` seconds.
        """
        with self.start(ranks_per_node, argv, env, timeout, extra_mpirun, cwd) as launched:
            code = launched.wait()
        return subprocess.CompletedProcess(
            launched.args, code, launched.stdout(), launched.stderr()
        )

    def run(self, node: int, argv: Sequence[str], timeout: float = 10.0) -> str:
        """Run a command on a node, without MPI, and return its stdout."""
        command = ["nsenter", f"--target={self._inits[node]}", "--all", *argv]
        return _run(*command, timeout=timeout)

    def pids(self, node: int) -> list[int]:
        """Pids, as this process sees them, of everything on a node but its init."""
        own = self._pid_namespaces[node]
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                inside = os.stat(folder / "ns/pid").st_ino == own
                if inside and launcher.is_alive(int(folder.name)):
                    found.append(int(folder.name))
        return [pid for pid in found if pid != self._inits[node]]

    def outer_pid(self, node: int, pid: int) -> int:
        """Translate a pid that a process on `node` calls its own into the one to kill it by.

        Raises:
            ProcessLookupError: There is none.
        """
        for outer in self.pids(node):
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{outer}/status").read_text()
                line = next(x for x in status.splitlines() if x.startswith("NSpid:"))
                if int(line.split()[-1]) == pid:
                    return outer
        raise ProcessLookupError(f"no process {pid} on {self.hosts[node]}")

    def segments(self, node: int) -> set[str]:
        """Names of the shared-memory segments of mpips on a node."""
        return {
            path.name for path in Path(f"/proc/{self._inits[node]}/root/dev/shm").glob("mpips*")
        }

    def kill(self, node: int) -> None:
        """End a node at once: all its processes and its shared memory are gone, its link is dead."""
        os.kill(self._inits[node], signal.SIGKILL)
        self._outer[node + 1].wait(10)

    def cut(self, node: int) -> None:
        """Take a node's link down: everything on it lives, and nothing reaches it."""
        _run(
            "nsenter", f"--target={self._inits[node]}", "--net", "ip", "link", "set", "eth0", "down"
        )

    def close(self) -> None:
        """End all nodes and all that runs on them. May be repeated."""
        for process in self._outer:
            process.kill()
        for process in self._outer:
            process.wait(10)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        for launched in self._launches:
            launched.kill()
        # An init ends only when everything on its node has.
        processes.until(lambda: not any(launcher.is_alive(init) for init in self._inits))
        shutil.rmtree(self._folder, ignore_errors=True)


def _run(*args: str, timeout: float = 10.0) -> str:
    """Run a command and return its stdout.

    Raises:
        OSError: It failed; the message is what it wrote to stderr.
    """
    done = subprocess.run(args, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise OSError(f"{' '.join(args)}: {done.stderr.strip()}")
    return done.stdout
