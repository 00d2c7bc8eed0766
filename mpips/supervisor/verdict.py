"""Find what became of an attempt: its class, and which rank or host failed first and why.

Only finished.json decides whether a run is done: the exit code of a launcher is 0 even for a job whose node
was lost. The cause of a failure comes from the first of these sources that has one:

1. failure reports of ranks that failed by themselves, the earliest first
2. the launcher's text about a rank killed by a signal, a lost host, or an exit code
3. ranks of this host that were seen stopped
4. failure reports of ranks that failed because another one did

The log of a rank adds the stacks of a fatal signal.
"""

from __future__ import annotations

import contextlib
import re
import signal
from pathlib import Path

import msgspec
from msgspec.structs import replace

from mpips.mpi import failure_report
from mpips.mpi.failure_report import FailureReport
from mpips.rundir.files import RankPlace
from mpips.rundir.reading import DAMAGED, end_of
from mpips.rundir.requests import BY_FILE
from mpips.supervisor.attempt import LAUNCHER_LOG, Ended
from mpips.supervisor.hosts import is_here
from mpips.supervisor.hydra import blocks

DONE = "done"
PREEMPTED = "preempted"
CRASHED = "crashed"
CONFIG = "configuration error"
MISSING = "missing capability"
STALLED = "stalled"
INTERRUPTED = "interrupted"

_CLASS_OF_CODE = {2: CONFIG, 69: MISSING, 75: PREEMPTED, 124: STALLED}
EXIT_CODES = {DONE: 0, PREEMPTED: 75, CRASHED: 1, CONFIG: 2, MISSING: 69, STALLED: 124}

_UNKNOWN_CODE = 255
# Signals that batch systems, shells and the kernel send from outside; faults of a program have others.
_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

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
_LOG_LINES = 12  # last lines of a log that are shown
# Messages about programs that end by themselves.
_EXITED = re.compile(r"^the script ended with exit code |^(the script|main) called sys\.exit\(")
_FATAL = re.compile(r"^Fatal Python error: ([^\n]*)", re.M)
# Signals by the names that Python's handler of fatal signals prints.
_FATAL_NAMES = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating-point exception": signal.SIGFPE,
    "Floating point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
}
# MPICH and Intel MPI print it when MPI ends a rank, for example in the start of MPI.
_ABORTED = re.compile(r"^Abort\((-?\d+)\) on node (\d+) ", re.M)
_CURRENT = re.compile(r"^Current thread .*?(?=\n\n|\nExtension modules|\Z)", re.M | re.S)


class Death(msgspec.Struct, frozen=True):
    """The rank or host that failed first, as far as it is known.

    Attributes:
        cause: A sentence without its subject.
        rank: Its rank; -1: unknown, or a host.
        role: Its role; "": unknown.
        host: Its host; "": unknown.
        pid: Its process; 0: unknown.
        state: Its activity; "": unknown.
        clock: Its clock; -1: unknown.
        details: Traceback or stacks; "": the logs have none.
        outside: A signal from outside ended it, no fault of its own and no lack of memory that is known.
    """

    cause: str
    rank: int = -1
    role: str = ""
    host: str = ""
    pid: int = 0
    state: str = ""
    clock: int = -1
    details: str = ""
    outside: bool = False


class Verdict(msgspec.Struct, frozen=True):
    """The class of an attempt's end.

    Attributes:
        kind: `DONE`, `PREEMPTED`, `CRASHED`, `CONFIG`, `MISSING`, `STALLED` or `INTERRUPTED`.
        exit_code: Exit code of the run if no other attempt follows.
        death: The rank or host that failed first, if one did.
        saved: A checkpoint contains all updates of the run, so its shared memory may be removed.
        in_memory: The run's exchange contains them, for a launch of another size (mpips.recovery.exchange).
        by_file: Reason why a checkpoint contains them and not the exchange, for people; "": none was asked
            for.
    """

    kind: str
    exit_code: int
    death: Death | None = None
    saved: bool = False
    in_memory: bool = False
    by_file: str = ""


