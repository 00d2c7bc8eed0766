"""End what is left of a run on this node: its processes and, when it is over, its shared memory.

Processes are found by their environment, which names the run directory: neither parents nor process groups
hold together what a dead launcher has left. A stopped process is killed as well; SIGKILL needs nobody's
consent. The file is also a program of its own, which knows nothing of mpips, for other nodes:

    python reap.py RUN_DIR GENERATION [--forget TOKEN | --keep TOKEN]

Processes of a later generation than the one given are left alone. The answer is one line of JSON: the number
of processes, and the fields of `LeftMemory`. Files of other users are left alone and named.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import stat
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

LIMIT_S = 10.0
_SHM = Path("/dev/shm")
_MARK = "-mark"  # ends the name of what says that a server's memory is complete; see mpips.transport.region


@dataclass(frozen=True)
class LeftMemory:
    """What became of the shared memory of a run on a host.

    Attributes:
        removed: Segments that were removed.
        remaining_bytes: Size of those that stay, because they hold updates.
        foreign: Files of other users that bear such names; they stay.
    """

    removed: int = 0
    remaining_bytes: int = 0
    foreign: tuple[str, ...] = ()


def belongs(pid: int, run_dir: Path, generation: int) -> bool:
    """Whether a process is of a run, and of this or an earlier generation.

    Raises:
        OSError: It is gone, or somebody else's.
    """
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    named = [line[14:] for line in environment if line.startswith(b"MPIPS_RUN_DIR=")]
    if not named or not _is_same(named[0], run_dir):
        return False
    for line in environment:
        name, _, value = line.partition(b"=")
        if name == b"MPIPS_GENERATION" and value.isdigit():
            return int(value) <= generation
    return False


def _is_same(named: bytes, run_dir: Path) -> bool:
    """Whether two names are of one folder: the run may have been started by another way to it."""
    if named == os.fsencode(run_dir):
        return True
    with contextlib.suppress(OSError, ValueError):
        return os.path.samefile(named, run_dir)
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


def segments(token: str) -> tuple[list[Path], list[Path]]:
    """The run's segments of this node, and files of other users that bear such names."""
    own: list[Path] = []
    foreign: list[Path] = []
    if not token.isalnum():
        return own, foreign
    name = re.compile(rf"mpips(-kept)?-{os.geteuid()}-{token}(\.[0-9a-f]+)?-.+")
    for path in sorted(_SHM.glob(f"mpips*-{os.geteuid()}-{token}*")):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if name.fullmatch(path.name):
                mine = status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode)
                (own if mine else foreign).append(path)
    return own, foreign


def forget(token: str) -> LeftMemory:
    """Remove the run's segments of this node. All its processes have ended."""
    own, foreign = segments(token)
    for path in own:
        path.unlink(missing_ok=True)
    return LeftMemory(len(own), 0, _named(foreign))


def keep(token: str) -> LeftMemory:
    """Remove the run's segments of this node but for those in which a launch can go on.

    Those count as touched now: how long they stay begins here. All processes of the run have ended.
    """
    own, foreign = segments(token)
    # Without a mark no launch has come to service here: the memory holds nothing of a worker's.
    marked = any(path.name.endswith(_MARK) for path in own)
    remaining = [path for path in own if marked and path.name.startswith("mpips-kept-")]
    removed = [path for path in own if path not in remaining]
    for path in removed:
        path.unlink(missing_ok=True)
    n_bytes = 0
    for path in remaining:
        os.utime(path)
        n_bytes += path.stat().st_blocks * 512
    return LeftMemory(len(removed), n_bytes, _named(foreign))


def _named(paths: list[Path]) -> tuple[str, ...]:
    return tuple(str(path) for path in paths)


def main() -> int:
    """Reap, and say what there was; the answer also tells that this node is alive."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("generation", type=int)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--forget", metavar="TOKEN", default="")
    what.add_argument("--keep", metavar="TOKEN", default="")
    arguments = parser.parse_args()
    try:
        n_processes = reap(arguments.run_dir, arguments.generation)
    except TimeoutError as error:
        print(error, file=sys.stderr)
        return 1
    memory = keep(arguments.keep) if arguments.keep else forget(arguments.forget)
    print(json.dumps({"processes": n_processes, **asdict(memory)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
