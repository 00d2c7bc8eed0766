"""The ranks of this launch on this node, found in /proc without MPI and without messages.

Before MPI is up, ranks cannot send messages, and the start of MPI holds the interpreter's lock. So a native
thread without an interpreter bounds the start of MPI (native/src/process/deadline.hpp). When the time is
over, it replaces the process by this module, by exec. The name of that thread in /proc distinguishes a rank
that waits in the start of MPI from a rank that has not come to it: each rank sets the name before it enters
MPI, and all ranks of the node read it.
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
from mpips.process import rank_mark

PROC = Path("/proc")
_THREAD = "mpips-mpi-start"  # at most 15 bytes, the kernel's limit for names of threads
_LOOKS_S = 2.0  # s that the lowest waiting rank of a node has to report before the others do
# Environment variables that are equal for all ranks of a launch. Hydra (MPICH, Intel MPI) names no launch:
# its ranks of one node have the same proxy as their ancestor.
_LAUNCH = ("PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMI_SIZE")
_HYDRA_LOCAL_SIZE = "MPI_LOCALNRANKS"
_PROXY = "hydra_pmi_proxy"
_MOST_ANCESTORS = 6  # ancestors of a rank that are examined
_STATES = {
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "dead",
    "D": "waiting for a disk or device",
}


def process_state(pid: int) -> str:
    """Return the state of a process on this node if it explains a delay, such as "dead"; else ""."""
    try:
        stat = (PROC / f"{pid}/stat").read_text()
    except OSError:
        return "dead"
    return _STATES.get(stat.rpartition(")")[2].split()[0], "")


@contextmanager
def bounded_start(limit_s: float) -> Iterator[None]:
    """Bound the time of the block, in which MPI starts and waits for all ranks.

    If the block does not end in time, this process prints the late ranks and exits with code 124.

    Args:
        limit_s: Seconds; infinite: no limit.
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
    """Return the ranks of this node that wait in the start of MPI, and a text for each rank that does not."""
    mine = _launch_of(os.environ, os.getpid())
    pids: dict[int, list[int]] = {}
    for folder in PROC.iterdir():
        env = _environment(folder) if folder.name.isdigit() else {}
        if env and rank_mark.is_beside_rank(env, int(folder.name)):
            continue
        if env and launch.launched_size(env) > 1 and _launch_of(env, int(folder.name)) == mine:
            pids.setdefault(launch.launched_rank(env), []).append(int(folder.name))
    here = [r for r, own in pids.items() if any(p == os.getpid() or _waits(p) for p in own)]
    # Describe each rank that is on this node and does not wait.
    late = []
    for rank in sorted(pids.keys() - set(here)):
        # Take the newest process: a rank may run below shells that have the same environment.
        pid = max(pids[rank])
        state = process_state(pid)
        late.append(f"rank {rank} (pid {pid} on {socket.gethostname()}{state and ', ' + state})")
    return sorted(here), late + _ended(set(pids), os.environ)


def _ended(found: set[int], env: Mapping[str, str]) -> list[str]:
    """Return a text about the ranks of this node that have no process any more; [] without such ranks.

    Open MPI ends a launch when a rank ends. MPICH and Intel MPI may not before MPI has started.

    Args:
        found: Ranks of this node that have processes.
        env: Environment of this rank.
    """
    n_here, size = int(env.get(_HYDRA_LOCAL_SIZE) or 0), launch.launched_size(env)
    if len(found) >= n_here:
        return []
    where = f"on {socket.gethostname()}, ended before"
    if n_here < size:
        n_ended = n_here - len(found)
        return [f"{n_ended} rank{'s' if n_ended > 1 else ''} ({where})"]
    return [f"rank {rank} ({where})" for rank in range(size) if rank not in found]


def _launch_of(env: Mapping[str, str], pid: int) -> tuple[str, ...]:
    """Return values that are equal for the ranks of one launch on this node only."""
    proxy = _proxy_of(pid) if _HYDRA_LOCAL_SIZE in env else 0
    return (*(env.get(name, "") for name in _LAUNCH), str(proxy))


def _proxy_of(pid: int) -> int:
    """Return the pid of the proxy of Hydra that has started a process; 0: another launcher has."""
    for _ in range(_MOST_ANCESTORS):
        with suppress(OSError, IndexError):
            if (PROC / f"{pid}/comm").read_text().strip() == _PROXY:
                return pid
            pid = int((PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of a process of this user; {} for other processes."""
    with suppress(OSError):
        text = (folder / "environ").read_bytes().decode(errors="replace")
        return dict(pair.partition("=")[::2] for pair in text.split("\0") if "=" in pair)
    return {}


def _waits(pid: int) -> bool:
    """Return True if a process waits in the start of MPI, or has waited there until its time was over."""
    with suppress(OSError):
        # A rank whose time is over executes this module.
        if __spec__.name.encode() in (PROC / f"{pid}/cmdline").read_bytes().split(b"\0"):
            return True
        for thread in (PROC / f"{pid}/task").iterdir():
            with suppress(OSError):
                if (thread / "comm").read_text().strip() == _THREAD:
                    return True
    return False


def main(limit: str) -> int:
    """Print and report which ranks have not come to the start of MPI; return the exit code."""
    rank = launch.launched_rank()
    here, late = late_here()
    # Let one rank of the node report; the launcher ends the others meanwhile.
    if here and rank != min(here):
        time.sleep(_LOOKS_S)
    # Let a rank on another node report a late rank there; this node knows less of it.
    if not late:
        time.sleep(_LOOKS_S)
        ranks = ", ".join(map(str, here))
        late = [f"a rank on another node (all of {socket.gethostname()} have: {ranks})"]
    message = (
        f"rank {rank}: the start of MPI, where all ranks meet, has not returned for {limit} s; "
        f"{', '.join(late)} {'has' if len(late) == 1 else 'have'} not come to it; look there for the "
        "reason, or raise cluster.timeout_s if programs load slowly"
    )
    code = StallError.exit_code
    failure_report.write(kind="StallError", message=message, exit_code=code)
    launch.print_error(message)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
