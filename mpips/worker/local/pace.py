"""Inner steps by speed: how many of them a worker makes between two outer steps.

Dynamic local updates of B. Liu et al., "Asynchronous Local-SGD Training for Language Modeling", arXiv
2401.09135: worker w makes floor(v_w / v_max H) inner steps, where v_w is its speed and v_max that of the
fastest worker, so that all workers take about the same time between two outer steps.

A worker measures its speed between outer steps, without its waits. Its heartbeats tell the scheduler, whose
answers have the speed of the fastest worker. So a decision may be based on a speed that is a heartbeat old,
which changes the number of steps and nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from mpips.model.local_sgd import OuterSteps

if TYPE_CHECKING:
    from mpips.worker.data_plane import DataPlane


class Pace:
    """The speed of one worker and the length of its periods. Not thread-safe.

    Attributes:
        now: Returns the time in seconds, which only passes while the worker computes.
        fastest: Returns the speed of the fastest worker, inner steps per second; 0: not known.
    """

    def __init__(self, connection: DataPlane, times: OuterSteps) -> None:
        """`times`: as the job declares them; their steps are the most that a period has."""
        self._connection = connection
        self._most, self._least = times.steps, times.fragments
        self.now: Callable[[], float] = self._computing_s
        self.fastest: Callable[[], float] = lambda: connection.control.fastest
        self._begun: tuple[float, int] | None = None  # time and inner steps at `begin`
        self._speed = 0.0

    def _computing_s(self) -> float:
        return time.monotonic() - self._connection.clock_state.wait_s

    def begin(self, steps: int) -> None:
        """Begin to measure; the worker has made `steps` inner steps."""
        self._begun = self.now(), steps

    def end(self, steps: int) -> None:
        """Store the speed since `begin` for the next heartbeat."""
        if self._begun is None:
            return
        (begun, before), self._begun = self._begun, None
        seconds = self.now() - begun
        if seconds > 0 and steps > before:
            self._speed = self._connection.control.speed = (steps - before) / seconds

    def choose(self) -> int:
        """Return the inner steps of the next period."""
        fastest = max(self.fastest(), self._speed)
        if not self._speed:
            return self._most
        return max(self._least, math.floor(self._speed / fastest * self._most))
