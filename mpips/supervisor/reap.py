"""End what is left of a run on this node: its processes and, on request, its shared memory.

Processes are found by their environment, which names the run directory: the processes that an ended launcher
left have neither a common parent nor a common process group. Stopped processes end as well, because SIGKILL
needs no action of the process. The file is also a program of its own for other nodes, and imports nothing of
mpips:

    python reap.py RUN_DIR GENERATION [--forget TOKEN | --keep TOKEN]

Processes of a later generation than the given one are left alone. The answer is one line of JSON: the number
of processes, and the fields of `LeftMemory`; or "error", if processes do not end, or if a later attempt was
started, whose memory stays. Files of other users are left alone and named.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import stat
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

LIMIT_S = 10.0  # seconds in which killed processes must end
_SHM = Path("/dev/shm")
_UNCLEAR_S = 1.0  # seconds after which a process without an environment is none of the run
# Flags of a process in its stat file; see Linux, include/linux/sched.h.
_PF_EXITING = 0x4
_PF_KTHREAD = 0x200000
# Names, up to the 15 characters that the kernel keeps, of processes that a launcher starts on a host, and
# that are no descendants of it there.
_DAEMONS = (
    "prted",
    "orted",
    "prte",
    "hydra_pmi_proxy",
    "hydra_bstrap_pr",
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "prterun",
    "srun",
    "ssh",
)
# Last part of the name of the file that marks the memory of a server complete; see mpips.transport.region.
_MARK = "-mark"
# Last part of the name of the folder from which a launch of another size can start; see
# mpips.recovery.exchange.
_EXCHANGE = "-exchange"


@dataclass(frozen=True)
class LeftMemory:
    """The shared memory of a run on a host, after a part of it was removed.

    Attributes:
        removed: Number of shared-memory files that were removed.
        remaining_bytes: Bytes of those that stay, because they contain updates.
        foreign: Paths of files of other users with names of this run; they stay.
    """

    removed: int = 0
    remaining_bytes: int = 0
    foreign: tuple[str, ...] = ()


def belongs(pid: int, run_dir: Path, generation: int) -> bool:
    """Return True if a process belongs to a run, and to this or an earlier generation.

    Raises:
        OSError: The process has ended, or belongs to another user.
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
    """Return True if two paths name one folder: the run may have been started by another path."""
    if named == os.fsencode(run_dir):
        return True
    with contextlib.suppress(OSError, ValueError):
        return os.path.samefile(named, run_dir)
    return False


def processes_of(run_dir: Path, generation: int) -> list[int]:
    """Return the pids of this user's running processes of a run, without this process and its ancestors."""
    mine = _ancestors(os.getpid())
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        try:
            if pid in mine or folder.stat().st_uid != os.geteuid():
                continue
            if belongs(pid, run_dir, generation) and not is_dead(pid):
                found.append(pid)
        except OSError:
            continue
    return found


def orphans_of(run_dir: Path, generation: int, launcher: int) -> list[int]:
    """Return the pids of processes of an attempt that ended ranks have left: forked children, for example.

    Args:
        run_dir: The run directory.
        generation: Generation number of the attempt.
        launcher: Process of the launcher. It, its descendants and daemons of launchers are not orphans.
    """
    return [
        pid
        for pid in processes_of(run_dir, generation)
        if _name(pid) not in _DAEMONS and launcher not in _ancestors(pid)
    ]


def state_of(pid: int) -> str:
    """Return the kernel's letter for the state of a process; "X" if there is no such process."""
    fields = _fields(pid)
    return fields[0] if fields else "X"


def is_dead(pid: int) -> bool:
    """Return True if no thread of a process is left, or there is no such process.

    The first thread of a killed process is often a zombie while another one still gives the memory back, and
    only then closes the files: the locks of the process are held until all threads have ended.
    """
    return _has_ended(_fields(pid))


def _has_ended(fields: list[str]) -> bool:
    """Return True for the fields of a process of which no thread is left; see `_fields`."""
    return not fields or (fields[0] in "ZX" and int(fields[17]) <= 1)


def started_at(pid: int) -> str:
    """Return the start time of a process in clock ticks. A later process with its pid has another one."""
    fields = _fields(pid)
    return fields[19] if fields else ""