def judge(ended: Ended, finished: bool, logs: Path, n_ranks: int) -> Verdict:
    """Return the verdict on an attempt that has ended.

    Args:
        ended: The end of its launcher.
        finished: finished.json exists.
        logs: Folder of the attempt's logs.
        n_ranks: Ranks of the attempt.
    """
    if finished:
        return Verdict(DONE, 0, saved=True)
    reports = read_reports(logs)
    if ended.code == 75 or any(r.exit_code == 75 for r in reports):
        # A task may exit with 75 by itself: only a rank that left on request has written a checkpoint.
        kinds = {report.kind for report in reports}
        in_memory = failure_report.EXCHANGED in kinds
        left = [r.message for r in reports if r.kind == failure_report.LEAVING]
        why = next((text.partition(BY_FILE)[2] for text in left if BY_FILE in text), "")
        return Verdict(PREEMPTED, 75, None, bool(left) and not in_memory, in_memory, why)
    if ended.interrupted:
        return Verdict(INTERRUPTED, 128 + ended.interrupted)
    own = [r for r in reports if not r.secondary]
    ranks = ended.status.ranks if ended.status is not None else ()
    death = _locate(_find_death(ended, own, reports, logs), ranks)
    codes = [r.exit_code for r in own]
    kind = _CLASS_OF_CODE.get(codes[0], CRASHED) if codes else CRASHED
    # The arguments of one rank may be wrong on its host alone: another attempt has other hosts.
    if own and own[0].kind == failure_report.USAGE and not _are_usage_errors(ended, own, n_ranks):
        kind = CRASHED
    if ended.cut_off or (not codes and (ended.code == 124 or ended.stopped)):
        kind = STALLED
    return Verdict(kind, EXIT_CODES[kind], death)


def _are_usage_errors(ended: Ended, own: list[FailureReport], n_ranks: int) -> bool:
    """Return True if the scripts of all ranks ended with a usage error before any rank was at work.

    Ranks that the launcher or a signal ended, or that failed in another way, have no such report. Neither has
    a Python that cannot open its program, or a shell, both of which end with code 2 as well.
    """
    ranks = {report.rank for report in own if report.kind == failure_report.USAGE}
    return ended.status is None and len(own) == len(ranks) == n_ranks


def read_reports(logs: Path) -> list[FailureReport]:
    """Return the failure reports of an attempt, the earliest first."""
    found = []
    for path in logs.glob("words-*.json"):
        with contextlib.suppress(OSError, *DAMAGED):
            found.append(msgspec.json.decode(path.read_bytes(), type=FailureReport))
    # Order reports of one host by its time since start, which no setting of the wall clock changes.
    one_host = len({r.host for r in found}) == 1 and all(r.up_s for r in found)
    return sorted(found, key=lambda r: r.up_s if one_host else r.time_s)


def _find_death(
    ended: Ended, own: list[FailureReport], reports: list[FailureReport], logs: Path
) -> Death:
    """Find what failed first, by the order of sources at the top of this module.

    Args:
        ended: The end of the launcher.
        own: Failure reports of ranks that failed by themselves.
        reports: All failure reports.
        logs: Folder of the attempt's logs.
    """
    ranks = ended.status.ranks if ended.status is not None else ()
    if ended.cut_off:
        return _stopped(ended) or Death(ended.cut_off)
    if own:
        return _with_log(_from_reports(own, ended), logs)
    if death := _from_launcher(ended, logs):
        # The supervisor has killed all others, which the launcher may name instead.
        is_other = ended.lost >= 0 and death.rank not in (ended.lost, -1)
        return _left(ended.lost, _UNKNOWN_CODE, logs) if is_other else death
    if found := _stopped(ended):
        return found
    if reports:
        return _from_reports(reports, ended)
    if found := _aborted(ended, logs):
        return found
    # The exit code of Open MPI's launcher may be its own, without the text of a rank.
    if ended.is_hydra and (found := _left_first(ended, logs)):
        return found
    # In a job of one rank the launcher is the rank.
    if ended.code < 0 and any(p.pid == ended.pid for p in ranks):
        return _killed(0, ended.pid, "", -ended.code, ended, logs)
    tail = "\n".join(ended.stderr.strip().splitlines()[-12:])
    if ended.overdue:
        rank = ended.gone[0] if ended.gone else -1
        which = "" if ended.gone else "an unknown rank "
        return Death(f"{which}ended, and the launcher did not end after it", rank, details=tail)
    if ended.code < 0:
        outside = -ended.code in _OUTSIDE and not ended.out_of_memory
        return Death(f"the launcher was killed by {signal_name(-ended.code)}", outside=outside)
    return Death(
        f"the launcher ended with code {ended.code}, and no rank reported a failure", details=tail
    )


