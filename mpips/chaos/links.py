"""Slow and cut links: the interfaces of a network namespace in which only processes of the run are.

No link of a machine is changed. A node of the run qualifies if its ranks are in another network namespace
than this process and than the first process of the machine, and if every process in that namespace is a
process of the run, the init of their namespace of processes, or an ancestor of these: a node that is imitated
(mpips.testing.nodes), or a container of the run's own. The namespace is entered by its descriptor.

Both faults are queues that every kernel has: a token bucket, and a queue without room, which drops what the
node sends, acknowledgements included. An interface that has a queue of its own already is left alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from mpips.chaos.errors import NotNowError
from mpips.chaos.faults import Injected
from mpips.chaos.observing import Observation
from mpips.chaos.processes import inner_pid, pids_of_ranks
from mpips.chaos.schedule import PlannedFault, between, chosen
from mpips.chaos.undo import FaultGuard, Undo, in_namespace
from mpips.supervisor.reap import processes_of

_SHORTEST_S = 1.0  # seconds
_SLOW_MBIT = 8.0  # Mbit/s of a slow link
_QUEUES = {
    "slow-link": ["tbf", "rate", f"{_SLOW_MBIT:g}mbit", "burst", "32kb", "latency", "400ms"],
    "partition": ["pfifo", "limit", "0"],
}
_ANY_GENERATION = 1 << 60
_TOOLS = ("nsenter", "ip", "tc")


class NodeLinks(NamedTuple):
    """A network namespace of a run.

    Attributes:
        inode: Identifies it.
        pid: A rank in it.
        host: Name of the host of its ranks.
    """

    inode: int
    pid: int
    host: str


class LinkFault:
    """A link of a node of the run that is slow, or that loses all packets, for some time."""

    hits_process = False

    def __init__(self, name: str, run_dir: Path, guard: FaultGuard, longest_s: float) -> None:
        """Take the run.

        Args:
            name: "slow-link" or "partition".
            run_dir: The run directory.
            guard: Takes the fault back if this process is killed.
            longest_s: Seconds of the longest fault.
        """
        self.name = name
        self._run_dir, self._guard, self._longest_s = run_dir, guard, longest_s

    def why_not(self, seen: Observation) -> str:
        """Return why no link of the run can be changed; "" if one can be."""
        if os.geteuid() != 0:
            return f"--{self.name} needs root, to enter network namespaces of the run"
        if lacking := [tool for tool in _TOOLS if shutil.which(tool) is None]:
            return f"--{self.name} needs {', '.join(lacking)}: install iproute2 and util-linux"
        if own_namespaces(self._run_dir, seen):
            return ""
        return (
            f"--{self.name}: the run has no network namespace of its own; links of machines are not changed, "
            "only those of containers or imitated nodes in which nothing else runs"
        )

    def inject(self, fault: PlannedFault, seen: Observation) -> Injected:
        """Change the links of the node that the fault chooses.

        Raises:
            NotNowError: There is no such node, or its interfaces have queues of their own.
        """
        nodes = own_namespaces(self._run_dir, seen)
        if not nodes:
            raise NotNowError("no node of the run has a network namespace of its own now")
        node = chosen(nodes, fault.which)
        length_s = between(min(_SHORTEST_S, self._longest_s), self._longest_s, fault.how_long)
        what = "cut" if self.name == "partition" else f"limit to {_SLOW_MBIT:g} Mbit/s"
        try:
            with _entered(node) as fd:
                self._change(fd)
        except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
            self.end()
            raise NotNowError(f"the link of {node.host} cannot be changed: {error}") from None
        return Injected(
            what=f"{what} the link of {node.host} for {length_s:.1f} s", length_s=length_s
        )

    def _change(self, fd: int) -> None:
        """Give every interface of a namespace the queue of this fault.

        Raises:
            OSError: A tool failed, or an interface has a queue of its own.
        """
        devices = _plain_devices(fd)
        for device in devices:
            self._guard.add(Undo(kind="link", device=device), fd)
            in_namespace(fd, ["tc", "qdisc", "add", "dev", device, "root", *_QUEUES[self.name]])

    def hold(self) -> None:
        """Do nothing: the queue stays."""

    def end(self) -> None:
        """Remove the queues."""
        self._guard.undo_faults()


def own_namespaces(run_dir: Path, seen: Observation) -> list[NodeLinks]:
    """Return the network namespaces in which only processes of a run are, in the order of their hosts."""
    machine = {_namespace(os.getpid()), _namespace(1)}
    # A standby launch has a later generation number.
    of_run = set(processes_of(run_dir, _ANY_GENERATION))
    hosts = {place.rank: place.host for place in seen.places}
    found: dict[int, NodeLinks] = {}
    for rank, pid in pids_of_ranks(seen.places, run_dir, seen.generation).items():
        inode = _namespace(pid)
        if inode and inode not in machine and inode not in found:
            found[inode] = NodeLinks(inode, pid, hosts[rank])
    foreign = _foreign(set(found), of_run)
    return sorted((n for n in found.values() if n.inode not in foreign), key=lambda n: n.host)


def _foreign(inodes: set[int], of_run: set[int]) -> set[int]:
    """Return those of the namespaces in which there are other processes than those of the run."""
    spaces = {_namespace(pid, "pid") for pid in of_run} - {_namespace(os.getpid(), "pid"), 0}
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    inside = [pid for pid in pids if _namespace(pid) in inodes]
    inits = {pid for pid in inside if inner_pid(pid) == 1 and _namespace(pid, "pid") in spaces}
    known = of_run | inits
    known |= {above for pid in known for above in _ancestors(pid)}
    return {_namespace(pid) for pid in inside if pid not in known}


def _ancestors(pid: int) -> Iterator[int]:
    """Yield the parents of a process, up to the first process."""
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return
        yield pid


def _namespace(pid: int, kind: str = "net") -> int:
    """Return the inode of a namespace of a process; 0 if it has ended or belongs to another user."""
    try:
        return os.stat(f"/proc/{pid}/ns/{kind}").st_ino
    except OSError:
        return 0


@contextlib.contextmanager
def _entered(node: NodeLinks) -> Iterator[int]:
    """Open the descriptor of a namespace for the block.

    Raises:
        OSError: The rank has ended, or its pid belongs to another process now.
    """
    fd = os.open(f"/proc/{node.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_ino != node.inode:
            raise OSError("its rank has ended")
        yield fd
    finally:
        os.close(fd)


def _plain_devices(fd: int) -> list[str]:
    """Return the interfaces of a namespace that are up, besides the loopback.

    Raises:
        OSError: No interface is up, or one has a queue that is not the kernel's default.
    """
    links = msgspec.json.decode(in_namespace(fd, ["ip", "-json", "link", "show", "up"]))
    names = [link["ifname"] for link in links if "LOOPBACK" not in link["flags"]]
    if not names:
        raise OSError("it has no interface that is up")
    for name in names:
        queues = msgspec.json.decode(
            in_namespace(fd, ["tc", "-json", "qdisc", "show", "dev", name])
        )
        for queue in queues:
            if queue.get("root") and queue["handle"] != "0:":
                raise OSError(f"interface {name} has a queue of its own ({queue['kind']})")
    return names
