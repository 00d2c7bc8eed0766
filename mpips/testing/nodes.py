"""A cluster imitated on this machine, to measure and to test what only happens between nodes.

A node is a set of Linux namespaces: a network of its own, with one interface, a host name, processes
(so pids of different nodes collide), mounts with a /dev/shm and an /etc/hosts of its own. All of it
hangs on one process, the node's init: killing that is the node's power loss. A head, as the node
on which a batch script runs, has the bridge that connects all; mpirun starts there and reaches the
nodes by `node_agent.sh`, where a cluster has ssh. The head itself takes no ranks.

Nothing of this machine is changed and nothing has a name that could be left behind or taken: when
this process goes, for whatever reason, the kernel takes every init with it, and with the inits all
the rest. It needs root and a kernel that allows namespaces; `why_not` says what is in the way.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

AGENT = Path(__file__).with_name("node_agent.sh")
SUBNET = "10.77.0"
HEAD_ADDRESS = f"{SUBNET}.254"
_TOOLS = ("ip", "nsenter", "unshare", "setpriv", "mount", "hostname")

# Where Open MPI (5 and 4) puts the shared memory that it loses when mpirun is killed.
BACKING_DIRECTORIES = (
    "OMPI_MCA_btl_sm_backing_directory",
    "OMPI_MCA_btl_vader_backing_directory",
    "OMPI_MCA_osc_sm_backing_directory",
    "OMPI_MCA_osc_rdma_backing_directory",
)

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

# A node has a /dev/shm of its own for what MPI keeps there.
_NODE_SESSION = [f"--unset={name}" for name in BACKING_DIRECTORIES]
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
        inits: Pids of the nodes' inits, as this process sees them.
    """

    def __init__(self, n: int, prefix: str = "mpips-") -> None:
        """Start the nodes. `prefix` begins the name of their temporary folder.

        Raises:
            OSError: The kernel or a missing tool forbids it.
        """
        tag = f"{os.getpid()}-{uuid.uuid4().hex[:4]}"
        self.hosts = [f"node{i}-{tag}" for i in range(n)]
        self.addresses = [f"{SUBNET}.{i + 1}" for i in range(n)]
        self.inits: list[int] = []
        self._outer: list[subprocess.Popen[str]] = []
        # The agent looks up the init of a host here.
        self._folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-nodes-"))
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self.hosts)

    def __enter__(self) -> Nodes:
        """A block in which the nodes are there."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close them."""
        self.close()

    def _start(self) -> None:
        head = f"head-{self.hosts[0].partition('-')[2]}"
        lines = zip([HEAD_ADDRESS, *self.addresses], [head, *self.hosts], strict=True)
        hosts_file = self._folder / "etc-hosts"
        hosts_file.write_text(
            "127.0.0.1\tlocalhost\n" + "".join(f"{address}\t{host}\n" for address, host in lines)
        )
        # An installed file may not be executable, and its path may hold spaces.
        self._agent = Path(shutil.copy(AGENT, self._folder / "agent"))
        self._agent.chmod(0o700)
        init = ["sh", "-c", _INIT, "init"]
        self._head = self._spawn([*_HEAD, *init, head, str(hosts_file), f"{HEAD_ADDRESS}/24"])
        for index, host in enumerate(self.hosts):
            pid = self._spawn([*_NODE, *init, host, str(hosts_file), ""])
            self.inits.append(pid)
            (self._folder / host).write_text(str(pid))
            self._connect(index, pid)

    def _connect(self, index: int, pid: int) -> None:
        """Give a node its interface, the other end of a port of the bridge."""
        port = f"port{index}"
        on_head = ["nsenter", f"--target={self._head}", "--net", "ip", "link"]
        checked(*on_head, "add", port, "type", "veth", "peer", "eth0", "netns", str(pid))
        checked(*on_head, "set", port, "master", "eth0", "up")
        on_node = ["nsenter", f"--target={pid}", "--net", "ip"]
        checked(*on_node, "addr", "add", f"{self.addresses[index]}/24", "dev", "eth0")
        checked(*on_node, "link", "set", "eth0", "up")

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

    @property
    def environment(self) -> dict[str, str]:
        """What makes an mpirun on the head know the nodes. Open MPI 5 only."""
        return {
            "MPIPS_NODES": str(self._folder),
            "PRTE_MCA_plm_ssh_agent": str(self._agent),
            "PRTE_MCA_prte_if_include": "eth0",
            "PRTE_MCA_hwloc_default_binding_policy": "none",
            "OMPI_MCA_btl": "tcp,self,sm",
            "OMPI_MCA_btl_tcp_if_include": "eth0",
        }

    def on_head(self, argv: Sequence[str], cwd: Path | None = None) -> list[str]:
        """The command that runs `argv` on the head, as a batch script does; wants `environment`."""
        enter = ["nsenter", f"--target={self._head}", "--net", "--uts", "--ipc", "--mount"]
        return [*enter, f"--wd={cwd or Path.cwd()}", "env", *_NODE_SESSION, *argv]

    def mpirun_flags(self, ranks_per_node: Sequence[int], env: Sequence[str] = ()) -> list[str]:
        """What mpirun on the head needs for so many ranks on each node; 0 leaves a node out.

        Args:
            ranks_per_node: One number per node.
            env: Names of environment variables that the ranks shall have.
        """
        flags = ["--hostfile", str(self._hostfile(ranks_per_node)), "-n", str(sum(ranks_per_node))]
        flags += ["--map-by", "slot", "--bind-to", "none"]
        for name in env:
            flags += ["-x", name]
        return flags

    def _hostfile(self, ranks_per_node: Sequence[int]) -> Path:
        slots = zip(self.hosts, ranks_per_node, strict=True)
        path = self._folder / f"hostfile-{uuid.uuid4().hex[:8]}"
        path.write_text("".join(f"{host} slots={n}\n" for host, n in slots if n))
        return path

    def wait_killed(self, node: int) -> None:
        """Wait until a node whose init was killed is gone."""
        self._outer[node + 1].wait(10)

    def close(self) -> None:
        """End all nodes and all that runs on them. May be repeated."""
        for process in self._outer:
            process.kill()
        for process in self._outer:
            process.wait(10)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        # An init ends only when everything on its node has.
        deadline = time.monotonic() + 10.0
        while any(is_alive(init) for init in self.inits) and time.monotonic() < deadline:
            time.sleep(0.01)
        shutil.rmtree(self._folder, ignore_errors=True)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def checked(*args: str, timeout_s: float = 10.0) -> str:
    """Run a command and return its stdout.

    Raises:
        OSError: It failed; the message is what it wrote to stderr.
    """
    done = subprocess.run(args, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(args)}: {done.stderr.strip()}")
    return done.stdout
