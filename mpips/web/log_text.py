"""The end of a rank's log, for the page. Only logs of an attempt of the run can be asked for, by number."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mpips.errors import ConfigError
from mpips.monitor.logs import Follower, LogFile, find_logs
from mpips.rundir.directory import RunFolder

MOST_BYTES = 256 << 10  # bytes from the end of a log that are sent
LAUNCHER = -1  # number of the launcher's log


def logs_of(run: RunFolder, attempt: int) -> list[dict[str, Any]]:
    """Return number, label and size of each log of an attempt; empty if there are none."""
    try:
        found = find_logs(run, attempt)
    except ConfigError:
        return []
    return [{"rank": _rank_of(log), "label": log.label, "bytes": _size(log)} for log in found]


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
    except ConfigError:
        return None
    # A link, or a folder that is one, may lead anywhere: that is no log of the run.
    if not logs or not lies_in(run, logs[0].path) or not logs[0].path.is_file():
        return None
    log, size = logs[0], _size(logs[0])
    start = max(size - most, 0)
    follower, lines = Follower(log, start), list[str]()
    try:
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


def lies_in(run: RunFolder, path: Path) -> bool:
    """Return True if a path of a run directory leads to a file within it, whatever links there are."""
    try:
        return path.resolve().is_relative_to(run.path.resolve())
    except (OSError, RuntimeError):
        # Links that lead to each other: RuntimeError before Python 3.13.
        return False


def _rank_of(log: LogFile) -> int:
    stem = log.path.stem
    return int(stem[5:]) if stem.startswith("rank-") else LAUNCHER


def _size(log: LogFile) -> int:
    try:
        return os.lstat(log.path).st_size
    except OSError:
        return 0
