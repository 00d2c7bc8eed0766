"""End what is left of a run on this node: its processes and, when it is over, its shared memory.

Processes are found by their environment, which names the run directory: neither parents nor process groups
hold together what a dead launcher has left. A stopped process is killed as well; SIGKILL needs nobody's
consent. The file is also a program of its own, which knows nothing of mpips, for other nodes:

    python reap.py RUN_DIR GENERATION [--forget TOKEN]

Processes of a later generation than the one given are left alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

LIMIT_S = 10.0
_SHM = Path("/dev/shm")


def belongs(pid: int, run_dir: Path, generation: int) -> bool:
    """Whether a process is of a run, and of this or an earlier generation.

    Raises:
        OSError: It is gone, or somebody else's.
    """
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    if b"MPIPS_RUN_DIR=" + os.fsencode(run_dir) not in environment:
        return False
    for line in environment:
        name, _, value = line.partition(b"=")
        if name == b"MPIPS_GENERATION" and value.isdigit():
            return int(value) <= generation
    return False


def processes_of(run_dir: Path, generation: int) -> list[int]:
    """Pids of this user's living processes of a run, but not of this one and those above it."""
    mine = _ancestors()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        try:
            if pid in mine or folder.stat().st_uid != os.geteuid():
                continue
            if belongs(pid, run_dir, generation) and state_of(pid) not in "ZX":
                found.append(pid)
        except OSError:
            continue
    return found


def state_of(pid: int) -> str:
    """The kernel's letter for the state of a process; "X" if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "X"
    return stat.rpartition(")")[2].split()[0]


def _ancestors() -> set[int]:
    pids, pid = set(), os.getpid()
    while pid > 1 and pid not in pids:
        pids.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    return pids


def reap(run_dir: Path, generation: int, limit_s: float = LIMIT_S) -> int:
    """Kill all processes of a run on this node and wait until none is left. Blocks up to `limit_s`.

    Returns:
        How many there were.

    Raises:
        TimeoutError: Some do not end: they hang in the kernel.
    """
    seen: set[int] = set()
    deadline = time.monotonic() + limit_s
    while pids := processes_of(run_dir, generation):
        # A launcher may start more between look and kill: look again.
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        seen.update(pids)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {pids} do not end, although killed")
        time.sleep(0.005)
    return len(seen)


def forget(token: str) -> int:
    """Remove the run's regions of this node; how many there were. All its processes have ended."""
    names = list(_SHM.glob(f"mpips*-{os.geteuid()}-{token}-*")) if token.isalnum() else []
    for path in names:
        path.unlink(missing_ok=True)
    return len(names)


def main() -> int:
    """Reap, and say what there was; the answer also tells that this node is alive."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("generation", type=int)
    parser.add_argument("--forget", metavar="TOKEN", default="")
    arguments = parser.parse_args()
    try:
        n_processes = reap(arguments.run_dir, arguments.generation)
    except TimeoutError as error:
        print(error, file=sys.stderr)
        return 1
    n_regions = forget(arguments.forget) if arguments.forget else 0
    print(f"{n_processes} processes, {n_regions} regions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
