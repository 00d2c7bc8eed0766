"""Time until the values of the first layer are there after a step, with the server on another node.

A model of equal layers has the gradients of all of them, as after a backward pass. Ours: `Worker.push_pull`
with the first layer first. Baseline: pushes as backward completes gradients, the last layer first, each the
last push to its table in the clock, then the end of the clock, and a pull of the first layer.
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.bench.rank.network import WORKER
from mpips.bench.rank.ranks import BenchRanks, alternate
from mpips.model.optimizer import SGD
from mpips.model.table import DenseTable
from mpips.worker.worker import Worker

N_LAYERS = 20
_N, _N_QUICK = 1 << 20, 1 << 16  # values of a layer
_STEPS, _FIRST = 4, 1  # steps of a side, and how many of them do not count
Side = tuple[float, float]  # seconds until the first layer is there, and until all are


def layers(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure on two ranks; return findings on the worker's rank, None on the other. Collective."""
    n = _N_QUICK if options.quick else _N
    sides = alternate(options, ("by use", "by pushes"), lambda name: _session(ranks, name, n))
    if ranks.rank != WORKER:
        return None
    return Findings(
        comparisons=[
            Comparison(
                name=name,
                what=f"until {what}: {N_LAYERS} layers of {n:,} values, server on another node",
                unit="ms",
                ours=[1e3 * side[i] for side in sides["by use"]],
                baseline=[1e3 * side[i] for side in sides["by pushes"]],
                baseline_name="in the order of pushes, the last layer first",
            )
            for name, what, i in (
                ("priority", "the first layer's values are there", 0),
                ("priority_all", "all values are there", 1),
            )
        ]
    )


def _session(ranks: BenchRanks, name: str, n: int) -> Side | None:
    """Run one mpips session. Collective. Returns the side on workers, None elsewhere."""
    tables = [DenseTable(f"layer{i}", (n,), SGD(0.01)) for i in range(N_LAYERS)]
    by_use = name == "by use"
    side: Side | None = ranks.session(
        lambda w: _steps(w, n, by_use), tables, servers=1, timeout_s=120.0
    )
    return side


def _steps(worker: Worker, n: int, by_use: bool) -> Side:
    """Return the median seconds of a step until the first layer's values are there, and all. Blocks."""
    names = [f"layer{i}" for i in range(N_LAYERS)]
    gradients = {name: worker.allocate(n) for name in names}
    values = {name: np.empty(n, np.float32) for name in names}
    for i, gradient in enumerate(gradients.values()):
        gradient[...] = i
    first, whole = [], []
    for _ in range(_STEPS):
        start = time.perf_counter()
        if by_use:
            pulls = worker.push_pull(gradients, values)
            pulls.wait(names[0])
            first.append(time.perf_counter() - start)
            pulls.finish()
        else:
            for name in reversed(names):
                worker.table(name).push(gradients[name], closes=True)
            worker.clock()
            worker.table(names[0]).pull(values[names[0]])
            first.append(time.perf_counter() - start)
            for name in names[1:]:
                worker.table(name).pull(values[name])
        whole.append(time.perf_counter() - start)
    return median(first[_FIRST:]), median(whole[_FIRST:])
