"""Notes on the clocks of the workers at the end of a job of `mpips.run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mpips.model.consistency import ASP, BSP
from mpips.model.table import Table
from mpips.worker.forgotten_clock import warning_at_end

_MOST_CLOCKS = 4  # of the workers, in a note


def clock_notes(statistics: Mapping[str, Any], tables: Sequence[Table]) -> list[str]:
    """Return sentences on workers that ended no clock, or ended at different clocks; mostly none.

    Args:
        statistics: Statistics of the job with the entries of all workers.
        tables: Tables of the job.
    """
    workers = statistics.get("workers", [])
    without: dict[str, list[int]] = {}
    for entry in workers:
        if found := entry.get("without_clock", ""):
            without.setdefault(found, []).append(entry["worker"])
    notes = [warning_at_end(named(indices), effect) for effect, indices in without.items()]
    if not notes and (ends := _different_ends(workers, tables)):
        notes.append(ends)
    return notes


def _different_ends(workers: Sequence[Mapping[str, Any]], tables: Sequence[Table]) -> str:
    """Return a note on workers that ended at different clocks; "" where that is usual.

    Under ASP workers have paces of their own, and with backup workers late ones skip clocks.
    """
    if all(isinstance(table.consistency, ASP) for table in tables):
        return ""
    if any(isinstance(t.consistency, BSP) and t.consistency.backup for t in tables):
        return ""
    by_clock: dict[int, list[int]] = {}
    for entry in workers:
        by_clock.setdefault(entry["clock"], []).append(entry["worker"])
    if len(by_clock) < 2:
        return ""
    ends = [f"{named(by_clock[clock])} at {clock}" for clock in sorted(by_clock)]
    if len(ends) > _MOST_CLOCKS:
        ends = [*ends[: _MOST_CLOCKS - 1], f"... and {ends[-1]}"]
    return (
        f"mpips: note: workers ended at different clocks: {', '.join(ends)}; the updates after the clock "
        "at which a worker ends are those of the others alone"
    )


def named(workers: Sequence[int]) -> str:
    """Return the name of workers: "worker 3", "workers 0 and 2", "workers 0 to 7", "workers 0, 2, ... and 9".

    `workers`: indices, ascending.
    """
    if len(workers) == 1:
        return f"worker {workers[0]}"
    if len(workers) > 2 and workers[-1] - workers[0] == len(workers) - 1:
        return f"workers {workers[0]} to {workers[-1]}"
    shown = [str(w) for w in workers[:-1]]
    if len(shown) > 3:
        shown = [*shown[:2], "..."]
    return f"workers {', '.join(shown)} and {workers[-1]}"