def _from_reports(reports: list[FailureReport], ended: Ended) -> Death:
    """Return the earliest report; in a stall, the one about the rank that sent no heartbeats."""
    first = reports[0]
    if first.exit_code == 124:
        silent = [r for r in reports if r.kind == "silent"]
        first = silent[0] if silent else first
        if not silent and (found := _stopped(ended)) is not None:
            return replace(found, details=f"reported by another rank: {first.message}")
    cause = first.message
    planned = not first.traceback
    if not planned:
        cause = f"{first.kind}: {first.message}"
    pid = first.pid if first.about == first.rank else 0
    host = first.host if first.about == first.rank else ""
    return Death(
        cause, first.about, first.role, host, pid, first.state, first.clock, first.traceback
    )


def _with_log(death: Death, logs: Path) -> Death:
    """Return the death with the end of its rank's log, where the report has no traceback of it.

    A script that calls sys.exit has often printed the reason before.
    """
    if death.details or death.rank < 0 or not _EXITED.search(death.cause):
        return death
    return replace(death, details="\n".join(_log_lines(death.rank, logs)))


def _stopped(ended: Ended) -> Death | None:
    """Return the rank that was first seen stopped, or None."""
    if not ended.stopped:
        return None
    rank = min(ended.stopped, key=lambda r: ended.stopped[r])
    return Death("stopped by a signal (SIGSTOP) and never continued", rank)


def _from_launcher(ended: Ended, logs: Path) -> Death | None:
    """Return what the launcher's text names, or None; for Open MPI 5 and 4, MPICH and Intel MPI."""
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
    return _from_hydra(ended, logs)


def _from_hydra(ended: Ended, logs: Path) -> Death | None:
    """Return what Hydra, the launcher of MPICH and Intel MPI, names, or None.

    The block of the rank that failed first is not marked, see `mpips.supervisor.hydra`.
    """
    found = blocks(ended.stderr)
    if not found:
        return None
    ranks = ended.status.ranks if ended.status is not None else ()
    hosts = {block.host for block in found}
    host = found[0].host if len(hosts) == 1 else ""
    there = {p.rank for p in ranks if p.host in hosts}
    if not ranks and is_here(host):
        # Before there is a status, the ranks of this host are known by their ends.
        there = set(ended.gone)
    signals = {block.rank: block.signal for block in found}
    if -1 in signals:
        rank = _first_of(there, ended, logs)
        number = _fatal_signal(logs, rank) or signals[-1]
        death = _killed(rank, 0, host, number, ended, logs)
        if number == signal.SIGKILL:
            # MPICH also prints it for a rank that exits with a code, if it has killed the others in time.
            return replace(
                death, cause=f"{death.cause}; or it exited with a code: MPICH reports both alike"
            )
        return death

    # A rank that SIGKILL did not end was not ended by the launcher.
    own = {rank for rank, number in signals.items() if number != signal.SIGKILL}
    exited = ({p.rank for p in ranks} or set(ended.gone)) - signals.keys()
    rank = _first_of(own or exited | signals.keys(), ended, logs)
    if rank < 0 and not own:
        rank = _first_of(exited if len(found) > 1 and exited else set(signals), ended, logs)
    if rank in exited:
        return _left(rank, ended.code, logs)
    number = signals.get(rank) or next((signals[r] for r in own if signals[r]), signal.SIGKILL)
    pid = next((block.pid for block in found if block.rank == rank), 0)
    return _killed(rank, pid, host, number, ended, logs)


def _first_of(candidates: set[int], ended: Ended, logs: Path) -> int:
    """Return the rank of `candidates` that failed first; -1: unknown.

    That is one whose log contains the stacks of a fatal signal, or else the one that ended first. The order
    of ends is known for the ranks of this host that ended while they were watched.
    """
    if fatal := [rank for rank in sorted(candidates) if fatal_stacks(logs, rank)]:
        return fatal[0]
    if len(candidates) == 1:
        return next(iter(candidates))
    unseen = candidates - set(ended.gone)
    if not unseen:
        return next((rank for rank in ended.gone if rank in candidates), -1)
    # A rank of this host that had ended before it was watched was the first.
    places = ended.status.ranks if ended.status is not None else ()
    here = {place.rank for place in places if is_here(place.host)}
    return next(iter(unseen)) if len(unseen) == 1 and candidates <= here else -1


