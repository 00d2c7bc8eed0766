"""The ranks of this launch on this node, as /proc shows them. No MPI, no communication.

Before MPI is up nobody can be asked, and the start of MPI holds the interpreter's lock. So the wait for it
is bounded by a thread without an interpreter (native/src/process/deadline.hpp), which in the end executes
this module in place of the process. The name of that thread is what tells a rank that waits in the start
of MPI from one that has not come: each rank writes it before it enters MPI, and everybody reads it.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from mpips import _native
from mpips.errors import StallError
from mpips.mpi import failure_report, launch

PROC = Path("/proc")
_THREAD = "mpips-mpi-start"  # 15 bytes at most
_LOOKS_S = 2.0  # between the first rank that leaves and the others of its node
# What the ranks of a launch have in common in their environments.
_LAUNCH = ("PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMI_SIZE")
_STATES = {
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "dead",
    "D": "waiting for a disk or device",
}


def process_state(pid: int) -> str:
    """What the kernel says of a process on this node, or "" if nothing worth telling."""
    try:
        stat = (PROC / f"{pid}/stat").read_text()
    except OSError:
        return "dead"
    return _STATES.get(stat.rpartition(")")[2].split()[0], "")


@contextmanager
def bounded_start(limit_s: float) -> Iterator[None]:
    """Bound the start of MPI, which waits for all ranks: in the end this process says who is late, exit 124.

    Args:
        limit_s: Seconds; infinite: not bounded.
    """
    if limit_s == float("inf"):
        yield
        return
    command = [sys.executable, "-m", "mpips.mpi.siblings", f"{limit_s:g}"]
    deadline = _native.Deadline(limit_s, _THREAD, command)
    try:
        yield
    finally:
        deadline.cancel()


def late_here() -> tuple[list[int], list[str]]:
    """The ranks of this node: those that wait in the start of MPI, and a text for each that does not."""
    mine = _launch_of(os.environ)
    pids: dict[int, list[int]] = {}
    for folder in PROC.iterdir():
        env = _environment(folder) if folder.name.isdigit() else {}
        if env and _launch_of(env) == mine and launch.launched_size(env) > 1:
            pids.setdefault(launch.launched_rank(env), []).append(int(folder.name))
    here = [r for r, own in pids.items() if any(p == os.getpid() or _waits(p) for p in own)]
    late = []
    for rank in sorted(pids.keys() - set(here)):
        # A rank's own process is the last of a chain of shells.
        pid = max(pids[rank])
        state = process_state(pid)
        late.append(f"rank {rank} (pid {pid} on {socket.gethostname()}{state and ', ' + state})")
    return sorted(here), late


def _launch_of(env: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(env.get(name, "") for name in _LAUNCH)


def _environment(folder: Path) -> dict[str, str]:
    """Of a process of this user; {} of another's."""
    with suppress(OSError):
        text = (folder / "environ").read_bytes().decode(errors="replace")
        return dict(pair.partition("=")[::2] for pair in text.split("\0") if "=" in pair)
    return {}


def _waits(pid: int) -> bool:
    with suppress(OSError):
        # A rank whose time is up executes this module.
        if __spec__.name.encode() in (PROC / f"{pid}/cmdline").read_bytes().split(b"\0"):
            return True
        for thread in (PROC / f"{pid}/task").iterdir():
            with suppress(OSError):
                if (thread / "comm").read_text().strip() == _THREAD:
                    return True
    return False


def main(limit: str) -> int:
    """Say which ranks have not come to the start of MPI; the exit code."""
    rank = launch.launched_rank()
    here, late = late_here()
    if here and rank != min(here):
        time.sleep(_LOOKS_S)  # one voice a node; the launcher ends the others meanwhile
    if not late:
        # Where a late rank is on another node, one there says so at the same time.
        time.sleep(_LOOKS_S)
        ranks = ", ".join(map(str, here))
        late = [f"a rank on another node (all of {socket.gethostname()} have: {ranks})"]
    message = (
        f"rank {rank}: the start of MPI, where all ranks meet, has not returned for {limit} s; "
        f"{', '.join(late)} {'has' if len(late) == 1 else 'have'} not come to it"
    )
    code = StallError.exit_code
    failure_report.write(kind="StallError", message=message, exit_code=code)
    launch.print_error(message)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
