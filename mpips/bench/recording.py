"""Measure the cost of `monitor.record` for a server that applies small pushes and pushes of rows.

As in journal.py two servers in one process alternate and receive the same records, one of them with a record
that its thread writes into a temporary folder. Only the server's work is timed. A worker's own entries, one
for each clock and pull, are less.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mpips import _native
from mpips.bench.journal import DIM, N_ROWS, ROWS, Side, alternate, push
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.model.consistency import ASP
from mpips.model.optimizer import SGD
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.record.files import FORMAT, RecordedTable, RecordHead
from mpips.record.writer import RecordFile
from mpips.server.recorded import RecordingServer

SMALL = 1024  # values of a small push: 4 KiB
_AT_ONCE = 16  # small pushes that are in the ring when the server drains it
_RECORD_MIB = 1024


class RecordedSide(Side):
    """A server of one table with a record, or without one, and its only worker's ring."""

    def __init__(self, table: Table, staging_bytes: int, file: Path | None, at_once: int) -> None:
        """`file`: of the record; None: there is no record. `at_once`: pushes before each drain."""
        super().__init__(table, False, staging_bytes)
        self._at_once = at_once
        self._record: RecordingServer | None = None
        if file is not None:
            kind = "embedding" if isinstance(table, EmbeddingTable) else "dense"
            tables = (RecordedTable(table.name, kind, "asp"),)
            head = RecordHead(
                format=FORMAT,
                role="server",
                index=0,
                n_servers=1,
                n_workers=1,
                tables=tables,
                start="new",
                fingerprint="",
            )
            self._record = RecordingServer(self.server, RecordFile(file, head, _RECORD_MIB))

    def seconds(self, write: Callable[[_native.RingWriter], None], pushes: int) -> float:
        """Return the seconds that the server needs for these pushes and for its record of them."""
        total, done = 0.0, 0
        while done < pushes:
            n = min(self._at_once, pushes - done)
            for _ in range(n):
                write(self.writer)
            start = time.perf_counter()
            self.core.drain(0.0, 0)
            if self._record is not None:
                self._record.poll()
            total += time.perf_counter() - start
            done += n
        return total

    def close(self) -> None:
        """End the record and remove the memory."""
        if self._record is not None:
            self._record.end({})
        self.regions.unlink()


def run(options: Options) -> Findings:
    """Measure `record_cost_4k` and `record_cost_rows`: seconds with a record / without."""
    found = Findings()
    rng = np.random.default_rng(3)
    update = rng.standard_normal(SMALL, np.float32)
    n = 256 if options.quick else 200_000
    dense = DenseTable("w", (SMALL,), optimizer=SGD(1e-3), consistency=ASP())

    def small(writer: _native.RingWriter) -> None:
        assert writer.push_dense(0, 0, update, None, 0) == SMALL

    _compare(found, "record_cost_4k", "pushes of 4 KiB", dense, small, n, _AT_ONCE, options)

    pushes = [np.unique(rng.integers(0, N_ROWS, ROWS)).astype(np.int64) for _ in range(64)]
    values = rng.standard_normal((ROWS, DIM), np.float32)
    rows = EmbeddingTable("e", DIM, optimizer=SGD(1e-3), consistency=ASP())
    at = [0]

    def of_rows(writer: _native.RingWriter) -> None:
        keys = pushes[at[0] // 2 % len(pushes)]
        at[0] += 1
        push(writer, keys, values[: keys.size])

    n = 16 if options.quick else 2048
    _compare(found, "record_cost_rows", "pushes of 4,096 rows", rows, of_rows, n, 1, options)
    return found


def _compare(
    found: Findings,
    name: str,
    what: str,
    table: Table,
    write: Callable[[_native.RingWriter], None],
    pushes: int,
    at_once: int,
    options: Options,
) -> None:
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as folder:
        sides = [
            RecordedSide(table, 1 << 12, file, at_once) for file in (Path(folder, "0.rec"), None)
        ]
        try:
            with_s, without_s = alternate((sides[0], sides[1]), write, pushes, options)
        finally:
            for side in sides:
                side.close()
    found.comparisons.append(
        Comparison(
            name=name,
            what=f"applying {what} with a record",
            unit="s",
            ours=with_s,
            baseline=without_s,
            baseline_name="without",
        )
    )
