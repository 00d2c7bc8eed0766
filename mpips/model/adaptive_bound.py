"""The bound of SSP("auto"): computed from the times that workers need for a clock.

After Zhao et al., "Dynamic Stale Synchronous Parallel Distributed Training for Deep Learning", ICDCS 2019.
There a server decides how many clocks the fastest worker may go on. It predicts the next pushes of the
fastest and of the slowest worker from their last intervals, and chooses the number after which the fastest
worker waits least for a push of the slowest.

Here a decision becomes valid at the same clock for all workers (native/src/server/server_bound.cpp), which is
up to max + 2 clocks later. So it cannot use where the two workers are now: it starts from the moment at which
both begin a clock, when the fastest worker ends that clock. The intervals are means since the last decision,
without the waits that the bound itself has caused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# A greater bound must spare the fastest worker a longer wait than this, as a share of its clock. So an even
# cluster, whose times differ by chance, stays at bound 0.
TOLERANCE = 0.25


@dataclass(frozen=True)
class Interval:
    """The time that a worker needs for a clock, without waits for others.

    Attributes:
        worker: Index of the worker.
        seconds: Mean time.
    """

    worker: int
    seconds: float


@dataclass(frozen=True)
class BoundChoice:
    """A choice of the bound.

    Attributes:
        bound: Clocks that a worker may be ahead of the slowest one.
        reason: The measurement behind it, for people.
    """

    bound: int
    reason: str


def extra_clocks(
    fast_push_s: float,
    fast_s: float,
    slow_push_s: float,
    slow_s: float,
    most: int,
    tolerance: float = 0.0,
) -> int:
    """Return how many clocks the fastest worker may go on: algorithm 2 of DSSP.

    The fastest worker pushes at fast_push_s + r fast_s, and the slowest one at slow_push_s + (k + 1) slow_s,
    for r and k from 0 to `most`. The result is the least r with the shortest distance to the nearest push of
    the slowest worker.

    Args:
        fast_push_s: Time of the newest push of the fastest worker.
        fast_s: Seconds between two of its pushes, more than 0.
        slow_push_s: Time of the newest push of the slowest worker.
        slow_s: Seconds between two of its pushes, more than 0.
        most: Greatest result.
        tolerance: The least r wins whose distance is longer than the shortest one by at most this share of
            `fast_s`. 0: as in the paper.
    """

    def distance(r: int) -> float:
        at = fast_push_s + r * fast_s
        before = (
            int((at - slow_push_s) / slow_s) - 1
        )  # number of the slowest worker's push before it
        near = (min(max(k, 0), most) for k in (before, before + 1))
        return min(abs(slow_push_s + (k + 1) * slow_s - at) for k in near)

    distances = [distance(r) for r in range(most + 1)]
    enough = min(distances) + tolerance * fast_s
    return next(r for r, wait in enumerate(distances) if wait <= enough)


def choose_bound(intervals: Sequence[Interval], most: int) -> BoundChoice:
    """Return the bound for workers that need these times for a clock.

    Args:
        intervals: Those of two workers or more.
        most: Greatest bound.
    """
    fast = min(intervals, key=lambda i: i.seconds)
    slow = max(intervals, key=lambda i: i.seconds)
    bound = 0
    if fast.seconds > 0:
        bound = extra_clocks(fast.seconds, fast.seconds, 0.0, slow.seconds, most, TOLERANCE)
    elif slow.seconds > 0:
        bound = most
    reason = (
        f"worker {fast.worker} needs {1e3 * fast.seconds:.4g} ms for a clock, worker {slow.worker} "
        f"{1e3 * slow.seconds:.4g} ms"
    )
    return BoundChoice(bound, reason)
