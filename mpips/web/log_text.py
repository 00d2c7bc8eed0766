"""The end of a rank's log, for the page. Only logs of an attempt of the run can be asked for, by number."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from mpips.errors import ConfigError
from mpips.monitor.logs import Follower, LogFile, find_logs
from mpips.rundir.directory import RunFolder
from mpips.rundir.reading import open_regular

MOST_BYTES = 256 << 10  # bytes from the end of a log that are sent
LAUNCHER = -1  # number of the launcher's log


def logs_of(run: RunFolder, attempt: int) -> list[dict[str, Any]]:
    """Return number, label and size of each log of an attempt that can be read; empty without such logs."""
    try:
        found = find_logs(run, attempt)
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
        rank: The rank, or LAUNCHER.
        most: Bytes from the end of the log that are read.
    """
    if attempt < 0:
        return None
    try:
        logs = [log for log in find_logs(run, attempt) if _rank_of(log) == rank]
    except (ConfigError, OSError):
        return None
    if not logs:
        return None
    log = logs[0]
    try:
        # A pipe, or a link that may lead anywhere, is no log of the run.
        size = _size(log)
        start = max(size - most, 0)
        follower, lines = Follower(log, start), list[str]()
        while found := follower.read():
            lines += found
            if follower.offset - start > 2 * most:
                break
    except OSError:
        return None
    # The first line begins in its middle.
    return {
        "label": log.label,
        "bytes": size,
        "left_out": start,
        "lines": lines[1 if start else 0 :],
    }


def _rank_of(log: LogFile) -> int:
    stem = log.path.stem
    return int(stem[5:]) if stem.startswith("rank-") else LAUNCHER


def _size(log: LogFile) -> int:
    fd, status = open_regular(log.path, log.within)
    os.close(fd)
    return status.st_size
