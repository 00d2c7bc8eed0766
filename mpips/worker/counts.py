"""A worker's pushes and bytes, over its channels to servers, its replicated tables and its group."""

from __future__ import annotations

import time
from collections.abc import Sequence

from mpips.mpi.messages import Figures
from mpips.process.memory import heap_bytes
from mpips.transport.channel import Channel
from mpips.worker.table_part import TablePart

# Servers up to which heartbeats have bytes by server: with n ranks that is a part of n * n numbers.
_MOST_LINKS = 64


def outcomes(channels: Sequence[Channel], parts: Sequence[TablePart]) -> dict[str, int]:
    """Return the numbers of pushes by outcome; the greatest of `max_staleness`."""
    total: dict[str, int] = {}
    for channel in channels:
        for key, value in channel.writer.counters().items():
            merge = max if key == "max_staleness" else int.__add__
            total[key] = merge(total.get(key, 0), value)
    for part in parts:
        part.count(total)
    return total


def figures(channels: Sequence[Channel], parts: Sequence[TablePart], samples: int) -> Figures:
    """Return the counts as last read from the servers. Cheap.

    Args:
        channels: The worker's channel to each server.
        parts: The parts of its tables, whose pushes no ring counts.
        samples: Samples that the worker has reported.
    """
    f = Figures(at=time.monotonic(), samples=samples, heap_bytes=heap_bytes())
    for channel in channels:
        writer = channel.counting_writer
        c = writer.known_counters()
        if len(channels) <= _MOST_LINKS:
            f.links.append((c["pushed_bytes"], c["pulled_bytes"]))
        f.records += writer.next_sequence
        f.queue += writer.known_queue
        f.pushed_bytes += c["pushed_bytes"]
        f.pulled_bytes += c["pulled_bytes"]
        f.push_saved_bytes += c["push_saved_bytes"]
        f.pull_saved_bytes += c["pull_saved_bytes"]
        f.judged += c["applied"] + c["rejected"] + c["late"]
        f.staleness_sum += c["staleness_sum"]
        f.max_staleness = max(f.max_staleness, c["max_staleness"])
    for part in parts:
        part.add_figures(f)
    return f
