"""The processes of the programs of [producers]: which there are, and their end.

A member's command leads a session of its own. Processes that it starts have this session, or a mark in their
environment, or come from a process that has one of them. Orphans become children of the process that runs
the programs, which is a subreaper (prctl(2)), so none leaves its tree.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from mpips.rundir.producers import MEMBER, MEMBER_OF
from mpips.supervisor.reap import dying, is_dead, started_at

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILLED_S = 10.0  # seconds in which killed processes must end
_libc = ctypes.CDLL(None, use_errno=True)


class ProcessRow(NamedTuple):
    """A running process."""

    pid: int
    parent: int
    session: int


def become_subreaper() -> None:
    """Let this process have the orphans of its tree as children."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(parent: int) -> None:
    """Let this process, a child of `parent`, receive SIGTERM when that ends. Called between fork and exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def processes() -> list[ProcessRow]:
    """Return all running processes of this machine; zombies are left out."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX" or int(fields[17]) > 1:
                found.append(ProcessRow(int(folder.name), int(fields[1]), int(fields[3])))
    return found


def below(roots: Collection[int], rows: Iterable[ProcessRow]) -> set[int]:
    """Return the pids of `roots` that run and of all processes that descend from them."""
    rows = list(rows)
    found = {row.pid for row in rows if row.pid in roots}
    while more := {row.pid for row in rows if row.parent in found} - found:
        found |= more
    return found


def of_member(member: int, sessions: Collection[int], rows: Iterable[ProcessRow]) -> set[int]:
    """Return the pids of the processes of a member, which are in the tree of this process.

    Args:
        member: Its number.
        sessions: The sessions of its starts.
        rows: All processes.
    """
    rows = list(rows)
    mark = f"{MEMBER}={member}".encode()
    tops = [row for row in rows if row.parent == os.getpid()]
    own = {row.pid for row in tops if row.session in sessions or mark in _environment(row.pid)}
    return below(own, rows)


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to processes; those that have ended are left out."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def marked_with(mark: str) -> Iterator[int]:
    """Yield the pids of this user's processes whose environment contains `mark`, NAME=value."""
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if mark.encode() in _environment(pid) and pid != os.getpid() and not is_dead(pid):
            yield pid


def kill_marked(run: Path) -> int:
    """Kill all processes that programs of a run have left here, and wait for their end; return their number.

    Blocks up to 10 s.

    Raises:
        TimeoutError: Some do not end, because they hang in the kernel.
    """
    return kill_with(f"{MEMBER_OF}={run}")


def kill_with(mark: str) -> int:
    """Kill all processes whose environment contains `mark`, as `kill_marked` does."""
    return kill_found(lambda: {*marked_with(mark)})


def kill_found(find: Callable[[], set[int]]) -> int:
    """Kill all processes that a function finds, until it finds none, as `kill_marked` does."""
    killed: set[tuple[int, str]] = set()  # pids with their start times
    until = time.monotonic() + _KILLED_S
    # A killed process loses its environment some time before it is dead.
    while pids := {*find(), *dying(killed)}:
        killed |= {(pid, started_at(pid)) for pid in pids}
        send(pids, signal.SIGKILL)
        if time.monotonic() > until:
            raise TimeoutError(
                f"processes {sorted(pids)} of the producers did not end within {_KILLED_S:g} s of SIGKILL: "
                "they hang in the kernel; check its file systems, or restart the host"
            )
        time.sleep(0.005)
    return len(killed)
