"""What became of an attempt: its class, and who died first, of what.

The durable mark decides whether a run is done, and nothing else: a launcher's exit code is 0 for a job
whose node was lost. Otherwise these speak, in this order: last words of ranks that failed by themselves, the
earliest first; what the launcher says of a rank killed by a signal, a lost host, an exit code; ranks that
were seen stopped; words of those that only suffered. A rank's log adds the stacks of a fatal signal.
"""

from __future__ import annotations

import contextlib
import re
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from mpips.mpi import failure_report
from mpips.mpi.failure_report import FailureReport
from mpips.rundir.directory import RankPlace
from mpips.supervisor.attempt import LAUNCHER_LOG, Ended

DONE = "done"
PREEMPTED = "preempted"
CRASHED = "crashed"
CONFIG = "configuration error"
MISSING = "missing capability"
STALLED = "stalled"
INTERRUPTED = "interrupted"

_CLASS_OF_CODE = {2: CONFIG, 69: MISSING, 75: PREEMPTED, 124: STALLED}
EXIT_CODES = {DONE: 0, PREEMPTED: 75, CRASHED: 1, CONFIG: 2, MISSING: 69, STALLED: 124}

_SIGNALED = re.compile(
    r"process rank (\d+) with PID (\d+) on node (\S+) exited on\s+signal (\d+)", re.DOTALL
)
_FIRST_CODE = re.compile(
    r"first process to do so was:\s*Process name: \[\S+?,(\d+)\]\s*Exit code:\s+(\d+)", re.DOTALL
)
_LOST = re.compile(
    r"lost communication with a remote daemon.*?Remote daemon: .*? on node (\S+)", re.DOTALL
)
_UNREACHED = re.compile(
    r"(?:A daemon failed to report back|unable to reliably start one or more daemons)"
    r"(?:.*?Remote host:\s+(\S+))?",
    re.DOTALL,
)
_HYDRA_RANK = re.compile(r"RANK (\d+) PID (\d+) RUNNING AT (\S+)")
_HYDRA_SIGNAL = re.compile(r"(?:KILLED BY SIGNAL: (\d+)|EXIT STRING: .*\(signal (\d+)\))")
_FATAL = re.compile(r"^Fatal Python error: [^\n]*", re.M)
_CURRENT = re.compile(r"^Current thread .*?(?=\n\n|\nExtension modules|\Z)", re.M | re.S)


@dataclass(frozen=True)
class Death:
    """Who died first, as far as anybody could tell.

    Attributes:
        cause: A sentence without its subject.
        rank: -1: unknown, or no rank.
        clock: Of the rank, -1: unknown.
        details: Traceback or stacks, or "".
    """

    cause: str
    rank: int = -1
    role: str = ""
    host: str = ""
    pid: int = 0
    state: str = ""
    clock: int = -1
    details: str = ""


@dataclass(frozen=True)
class Verdict:
    """What became of an attempt.

    Attributes:
        kind: One of the names above.
        exit_code: What the run would end with.
        death: Of the first rank that failed.
        saved: A checkpoint holds what the run had to keep, so shared memory may go.
    """

    kind: str
    exit_code: int
    death: Death | None = None
    saved: bool = False


def judge(ended: Ended, finished: bool, logs: Path) -> Verdict:
    """The verdict on an attempt that has ended.

    Args:
        ended: Of its launcher.
        finished: The run's durable mark is there.
        logs: Folder of the attempt's logs.
    """
    if finished:
        return Verdict(DONE, 0, saved=True)
    words = read_reports(logs)
    if ended.code == 75 or any(w.exit_code == 75 for w in words):
        # Other exits with this code, say of the task itself, have not been after a checkpoint.
        saved = any(w.kind == failure_report.LEAVING for w in words)
        return Verdict(PREEMPTED, 75, saved=saved)
    if ended.interrupted:
        return Verdict(INTERRUPTED, 128 + ended.interrupted)
    own = [w for w in words if not w.secondary]
    ranks = ended.status.ranks if ended.status is not None else ()
    death = _locate(_find_death(ended, own, words, logs), ranks)
    codes = [w.exit_code for w in own]
    kind = _CLASS_OF_CODE.get(codes[0], CRASHED) if codes else CRASHED
    if ended.cut_off or (not codes and (ended.code == 124 or ended.stopped)):
        kind = STALLED
    return Verdict(kind, EXIT_CODES[kind], death)


def read_reports(logs: Path) -> list[FailureReport]:
    """Last words of an attempt, the earliest first."""
    found = []
    for path in logs.glob("words-*.json"):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            found.append(msgspec.json.decode(path.read_bytes(), type=FailureReport))
    # Only words of one host can be ordered by a clock that nobody sets.
    one_host = len({w.host for w in found}) == 1 and all(w.up_s for w in found)
    return sorted(found, key=lambda w: w.up_s if one_host else w.time_s)


