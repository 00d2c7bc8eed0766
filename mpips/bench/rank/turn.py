"""What it costs ranks to wait for each other where they outnumber the cores."""

from __future__ import annotations

import time

import numpy as np

import mpips
from mpips.bench.launching import Options
from mpips.bench.measure import Figure, Findings
from mpips.bench.rank.ranks import BenchRanks
from mpips.worker.worker import Worker


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Under BSP, half of the ranks servers; microseconds of a step, on worker 0's rank."""
    tables = [mpips.DenseTable("dense", (1024,), mpips.SGD(0.01))]
    steps = 20 if options.quick else 1000

    def main(worker: Worker) -> float:
        _steps(worker, steps // 10)
        worker.barrier("warm")
        start = time.perf_counter()
        _steps(worker, steps)
        return (time.perf_counter() - start) / steps

    outcome = mpips.run(
        main,
        list(tables),
        comm=ranks.comm,
        verbose=False,
        servers=(ranks.size - 1) // 2,
        timeout_s=60.0,
    )
    if not outcome.is_first_worker:
        return None
    value = 1e6 * outcome.value
    what = f"a step that computes nothing, of {ranks.size} ranks that take turns on the cores"
    return Findings(figures=[Figure(name="turn", what=what, unit="us", values=[value])])


def _steps(worker: Worker, n: int) -> None:
    dense = worker.table("dense")
    update = np.full(1024, 1e-3, np.float32)
    for _ in range(n):
        dense.pull()
        dense.push(update)
        worker.clock()
    worker.flush()