def _fatal_signal(logs: Path, rank: int) -> int:
    """Return the fatal signal whose stacks the log of a rank contains, or 0."""
    match = _FATAL.search(end_of(logs / f"rank-{rank}.log"))
    return _FATAL_NAMES.get(match[1].strip(), 0) if match else 0


def _aborted(ended: Ended, logs: Path) -> Death | None:
    """Return the rank that MPI has ended, by the log of the rank or the text of the launcher; None: none.

    MPICH and Intel MPI do so for an error in the start of MPI, before the ranks have an error handler.
    """
    texts = [(path, end_of(path)) for path in sorted(logs.glob("rank-*.log"))]
    for path, text in (*texts, (logs / LAUNCHER_LOG, ended.stderr)):
        if match := _ABORTED.search(text):
            rank = (
                int(path.stem.partition("-")[2]) if path.stem.startswith("rank-") else int(match[2])
            )
            tail = "\n".join(
                text[: match.end()].splitlines()[-1:] + text[match.end() :].splitlines()[:11]
            )
            return Death(f"aborted by the MPI library with code {match[1]}", rank, details=tail)
    return None


def _left_first(ended: Ended, logs: Path) -> Death | None:
    """Return the rank that ended first with an exit code that the launcher passes on without a text, or None.

    Hydra prints nothing about a rank that exits with a code.
    """
    ranks = ended.status.ranks if ended.status is not None else ()
    rank = _first_of({place.rank for place in ranks} or set(ended.gone), ended, logs)
    if ended.code <= 0 or ended.overdue or rank < 0:
        return None
    return _left(rank, ended.code, logs)


def _killed(rank: int, pid: int, host: str, number: int, ended: Ended, logs: Path) -> Death:
    cause = f"killed by {signal_name(number)}"
    outside = number in _OUTSIDE
    if number == signal.SIGKILL:
        if ended.out_of_memory:
            lack = "the kernel ran out of memory on this host"
            if ended.memory_limit:
                limit = ended.memory_limit / 2**30
                lack = f"the job has used up the {limit:.1f} GiB that it is granted on this host"
            cause += f"; {lack} ({ended.out_of_memory} killed)"
            outside = False
        else:
            cause += "; by hand, by the batch system, or by the kernel for want of memory"
    details = fatal_stacks(logs, rank)
    return Death(cause, rank, host=host, pid=pid, details=details, outside=outside)


def _log_lines(rank: int, logs: Path) -> list[str]:
    """Return the last lines of a rank's log."""
    return end_of(logs / f"rank-{rank}.log").splitlines()[-_LOG_LINES:]


def _left(rank: int, code: int, logs: Path) -> Death:
    """Return the death of a rank that ended with an exit code, with the end of its or the launcher's log.

    Args:
        rank: The rank.
        code: Exit code; 255: the launcher of Intel MPI ends with it whatever the code was.
        logs: Folder of the attempt's logs.
    """
    lines = _log_lines(rank, logs)
    if not lines:
        lines = end_of(logs / LAUNCHER_LOG).split("-" * 60)[0].splitlines()[-12:]
    which = "" if code == _UNKNOWN_CODE else f" with code {code}"
    return Death(
        f"ended{which}, without a failure report",
        rank,
        details="\n".join(lines),
        outside=code - 128 in _OUTSIDE,
    )


def fatal_stacks(logs: Path, rank: int) -> str:
    """Return the fatal signal and the stack of its thread from a rank's log; "" without one."""
    text = end_of(logs / f"rank-{rank}.log")
    fatal = _FATAL.search(text)
    if fatal is None:
        return ""
    current = _CURRENT.search(text, fatal.end())
    return fatal[0] + (f"\n{current[0].rstrip()}" if current else "")


def _locate(death: Death, ranks: tuple[RankPlace, ...]) -> Death:
    """Return `death` with the rank, role, host and pid of the rank table."""
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
    """Return the name of a signal for people, such as "SIGKILL (signal 9)"."""
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"
