"""Progress with every figure, and a clock for displays of it."""

from __future__ import annotations

from mpips.monitor.progress import Snapshot

FULL = Snapshot(0.421, 9, 20, 12345, 98765.4, 0.12345, 1.25, 2.5e9, 1.25e8, 3723.0)


class Time:
    """A clock that advances only when it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now
