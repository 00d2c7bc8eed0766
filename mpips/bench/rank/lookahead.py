"""Steps of a worker whose server is on another node, with and without a look-ahead of 8 batches.

A step pulls the rows of a batch, sums the rows of each sample's bag and computes their gradient, pushes it,
and ends the clock. Keys follow Zipf's law with exponent 1.05 over ten million keys. Rows are pulled in
float32; `MODELS` says in which codec their gradients are pushed. The loop computes almost nothing beside, so
only the push hides the transfer of the next rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mpips
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.bench.rank.ranks import BenchRanks
from mpips.model.consistency import BSP, SSP, Consistency
from mpips.model.optimizer import SGD
from mpips.model.table import EmbeddingTable
from mpips.worker.worker import Worker

Int64 = NDArray[np.int64]
WORKER = 1  # rank
DEPTH = 8
DIM = 64
_EXPONENT, _N_KEYS = 1.05, 10_000_000
_SAMPLES, _BAG = 512, 26  # of a batch
_SAMPLES_QUICK = 32
_WARM, _STEPS = 3, 20
# name -> consistency, codec of pushes
MODELS: dict[str, tuple[Consistency, str]] = {
    "bsp": (BSP(), "fp16"),
    "ssp": (SSP(8), "fp16"),
    "bsp_float32": (BSP(), "none"),
    "ssp_float32": (SSP(8), "none"),
}


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure on two ranks; return findings on the worker's rank, None on the other. Collective."""
    batches = batches_of(_SAMPLES_QUICK if options.quick else _SAMPLES)
    sides: dict[tuple[str, int], list[float]] = {}
    for _ in range(options.repetitions):
        for name in MODELS:
            for depth in (DEPTH, 0):
                seconds = session(ranks, name, batches, depth)
                if seconds is not None:
                    sides.setdefault((name, depth), []).append(seconds)
    if ranks.rank != WORKER:
        return None
    size = len(np.unique(batches[0]))
    return Findings(
        comparisons=[
            Comparison(
                name=f"lookahead_1g_{name}",
                what=f"{consistency.name.upper()} step of about {size:,} rows of {DIM}, one worker, server "
                f"on another node, pushes in {'float32' if push == 'none' else push}, look-ahead {DEPTH}",
                unit="s",
                ours=sides[name, DEPTH],
                baseline=sides[name, 0],
                baseline_name="no look-ahead",
            )
            for name, (consistency, push) in MODELS.items()
        ]
    )


def batches_of(samples: int) -> list[Int64]:
    """Return the keys of all steps, int64, shape (samples, bag), the same in every session."""
    weights = np.arange(1, _N_KEYS + 1, dtype=np.float64) ** -_EXPONENT
    edges = np.cumsum(weights / weights.sum())
    rng = np.random.default_rng(1)
    shape = (_WARM + _STEPS, samples, _BAG)
    return list(np.searchsorted(edges, rng.random(shape)).astype(np.int64))


def session(ranks: BenchRanks, name: str, batches: list[Int64], depth: int) -> float | None:
    """Run one mpips session. Collective. Returns the seconds of a step on workers, None elsewhere."""
    consistency, push = MODELS[name]
    table = EmbeddingTable("e", DIM, SGD(0.01), consistency, compression=push)
    seconds: float | None = ranks.session(
        lambda w: steps(w, batches, depth), [table], servers=1, timeout_s=120.0
    )
    return seconds


def steps(worker: Worker, batches: list[Int64], depth: int) -> float:
    """Make steps; return seconds of one. Blocks."""
    handle = worker.table("e")
    loop: Iterable[Any] = batches
    if depth:
        loop = mpips.lookahead(batches, keys=lambda keys: keys, worker=worker, depth=depth)
    start = 0.0
    for number, keys in enumerate(loop):
        if number == _WARM:
            worker.flush()
            start = time.perf_counter()
        flat = keys.reshape(-1)
        rows = handle.pull(flat)
        # The loss is half the squared length of each bag's sum; a push adds the rows of equal keys.
        sums = rows.reshape(*keys.shape, DIM).sum(axis=1)
        gradient = np.repeat(sums, keys.shape[1], axis=0)
        handle.push(flat, gradient)
        worker.clock()
    worker.flush()
    return (time.perf_counter() - start) / _STEPS
