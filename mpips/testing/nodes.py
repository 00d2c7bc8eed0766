"""A cluster imitated on this machine, to measure and to test what happens only between nodes.

A node is a set of Linux namespaces: its own network with one interface, host name, processes (so pids of
different nodes collide), and mounts with its own /dev/shm and /etc/hosts. All namespaces of a node depend on
one process, the node's init. To kill the init is to cut the node's power. The head imitates the node on which
a batch script runs: it has the bridge that connects all nodes. mpirun starts there and reaches the nodes by
`node_agent.sh`, where a cluster uses ssh. The head has no ranks.

Nothing outside the namespaces changes, and no object has a global name that could stay behind or be in use.
When this process ends, for any reason, the kernel kills every init, and with an init everything in its
namespaces. All this needs root and a kernel that allows namespaces; `why_not` returns what is missing.
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

# Variables for the folder of Open MPI's (5 and 4) shared memory, which stays there when mpirun is killed.
BACKING_DIRECTORIES = (
    "OMPI_MCA_btl_sm_backing_directory",
    "OMPI_MCA_btl_vader_backing_directory",
    "OMPI_MCA_osc_sm_backing_directory",
    "OMPI_MCA_osc_rdma_backing_directory",
)

# `unshare` forks the init into the new namespaces. The end of this process kills `unshare` (--pdeathsig),
# and its end kills the init (--kill-child).
_UNSHARE = ["setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child"]
_HEAD = [*_UNSHARE, "--net", "--uts", "--ipc", "--mount"]
_NODE = [*_HEAD, "--pid", "--mount-proc"]

# Give the bridge a fixed MAC address. Otherwise it uses that of a port: the head's address would change when
# a node is killed, and the other nodes would send to the old one until their entry expires. The init ignores
# SIGCHLD, so that the orphans that it inherits leave no zombies.
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

# Each node has its own /dev/shm for the session files of MPI.
_NODE_SESSION = [f"--unset={name}" for name in BACKING_DIRECTORIES]
_NODE_SESSION += ["TMPDIR=/dev/shm/session"]


@functools.cache
def why_not() -> str:
    """Return why this machine cannot imitate nodes, or "" if it can."""
    if os.geteuid() != 0:
        return "imitated nodes need root"
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if lacking:
        return f"imitated nodes need {', '.join(lacking)} (packages iproute2, util-linux, hostname)"
    try:
        with Nodes(2):
            return ""
    except OSError as error:
        return f"the kernel refuses imitated nodes: {error}"


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
            OSError: The kernel refuses a namespace, or a tool failed.
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
        """Return this object; the nodes exist until the end of the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the nodes."""
        self.close()

    def _start(self) -> None:
        head = f"head-{self.hosts[0].partition('-')[2]}"
        lines = zip([HEAD_ADDRESS, *self.addresses], [head, *self.hosts], strict=True)
        hosts_file = self._folder / "etc-hosts"
        hosts_file.write_text(
            "127.0.0.1\tlocalhost\n" + "".join(f"{address}\t{host}\n" for address, host in lines)
        )
        # Copy the agent: an installed file may not be executable, and its path may contain spaces.
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
        """Give a node its interface, connected to a new port of the bridge."""
        port = f"port{index}"
        on_head = ["nsenter", f"--target={self._head}", "--net", "ip", "link"]
        checked(*on_head, "add", port, "type", "veth", "peer", "eth0", "netns", str(pid))
        checked(*on_head, "set", port, "master", "eth0", "up")
        on_node = ["nsenter", f"--target={pid}", "--net", "ip"]
        checked(*on_node, "addr", "add", f"{self.addresses[index]}/24", "dev", "eth0")
        checked(*on_node, "link", "set", "eth0", "up")

    def limit(self, bits_per_s: float) -> None:
        """Limit what each node sends to a rate, by a token bucket of the kernel. A later limit replaces it.

        Raises:
            OSError: The kernel has no such queue, or `tc` is missing.
        """
        rate = f"{bits_per_s:.0f}bit"
        bucket = ["tbf", "rate", rate, "burst", "256kb", "latency", "100ms"]
        for pid in self.inits:
            on_node = ["nsenter", f"--target={pid}", "--net", "tc", "qdisc"]
            checked(*on_node, "replace", "dev", "eth0", "root", *bucket)

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
        """Return the environment with which an mpirun on the head reaches the nodes. Open MPI 5 only."""
        return {
            "MPIPS_NODES": str(self._folder),
            "PRTE_MCA_plm_ssh_agent": str(self._agent),
            "PRTE_MCA_prte_if_include": "eth0",
            "PRTE_MCA_hwloc_default_binding_policy": "none",
            "OMPI_MCA_btl": "tcp,self,sm",
            "OMPI_MCA_btl_tcp_if_include": "eth0",
        }

    def on_head(self, argv: Sequence[str], cwd: Path | None = None) -> list[str]:
        """Return the command that runs `argv` on the head, as a batch script does; it needs `environment`."""
        enter = ["nsenter", f"--target={self._head}", "--net", "--uts", "--ipc", "--mount"]
        return [*enter, f"--wd={cwd or Path.cwd()}", "env", *_NODE_SESSION, *argv]

    def mpirun_flags(self, ranks_per_node: Sequence[int], env: Sequence[str] = ()) -> list[str]:
        """Return the options of mpirun on the head.

        Args:
            ranks_per_node: Number of ranks of each node; 0 leaves a node out.
            env: Names of environment variables that mpirun passes to the ranks.
        """
        flags = ["--hostfile", str(self._hostfile(ranks_per_node)), "-n", str(sum(ranks_per_node))]
        flags += ["--map-by", "slot", "--bind-to", "none"]
        # A rank counts the cores of its node, but all nodes have the same.
        if sum(ranks_per_node) > (os.cpu_count() or 1):
            flags += ["-x", "OMPI_MCA_mpi_yield_when_idle=1"]
        for name in env:
            flags += ["-x", name]
        return flags

    def _hostfile(self, ranks_per_node: Sequence[int]) -> Path:
        slots = zip(self.hosts, ranks_per_node, strict=True)
        path = self._folder / f"hostfile-{uuid.uuid4().hex[:8]}"
        path.write_text("".join(f"{host} slots={n}\n" for host, n in slots if n))
        return path

    def wait_killed(self, node: int) -> None:
        """Wait until the processes of a node whose init was killed have ended."""
        self._outer[node + 1].wait(10)

    def close(self) -> None:
        """Kill all nodes and every process on them. Further calls have no effect."""
        for process in self._outer:
            process.kill()
        for process in self._outer:
            process.wait(10)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        # Wait for the inits: an init ends only when all processes of its node have ended.
        deadline = time.monotonic() + 10.0
        while any(is_alive(init) for init in self.inits) and time.monotonic() < deadline:
            time.sleep(0.01)
        shutil.rmtree(self._folder, ignore_errors=True)


def is_alive(pid: int) -> bool:
    """Return True if a process runs, False if it has ended or is a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def checked(*args: str, timeout_s: float = 10.0) -> str:
    """Run a command and return its stdout.

    Raises:
        OSError: The command failed; the message contains its stderr.
    """
    done = subprocess.run(args, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(args)}: {done.stderr.strip()}")
    return done.stdout
