"""The end of a log, for the page: of a rank, the launcher or a program of [producers].

Only logs of an attempt of the run can be asked for, by number. A program runs through all attempts, so each
attempt has its log.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from mpips.errors import ConfigError
from mpips.monitor.logs import Follower, LogFile, find_logs
from mpips.rundir.directory import RunFolder
from mpips.rundir.reading import open_regular
from mpips.web.members import member_logs

MOST_BYTES = 256 << 10  # bytes from the end of a log that are sent
LAUNCHER = -1  # number of the launcher's log
_FIRST_MEMBER = -2  # that of the log of member 0; member 1 has the next lower one


def logs_of(run: RunFolder, attempt: int) -> list[dict[str, Any]]:
    """Return number, label and size of each log of an attempt that can be read; empty without such logs."""
    try:
        found = [*find_logs(run, attempt), *member_logs(run)]
    except (ConfigError, OSError):
        return []
    rows = []
    for log in found:
        with contextlib.suppress(OSError):
            rows.append({"rank": _rank_of(log), "label": log.label, "bytes": _size(log)})
    return rows


def log_tail(
    run: RunFolder, attempt: int, rank: int, most: int = MOST_BYTES
) -> dict[str, Any] | None:
    """Return the last whole lines of a log without control characters; None if there is no such log.

    Args:
        run: The run.
        attempt: Number of the attempt.
        rank: The rank, LAUNCHER, or the number of the log of a member.
        most: Bytes from the end of the log that are read.
    """
    if attempt < 0:
        return None
    try:
        found = find_logs(run, attempt) if rank >= LAUNCHER else member_logs(run)
        logs = [log for log in found if _rank_of(log) == rank]
    except (ConfigError, OSError):
        return None
    if not logs:
        return None
    log = logs[0]
    try:
        # A pipe, or a link that may lead anywhere, is no log of the run.
        size = _size(log)
        lines = _lines_from(log, max(size - most, 0), most)
        if not lines and _size(log) < size:  # it was cut meanwhile
            size = _size(log)
            lines = _lines_from(log, max(size - most, 0), most)
    except OSError:
        return None
    start = max(size - most, 0)
    # The first line begins in its middle. It is all that there is of a line that is longer.
    return {
        "label": log.label,
        "bytes": size,
        "left_out": start,
        "lines": lines[1 if start and len(lines) > 1 else 0 :],
    }


def _lines_from(log: LogFile, start: int, most: int) -> list[str]:
    """Return the whole lines of a log from a place on, bytes; those that it gets meanwhile up to a bound."""
    follower, lines = Follower(log, start), list[str]()
    while more := follower.read():
        lines += more
        if follower.offset - start > 2 * most:
            break
    return lines


def _rank_of(log: LogFile) -> int:
    kind, _, number = log.path.stem.partition("-")
    if kind == "member":
        return _FIRST_MEMBER - int(number)
    return int(number) if kind == "rank" else LAUNCHER


def _size(log: LogFile) -> int:
    fd, status = open_regular(log.path, log.within)
    os.close(fd)
    return status.st_size
