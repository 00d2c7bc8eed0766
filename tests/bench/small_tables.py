"""Pulls of a model of many small tensors whose server is on another node: read together, and one by one.

Tables under BSP are read together (mpips.transport.batched_reads), tables under ASP one by one. Both are
pulled after each end of a clock, by one worker, which has pushed to each of them.
"""

from __future__ import annotations

import time

import numpy as np

from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.bench.rank.network import WORKER
from mpips.bench.rank.ranks import BenchRanks
from mpips.model.consistency import ASP, BSP
from mpips.model.optimizer import SGD
from mpips.model.table import DenseTable
from mpips.worker.worker import Worker, connection_of

N_TABLES = 160  # as a residual network of 50 layers has tensors
_N = 512  # values of a table
_CLOCKS, _FIRST = 20, 3  # clocks of a side, and how many of them do not count


def pulls(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure on two ranks; return findings on the worker's rank, None on the other. Collective."""
    sides: dict[str, list[float]] = {"together": [], "single": []}
    models = (("together", BSP()), ("single", ASP()))
    for _ in range(options.repetitions):
        for name, model in models:
            tables = [
                DenseTable(f"t{i}", (_N,), SGD(0.01), consistency=model) for i in range(N_TABLES)
            ]
            seconds: float | None = ranks.session(_pulls, tables, servers=1, timeout_s=120.0)
            if seconds is not None:
                sides[name].append(1e3 * seconds)
    if ranks.rank != WORKER:
        return None
    return Findings(
        comparisons=[
            Comparison(
                name="small_pulls",
                what=f"pulls of {N_TABLES} tables of {_N} values under BSP, server on another node",
                unit="ms",
                ours=sides["together"],
                baseline=sides["single"],
                baseline_name="under ASP, one by one",
            )
        ]
    )


def _pulls(worker: Worker) -> float:
    """Return the median seconds of pulling all tables once. Blocks."""
    handles = [worker.table(f"t{i}") for i in range(N_TABLES)]
    values, update = np.empty(_N, np.float32), np.ones(_N, np.float32)
    seconds = []
    for _ in range(_CLOCKS):
        for handle in handles:
            handle.push(update)
        worker.clock()
        # The last record is consumed when the server has ended the clock.
        connection_of(worker).flush()
        start = time.perf_counter()
        for handle in handles:
            handle.pull(values)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[_FIRST:]))
