"""metrics.jsonl as the scheduler writes it: lines are added, and old ones are merged from time to time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from mpips.rundir.directory import Supervised, version_of
from mpips.rundir.thinning import thin_file
from mpips.scheduler.logs import MetricsLog

_THIN_S = 600.0  # s between two rewrites of the file with old lines merged
# bytes; a longer file, as earlier versions of mpips left after days, is not rewritten, because that would
# stop the scheduler for seconds
_MOST_BYTES = 64 << 20
_BYTES_PER_S = 8e6  # that a rewrite reads


class MetricsFile:
    """The writer of one attempt's metrics.jsonl. One per job, on the scheduler's rank."""

    def __init__(self, run: Supervised, timeout_s: float, logs: Sequence[MetricsLog] = ()) -> None:
        """Write nothing yet.

        Args:
            run: The run and this attempt of it.
            timeout_s: Timeout of the job, seconds; a rewrite must take a small part of it.
            logs: Further forms of the metrics.
        """
        self._logs = logs
        self._run = run
        self._most_bytes = int(min(_MOST_BYTES, timeout_s / 4 * _BYTES_PER_S))
        self._next_thinning = 0.0  # Unix time from which the file is to be rewritten

    def begin(self) -> None:
        """Begin the further forms, behind the event of the attempt's begin. The attempt holds the lease.

        Raises:
            OSError: One cannot be written.
        """
        for log in self._logs:
            log.begin()

    def append(self, line: dict[str, Any]) -> dict[str, Any]:
        """Add a line in one write, so that a killed rank leaves no part of it. The attempt holds the lease.

        Args:
            line: Fields of the line besides time_s and generation.

        Returns:
            All fields of the line.

        Raises:
            OSError: The file cannot be written, as on a full disk.
        """
        fields = {"time_s": round(time.time(), 3), "generation": self._run.generation, **line}
        with self._run.folder.metrics_file.open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(fields) + b"\n")
        return fields

    def log(self, fields: dict[str, Any], staleness: Sequence[int] = ()) -> None:
        """Add a line to the further forms. The attempt holds the lease.

        Args:
            fields: All fields of the line.
            staleness: Number of updates by their staleness, since the start of the attempt.

        Raises:
            OSError: One cannot be written.
        """
        for log in self._logs:
            log.add(fields, staleness)

    def thin_if_due(self) -> None:
        """Merge old lines of the file if it is time, and if this attempt still holds the lease at the end.

        Raises:
            OSError: The new file cannot be written, as on a full disk; the old one is unchanged.
            ConfigError: The lease cannot be read; the old file is unchanged.
        """
        now = time.time()
        # Do not wait for long if the clock was set back.
        if self._next_thinning - _THIN_S <= now < self._next_thinning:
            return
        self._next_thinning = now + _THIN_S
        path = self._run.folder.metrics_file
        if version_of(path)[1] <= self._most_bytes:
            thin_file(path, now, self._run.holds_lease)
            if self._run.holds_lease():
                for log in self._logs:
                    log.thinned()

    def close(self) -> None:
        """Complete the further forms at the end of the attempt. The attempt holds the lease.

        Raises:
            OSError: One cannot be written.
        """
        for log in self._logs:
            log.close()
