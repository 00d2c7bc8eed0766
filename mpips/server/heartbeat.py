"""The figures of a server that its heartbeats carry."""

from __future__ import annotations

import time
from collections.abc import Sequence
from heapq import nlargest
from itertools import zip_longest
from operator import itemgetter

from mpips import _native
from mpips.model.table import EmbeddingTable, Table
from mpips.mpi.messages import Figures, TableRows
from mpips.process.memory import heap_bytes, shared_memory_bytes

_MOST_TABLES = 16  # tables in a heartbeat
_MOST_ROW_TABLES = 4  # embedding tables whose hottest rows are in a heartbeat,
_MOST_ROWS = 8  # and number of these rows of each


def figures(core: _native.ServerCore, tables: Sequence[Table], region_bytes: int) -> Figures:
    """Return a server's counts since its start, without rows. Cheap.

    Args:
        core: The native server.
        tables: All tables of the job.
        region_bytes: Size of the memory that workers see.
    """
    c = core.counters()
    f = Figures(at=time.monotonic(), records=c["records"], queue=core.queue())
    f.pushed_bytes, f.pulled_bytes = c["bytes_in"], c["bytes_out"]
    f.memory_bytes = region_bytes
    f.heap_bytes = heap_bytes()
    f.shm_used_bytes, f.shm_total_bytes = shared_memory_bytes()
    histogram: list[int] = []
    for i, table in enumerate(tables):
        stats = core.stats(i)
        f.tables[i] = stats["updates"]
        histogram = list(map(sum, zip_longest(histogram, stats["staleness"], fillvalue=0)))
        f.judged += stats["applied"] + stats["rejected"] + stats["late"]
        f.staleness_sum += sum(s * n for s, n in enumerate(stats["staleness"]))
        f.max_staleness = max(
            [f.max_staleness, *(s for s, n in enumerate(stats["staleness"]) if n)]
        )
        if isinstance(table, EmbeddingTable):
            f.memory_bytes += core.memory_bytes(i)
            if (table.admit or table.evict) and len(f.limits) < _MOST_TABLES:
                made, refused, evicted = (
                    stats[f"rows_{n}"] for n in ("made", "refused", "evicted")
                )
                f.limits[i] = made, refused, evicted, stats["rows_returned"]
            if table.storage and len(f.stored) < _MOST_TABLES:
                counts = core.storage_counts(i)
                f.stored[i] = counts["cold"], counts["promoted"], counts["demoted"]
    f.staleness = histogram[: max((s + 1 for s, n in enumerate(histogram) if n), default=0)]
    f.tables = dict(nlargest(_MOST_TABLES, f.tables.items(), key=itemgetter(1)))
    return f


def hot_rows(core: _native.ServerCore, n_tables: int) -> dict[int, TableRows]:
    """Return the accesses to rows of the busiest embedding tables over about the last minute.

    Args:
        core: The native server, which observes rows.
        n_tables: Number of tables of the job.
    """
    found = dict[int, TableRows]()
    for i in range(n_tables):
        counted = core.hot_rows(i, _MOST_ROWS)
        if counted is not None and counted[0] + counted[1] > 0:
            rows = [(key, round(a, 3), round(b, 3)) for key, a, b in counted[2]]
            found[i] = TableRows(round(counted[0], 3), round(counted[1], 3), rows)
    if len(found) <= _MOST_ROW_TABLES:
        return found
    busiest = nlargest(
        _MOST_ROW_TABLES, found.items(), key=lambda t: t[1].pulls_per_s + t[1].pushes_per_s
    )
    return dict(busiest)