def _find_death(
    ended: Ended, own: list[FailureReport], words: list[FailureReport], logs: Path
) -> Death:
    ranks = ended.status.ranks if ended.status is not None else ()
    death = _launcher_says(ended, logs)
    if ended.cut_off:
        return _stopped(ended) or Death(ended.cut_off)
    if own:
        return _by_words(own, ended)
    if death is not None:
        return death
    if found := _stopped(ended):
        return found
    if words:
        return _by_words(words, ended)
    if ended.code < 0 and any(p.pid == ended.pid for p in ranks):
        return _killed(0, ended.pid, "", -ended.code, ended, logs)
    tail = "\n".join(ended.stderr.strip().splitlines()[-12:])
    if ended.overdue:
        return Death("a rank ended, nobody said which, and the launcher did not end", details=tail)
    if ended.code < 0:
        return Death(f"the launcher was killed by {signal_name(-ended.code)}")
    return Death(f"the launcher ended with code {ended.code} and nobody said why", details=tail)


def _by_words(words: list[FailureReport], ended: Ended) -> Death:
    """The earliest words; of a stall, what the scheduler knows of the silent rank."""
    first = words[0]
    if first.exit_code == 124:
        silent = [w for w in words if w.kind == "silent"]
        first = silent[0] if silent else first
        if not silent and (found := _stopped(ended)) is not None:
            return replace(found, details=f"as noticed by {first.message}")
    cause = first.message
    planned = not first.traceback
    if not planned:
        cause = f"{first.kind}: {first.message}"
    pid = first.pid if first.about == first.rank else 0
    host = first.host if first.about == first.rank else ""
    return Death(
        cause, first.about, first.role, host, pid, first.state, first.clock, first.traceback
    )


def _stopped(ended: Ended) -> Death | None:
    if not ended.stopped:
        return None
    rank = min(ended.stopped, key=lambda r: (ended.stopped[r], r))
    return Death("stopped by a signal (SIGSTOP) and never continued", rank)


def _launcher_says(ended: Ended, logs: Path) -> Death | None:
    """What the launcher's own text tells; Open MPI 5 and 4, MPICH."""
    text = ended.stderr
    if match := _SIGNALED.search(text):
        rank, pid, host, number = int(match[1]), int(match[2]), match[3], int(match[4])
        return _killed(rank, pid, host, number, ended, logs)
    if match := _LOST.search(text):
        return Death("the connection to the host was lost: it is down or cut off", host=match[1])
    if match := _UNREACHED.search(text):
        tail = "\n".join(text.strip().splitlines()[:20])
        cause = "the launcher could not start its daemon there"
        return Death(cause, host=match[1] or "", details=tail)
    if match := _FIRST_CODE.search(text):
        return _left(int(match[1]), int(match[2]), logs)
    return _hydra_says(ended, logs)


def _hydra_says(ended: Ended, logs: Path) -> Death | None:
    """MPICH tells the signal, and the pid of the first rank of the host, whichever died."""
    match = _HYDRA_SIGNAL.search(ended.stderr)
    if match is None:
        return None
    number = int(match[1] or match[2])
    where = _HYDRA_RANK.search(ended.stderr)
    if where is not None:
        return _killed(int(where[1]), int(where[2]), where[3], number, ended, logs)
    return _killed(_first_gone(ended, logs), 0, "", number, ended, logs)


def _first_gone(ended: Ended, logs: Path) -> int:
    """The rank that a fatal signal has left its stacks of, or whose end was seen first; -1: neither."""
    ranks = sorted(int(path.stem.partition("-")[2]) for path in logs.glob("rank-*.log"))
    fatal = [rank for rank in ranks if fatal_stacks(logs, rank)]
    return next(iter((*fatal, *ended.gone)), -1)


def _killed(rank: int, pid: int, host: str, number: int, ended: Ended, logs: Path) -> Death:
    cause = f"killed by {signal_name(number)}"
    if number == signal.SIGKILL:
        if ended.out_of_memory:
            cause += f"; the kernel ran out of memory on this host ({ended.out_of_memory} killed)"
        else:
            cause += "; by hand, by the batch system, or by the kernel for want of memory"
    return Death(cause, rank, host=host, pid=pid, details=fatal_stacks(logs, rank))


def _left(rank: int, code: int, logs: Path) -> Death:
    log = logs / f"rank-{rank}.log"
    lines = log.read_text(errors="replace").splitlines()[-12:] if log.is_file() else []
    if not lines:
        launcher = logs / LAUNCHER_LOG
        text = launcher.read_text(errors="replace") if launcher.is_file() else ""
        lines = text.split("-" * 60)[0].splitlines()[-12:]
    return Death(f"ended with code {code}, without last words", rank, details="\n".join(lines))


def fatal_stacks(logs: Path, rank: int) -> str:
    """What a fatal signal left in a rank's log: its name and the stack of the thread; or ""."""
    log = logs / f"rank-{rank}.log"
    text = log.read_text(errors="replace") if log.is_file() else ""
    fatal = _FATAL.search(text)
    if fatal is None:
        return ""
    current = _CURRENT.search(text, fatal.end())
    return fatal[0] + (f"\n{current[0].rstrip()}" if current else "")


def _locate(death: Death, ranks: tuple[RankPlace, ...]) -> Death:
    """Fill in what the table of ranks knows."""
    place = next((p for p in ranks if p.rank == death.rank), None)
    if place is None and death.pid:
        place = next((p for p in ranks if (p.pid, p.host) == (death.pid, death.host)), None)
    if place is None:
        return death
    return replace(
        death,
        rank=place.rank,
        role=death.role or place.role,
        host=place.host,
        pid=place.pid,
    )


def signal_name(number: int) -> str:
    """SIGKILL (signal 9), for people."""
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"
