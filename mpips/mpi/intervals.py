"""Intervals of the messages to the scheduler; they grow with the number of ranks.

Every rank computes them from the number of ranks, so no message has to carry them. Up to 500 ranks each of
them sends a heartbeat every second. From there on the scheduler receives 500 heartbeats and at most 500
progress reports a second, however many ranks there are.

A longer interval delays no detection of a failed rank: the scheduler measures its silence from its last
message. The failure of the scheduler is detected equally early: ranks send at different times within the
interval, and the rank whose heartbeat is the first to stay without an answer ends the job.
"""

from __future__ import annotations

_PER_S = 500.0  # messages of one kind that the scheduler receives from all ranks, per second
_HEARTBEAT_S = 1.0  # s, shortest interval of a rank's heartbeats, unless the timeout is very short
_TIMEOUT_SHARE = 1 / 8  # longest interval of heartbeats, as a share of the timeout
_REPORT_S = (
    0.25  # s; a shorter interval is not worth while, because workers report four times a second
)


def heartbeat_interval_s(n_ranks: int, timeout_s: float) -> float:
    """Return the seconds between two heartbeats of a rank.

    Args:
        n_ranks: Number of ranks of the job.
        timeout_s: Timeout of the job, seconds.
    """
    return min(max(_HEARTBEAT_S, n_ranks / _PER_S), timeout_s * _TIMEOUT_SHARE)


def report_interval_s(n_ranks: int) -> float:
    """Return the least seconds between two progress reports of a worker; 0: each is sent at once.

    Args:
        n_ranks: Number of ranks of the job.
    """
    interval_s = n_ranks / _PER_S
    return interval_s if interval_s > _REPORT_S else 0.0
