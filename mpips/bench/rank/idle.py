"""Measure the CPU time that the scheduler and the servers use while the worker sleeps."""

from __future__ import annotations

import os
import time

import numpy as np

import mpips
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Figure, Findings
from mpips.bench.rank.processes import cpu_seconds
from mpips.bench.rank.ranks import BenchRanks
from mpips.worker.worker import Worker

N_SERVERS = 2
_SETTLE_S = 0.5


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure all processes from the worker; return findings on its rank, None elsewhere. Collective."""
    pids = ranks.comm.allgather(os.getpid())
    seconds = (1.0 if options.quick else 10.0) / options.repetitions

    def main(worker: Worker) -> list[list[float]]:
        # Use the table and every server once; then let them become idle.
        table = worker.table("w")
        for _ in range(20):
            table.push(np.ones(table.shape, np.float32))
            worker.clock()
            table.pull()
        time.sleep(_SETTLE_S)
        rows = []
        for _ in range(options.repetitions):
            before, start = [cpu_seconds(pid) for pid in pids[: 1 + N_SERVERS]], time.monotonic()
            time.sleep(seconds)
            took = time.monotonic() - start
            rows.append(
                [(cpu_seconds(pid) - was) / took for pid, was in zip(pids, before, strict=False)]
            )
        return rows

    rows = ranks.session(main, [mpips.DenseTable("w", (4096,))], servers=N_SERVERS)
    return _findings(rows) if rows is not None else None


def _findings(rows: list[list[float]]) -> Findings:
    found = Findings()
    names = ["scheduler", *(f"server_{i}" for i in range(N_SERVERS))]
    for i, name in enumerate(names):
        found.figures.append(
            Figure(
                name=f"idle_cpu_{name}",
                what=f"of the idle {name.replace('_', ' ')} while workers sleep",
                unit="cores",
                values=[row[i] for row in rows],
            )
        )
    found.comparisons.append(
        Comparison(
            name="idle_cpu",
            what="the busiest of scheduler and servers while workers sleep",
            unit="cores",
            ours=[max(row) for row in rows],
            baseline=[1.0] * len(rows),
            baseline_name="one core",
        )
    )
    return found
