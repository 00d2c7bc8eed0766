"""The progress of a worker until it is sent to the scheduler, at most once per interval."""

from __future__ import annotations

import time
from collections.abc import Callable

from mpips.mpi.messages import Report


class PendingReport:
    """Adds up the progress of one worker. Nothing is lost: `flush` sends what has not been sent yet.

    A report is about one epoch: the first report of the next epoch sends the one before at once.
    """

    def __init__(self, interval_s: float, send: Callable[[Report], None]) -> None:
        """Begin without progress.

        Args:
            interval_s: Least seconds between two reports; 0: `add` sends each at once.
            send: Sends a report; returns at once.
        """
        self._interval_s = interval_s
        self._send = send
        self._pending: Report | None = None
        self._next = 0.0  # monotonic s from which a report is due

    def add(self, report: Report) -> None:
        """Add progress, and send a report if one is due."""
        before = self._pending
        if before is not None and before.epoch != report.epoch:
            self.flush()
            before = None
        if before is not None:
            report.add(before)
        self._pending = report
        self.poll(time.monotonic())

    def poll(self, now: float) -> None:
        """Send the pending report if it is due. Cheap, so call it often.

        Args:
            now: Monotonic time, seconds.
        """
        if self._pending is not None and now >= self._next:
            self._next = now + self._interval_s
            self.flush()

    def flush(self) -> None:
        """Send the pending report now, if there is one."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._send(pending)
