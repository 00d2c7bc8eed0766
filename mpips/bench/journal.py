"""Measure the cost of a journal: the share of its apply throughput that a server needs to survive SIGKILL.

Two servers in one process have the same tables, one with a journal and one without. They alternate and
receive the same records. Only the server's work is timed: records are written beforehand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from mpips import _native
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Figure, Findings
from mpips.model.consistency import ASP
from mpips.model.optimizer import SGD, Adam, Optimizer
from mpips.model.placement import place
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.server.durability import Durability
from mpips.server.server import Server
from mpips.transport.region import Regions, new_token

BAR = 0.15
MIB = 1 << 20
SLOTS, SLOT_BYTES = 32, 128 << 10
REPETITION_BYTES = 256 * MIB  # applied in one repetition, approximately
DIM = 32
ROWS = 4096  # rows of a push: 528 KiB in five records
N_ROWS = 1 << 18  # rows of the table


class Side:
    """A server of one table and its only worker's ring."""

    def __init__(self, table: Table, journal: bool, staging_bytes: int) -> None:
        self.regions = Regions(new_token(), shared=True)
        placement = place([table], 1, 1, SLOTS, SLOT_BYTES)
        durability = Durability(journal=journal)
        self.server = Server(0, [table], placement, self.regions, 0, True, None, durability)
        self.core = self.server.core
        if journal:
            self.server.begin_journal()
        self.staging = self.regions.create("w0", staging_bytes)
        self.core.set_staging(0, self.staging)
        layout = placement.layouts[0]
        self.writer = _native.RingWriter(
            self.server.region, layout.mailbox_offset(0), layout.geometry, 0, 0, False, 1
        )

    def seconds(self, write: Callable[[_native.RingWriter], None], pushes: int) -> float:
        """Return the seconds that the server needs to apply `pushes` pushes, each made by `write`."""
        total = 0.0
        for _ in range(pushes):
            write(self.writer)
            start = time.perf_counter()
            self.core.drain(0.0, 0)
            total += time.perf_counter() - start
        return total


@contextmanager
def both(table: Table, staging_bytes: int) -> Iterator[tuple[Side, Side]]:
    """Make two servers with the same table, the first with a journal and the second without."""
    sides = Side(table, True, staging_bytes), Side(table, False, staging_bytes)
    try:
        yield sides
    finally:
        for side in sides:
            side.regions.unlink()


def run(options: Options) -> Findings:
    """Measure each load; `scratch_cost` is the share of the throughput that the worst one loses.

    The loads are dense pushes of 4 and 64 MiB and pushes of rows, each with SGD and with Adam.
    """
    found = Findings()
    costs: dict[str, list[float]] = {}
    for label, size in {"4m": 4 * MIB, "64m": 64 * MIB}.items():
        if options.quick and label == "64m":
            continue
        for optimizer in (SGD(1e-3), Adam(1e-4)):
            name = f"{optimizer.name}_{label}"
            costs[name] = found_cost(found, name, *_dense(optimizer, size, options))
    for rows_optimizer in (SGD(1e-3), Adam(1e-4)):
        name = f"rows_{rows_optimizer.name}"
        costs[name] = found_cost(found, name, *_rows(rows_optimizer, options))
    worst = max(costs, key=lambda name: float(np.median(costs[name])))
    found.figures.append(
        Figure(
            name="scratch_cost",
            what=f"share of apply throughput that a journal costs, worst of {len(costs)} ({worst})",
            unit="",
            values=costs[worst],
        )
    )
    cost = found.figures[-1].median
    verdict = "met" if cost <= BAR else "NOT met"
    found.notes.append(f"scratch_cost: {cost:.3f} ({worst}), bar <= {BAR:g} {verdict}")
    return found


def found_cost(
    found: Findings, name: str, with_s: list[float], without_s: list[float]
) -> list[float]:
    """Add the comparison; return the share that the journal costs, by repetition.

    Args:
        found: Receives the comparison.
        name: Name of the load.
        with_s: Seconds with a journal, by repetition.
        without_s: Seconds without, by repetition.
    """
    comparison = Comparison(
        name=f"scratch_{name}",
        what=f"applying pushes ({name.replace('_', ' ')}) with a journal",
        unit="1/s",
        ours=[1 / s for s in with_s],
        baseline=[1 / s for s in without_s],
        baseline_name="without",
    )
    found.comparisons.append(comparison)
    return [1 - ratio for ratio in comparison.ratios]


def _dense(optimizer: Optimizer, n_bytes: int, options: Options) -> tuple[list[float], list[float]]:
    n = n_bytes // 4
    update = np.random.default_rng(1).standard_normal(n, np.float32)
    table = DenseTable("w", (n,), optimizer=optimizer, consistency=ASP())
    with both(table, n_bytes) as sides:
        for side in sides:
            side.staging.view(0, n_bytes, True)[:] = update.view(np.uint8)

        def write(writer: _native.RingWriter) -> None:
            assert writer.push_staged(0, 0, 0, None, n)

        return alternate(sides, write, max(1, REPETITION_BYTES // n_bytes), options)


def _rows(optimizer: Optimizer, options: Options) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(2)
    pushes = [
        (
            np.unique(rng.integers(0, N_ROWS, ROWS)).astype(np.int64),
            rng.standard_normal((ROWS, DIM), np.float32),
        )
        for _ in range(64)
    ]
    table = EmbeddingTable("e", DIM, optimizer=optimizer, consistency=ASP())
    with both(table, 1 << 12) as sides:
        for side in sides:
            keys = np.arange(N_ROWS, dtype=np.int64)
            for part in np.array_split(keys, 64):
                push(side.writer, part, np.zeros((part.size, DIM), np.float32))
                side.core.drain(0.0, 0)
        at = [0]

        def write(writer: _native.RingWriter) -> None:
            keys, rows = pushes[at[0] // 2 % len(pushes)]
            at[0] += 1
            push(writer, keys, rows[: keys.size])

        return alternate(sides, write, 256, options)


def push(writer: _native.RingWriter, keys: np.ndarray, rows: np.ndarray) -> None:
    """Write the records of a push of rows, for which the ring must have room."""
    assert writer.push_rows(0, 0, keys, rows, None, 0) == keys.size


def alternate(
    sides: tuple[Side, Side],
    write: Callable[[_native.RingWriter], None],
    pushes: int,
    options: Options,
) -> tuple[list[float], list[float]]:
    """Return seconds by repetition with a journal and without."""
    for side in sides:
        side.seconds(write, 2)
    times: tuple[list[float], list[float]] = ([], [])
    for repetition in range(options.repetitions):
        # Alternate the two in small groups and swap their order, so that drift affects both alike.
        sums = [0.0, 0.0]
        groups = min(pushes, 8)
        for group in range(groups):
            order = (0, 1) if (repetition + group) % 2 else (1, 0)
            for i in order:
                sums[i] += sides[i].seconds(write, pushes // groups)
        for i, total in enumerate(sums):
            times[i].append(total)
    return times
