"""The difference between the clocks of two processes, from round trips between them.

A rank sends a heartbeat at t0 on its own clock, the scheduler answers at time s on its clock, and the answer
is taken at t1. The difference s - (t0 + t1) / 2 is wrong by at most half of the round trip (Cristian's
method). Clocks drift, so only the last round trips count, and of these the shortest.
"""

from __future__ import annotations

from collections import deque

_KEPT = 64  # round trips


class ClockOffset:
    """Estimates how far the scheduler's monotonic clock is ahead of this process's."""

    def __init__(self) -> None:
        """Begin without round trips."""
        self._trips: deque[tuple[int, int]] = deque(maxlen=_KEPT)  # duration and difference, ns

    def add(self, sent_ns: int, answered_ns: int, taken_ns: int) -> None:
        """Add a round trip.

        Args:
            sent_ns: This process's clock when it sent the message.
            answered_ns: The scheduler's clock when it answered; 0: unknown.
            taken_ns: This process's clock when it took the answer.
        """
        if answered_ns and taken_ns >= sent_ns > 0:
            self._trips.append((taken_ns - sent_ns, answered_ns - (sent_ns + taken_ns) // 2))

    @property
    def best(self) -> tuple[int, int]:
        """Difference to add to this process's clock, and its greatest error, ns; (0, -1): not known."""
        if not self._trips:
            return 0, -1
        duration, offset = min(self._trips)
        return offset, (duration + 1) // 2