def _fields(pid: int) -> list[str]:
    """Return the fields of a process's stat file from the third on; none if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _name(pid: int) -> str:
    """Return the name of a process; "" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _ancestors(pid: int) -> set[int]:
    """Return the pids of a process and its ancestors."""
    pids: set[int] = set()
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
        Number of processes that were killed.

    Raises:
        TimeoutError: Some do not end, because they hang in the kernel.
    """
    killed: set[tuple[int, str]] = set()  # pids with their start times
    begun = time.monotonic()
    # Search again until none is found: a launcher may start processes between the search and the kill.
    # A killed process loses its environment some time before its files are closed: ask for it by its pid.
    # Read the time before the search: this process may be suspended between them.
    while True:
        waited = time.monotonic() - begun
        pids = sorted({*processes_of(run_dir, generation), *dying(killed)})
        if not pids and (waited > _UNCLEAR_S or not _unclear()):
            return len(killed)
        for pid in pids:
            killed.add((pid, started_at(pid)))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if pids and waited > limit_s:
            raise TimeoutError(
                f"processes {pids} did not end within {limit_s:g} s of SIGKILL: they hang in the kernel; "
                "check its file systems, or restart the host"
            )
        time.sleep(0.005)


def dying(killed: set[tuple[int, str]]) -> list[int]:
    """Return those of the killed processes, given with their start times, that are not dead yet."""
    return [pid for pid, started in killed if not is_dead(pid) and started_at(pid) == started]


def _unclear() -> list[int]:
    """Return this user's processes whose environment is empty for a moment: in exec, or at their end."""
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        try:
            if folder.stat().st_uid != os.geteuid() or (folder / "environ").read_bytes():
                continue
        except OSError:
            continue
        fields = _fields(pid)
        if _has_ended(fields) or int(fields[6]) & _PF_KTHREAD:
            continue
        age_s = uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK")
        # A process may have no environment for good, but then it is older, unless it has just started.
        if int(fields[6]) & _PF_EXITING or age_s < _UNCLEAR_S:
            found.append(pid)
    return found


def segments(token: str) -> tuple[list[Path], list[Path]]:
    """Return the run's shared-memory files on this node, and files of other users with such names.

    Its exchange, a folder, is in neither.
    """
    own: list[Path] = []
    foreign: list[Path] = []
    if not token.isalnum():
        return own, foreign
    folders = exchanges(token)
    name = re.compile(rf"mpips(-kept)?-{os.geteuid()}-{token}(\.[0-9a-f]+)?-.+")
    for path in sorted(_SHM.glob(f"mpips*-{os.geteuid()}-{token}*")):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if name.fullmatch(path.name) and path not in folders:
                mine = status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode)
                (own if mine else foreign).append(path)
    return own, foreign


def exchanges(token: str) -> list[Path]:
    """Return the folders of this user in which the run's memory waits for a launch of another size."""
    found = []
    if token.isalnum():
        for path in sorted(_SHM.glob(f"mpips-kept-{os.geteuid()}-{token}*{_EXCHANGE}")):
            with contextlib.suppress(OSError):
                status = path.lstat()
                if status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode):
                    found.append(path)
    return found


def is_complete(exchange: Path) -> bool:
    """Return True if a launch can start from an exchange: it has its name only when it is written whole."""
    return any(exchange.glob("step-*"))


def forget(token: str, but_exchange: bool = False) -> LeftMemory:
    """Remove the run's shared memory on this node. All processes of the run have ended.

    Args:
        token: Names the memory.
        but_exchange: Leave the exchange: the next launch starts from it.
    """
    own, foreign = segments(token)
    for path in own:
        path.unlink(missing_ok=True)
    folders = [] if but_exchange else exchanges(token)
    for path in folders:
        shutil.rmtree(path, ignore_errors=True)
    return LeftMemory(len(own) + len(folders), 0, _named(foreign))


def keep(token: str) -> LeftMemory:
    """Remove the run's shared memory on this node except the files from which a launch can continue.

    The remaining files get the current time, from which their retention counts. All processes of the run
    have ended.
    """
    own, foreign = segments(token)
    # Without a mark no server of a launch came to work here, so the memory contains no update of a worker.
    marked = any(path.name.endswith(_MARK) for path in own)
    remaining = [path for path in own if marked and path.name.startswith("mpips-kept-")]
    removed = [path for path in own if path not in remaining]
    for path in removed:
        path.unlink(missing_ok=True)
    n_bytes = 0
    for folder in exchanges(token):
        if is_complete(folder):
            remaining += [folder, *(path for path in folder.rglob("*") if path.is_file())]
        else:
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    for path in remaining:
        os.utime(path)
        n_bytes += path.stat().st_blocks * 512
    return LeftMemory(len(removed), n_bytes, _named(foreign))


def _named(paths: list[Path]) -> tuple[str, ...]:
    return tuple(str(path) for path in paths)


def has_moved_on(run_dir: Path, generation: int) -> bool:
    """Return True if the lease names an attempt after this generation, or cannot be read.

    The memory of a later attempt has the same names. A run directory without a lease had no attempt.
    """
    try:
        return int(json.loads((run_dir / "lease.json").read_bytes())["generation"]) > generation
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError):
        return True


def main() -> int:
    """End what is left and print the answer, which also shows that this node can be reached."""
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
        print(json.dumps({"error": str(error)}))
        return 1
    if (arguments.keep or arguments.forget) and has_moved_on(
        arguments.run_dir, arguments.generation
    ):
        print(json.dumps({"error": "the run was continued meanwhile: its memory stays"}))
        return 1
    memory = keep(arguments.keep) if arguments.keep else forget(arguments.forget)
    print(json.dumps({"processes": n_processes, **asdict(memory)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
