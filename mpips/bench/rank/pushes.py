"""Measure pushes of 4 KiB (ASP, dense) per second into one server; all other ranks but one are workers."""

from __future__ import annotations

import time

import numpy as np

import mpips
from mpips.bench.launching import Options
from mpips.bench.measure import Figure, Findings
from mpips.bench.rank.ranks import BenchRanks
from mpips.worker.worker import Worker

_FLOATS = 1024


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Push from every worker; return applied pushes per second on worker 0's rank. Collective."""
    total = 4_000 if options.quick else 120_000

    def main(worker: Worker) -> float:
        table = worker.table("w")
        update = np.full(_FLOATS, 1e-6, np.float32)
        each = total // worker.n_workers
        for _ in range(each // 10):
            table.push(update)
        worker.flush()
        worker.barrier("warm")
        start = time.perf_counter()
        for _ in range(each):
            table.push(update)
        worker.flush()
        seconds = time.perf_counter() - start
        parts = worker.gather("rates", repr(seconds).encode(), everyone=False)
        # All workers start together; the slowest one ends the measurement.
        return each * worker.n_workers / max(float(part) for part in parts) if parts else 0.0

    table = mpips.DenseTable("w", (_FLOATS,), mpips.SGD(0.01), mpips.ASP())
    rate = ranks.session(main, [table], servers=1)
    if not rate:
        return None
    what = f"pushes of 4 KiB from {ranks.size - 2} workers"
    return Findings(figures=[Figure(name="rate", what=what, unit="pushes/s", values=[rate])])
