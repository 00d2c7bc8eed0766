"""The time that a worker spends: waiting, pushing, pulling, in checkpoints. The rest is computation.

The native `WorkerClock` counts the time of pushes and pulls: of direct calls by itself, of others between
`begin` and `end_push` or `end_pull`. A wait inside a push or a pull counts as a wait.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from mpips import _native
from mpips.mpi.messages import Figures


class TimeSpent:
    """The seconds of one worker since its connection was made. The worker's thread alone uses it."""

    def __init__(self, clock: _native.WorkerClock) -> None:
        """Begin to count.

        Args:
            clock: The worker's clock, which counts waits and direct calls.
        """
        self._clock = clock
        self._began = time.monotonic()
        self._pull_s = self._snapshot_s = 0.0

    def fetched(self, seconds: float) -> None:
        """Count the time of a wait for rows as that of a pull."""
        self._pull_s += seconds

    def waited(self, seconds: float) -> None:
        """Count the time of a wait."""
        self._clock.wait_s += seconds

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Count the block as a cut, with all of its waits."""
        began, wait_s = time.monotonic(), self._clock.wait_s
        yield
        self._snapshot_s += time.monotonic() - began
        self._clock.wait_s = wait_s

    def own_s(self) -> float:
        """Return the seconds so far without those of waits, also for rows, and of cuts.

        Pulls of values that are there count: their time is measured in samples, so it would be wrong in a
        single clock.
        """
        waits_s = self._clock.wait_s + self._pull_s + self._snapshot_s
        return time.monotonic() - self._began - waits_s

    def add_to(self, figures: Figures) -> None:
        """Store the times in a worker's figures."""
        clock = self._clock
        figures.elapsed_s = time.monotonic() - self._began
        figures.wait_s = clock.wait_s
        figures.push_s = clock.push_s
        figures.pull_s = self._pull_s + clock.pull_s
        figures.snapshot_s = self._snapshot_s
