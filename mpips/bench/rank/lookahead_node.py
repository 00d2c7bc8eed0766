"""Steps of two workers of a node, server on another one, with look-aheads that share rows and without.

Steps, keys and codecs are those of mpips.bench.rank.lookahead ("bag"); the keys of the two workers are
different draws. The bytes are those that the interface of the workers' node has sent and received. A third
worker, on the server's node, only ends its clocks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import mpips
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.bench.rank.alternating import alternate
from mpips.bench.rank.lookahead import DEPTH, DIM, bag_step, keys_of
from mpips.bench.rank.network import Side, measured
from mpips.bench.rank.ranks import BenchRanks
from mpips.model.consistency import BSP, SSP, Consistency
from mpips.model.optimizer import SGD
from mpips.model.table import EmbeddingTable
from mpips.worker.embedding import EmbeddingHandle
from mpips.worker.worker import Worker

Int64 = NDArray[np.int64]

MODELS: dict[str, Consistency] = {"bsp": BSP(), "ssp": SSP(8)}
N_WORKERS = 2
FIRST = 3  # rank of the first worker
_SHARED, _OWN, _NONE = "shared", "own", "none"
_WARM, _STEPS = 8, 16
_SAMPLES, _SAMPLES_QUICK = 512, 32  # of a batch


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure on five ranks; return findings on one rank, None on others. Collective."""
    samples = _SAMPLES_QUICK if options.quick else _SAMPLES
    batches = [keys_of(_WARM + _STEPS, samples, seed) for seed in range(N_WORKERS)]
    sides = alternate(
        options,
        [(model, how) for model in MODELS for how in (_SHARED, _OWN, _NONE)],
        lambda side: session(ranks, MODELS[side[0]], side[1], batches),
    )
    if ranks.rank != FIRST:
        return None
    return Findings(
        comparisons=[
            Comparison(
                name=f"lookahead_{name}_{model}",
                what=f"{MODELS[model].name.upper()} step of about {len(np.unique(batches[0][0])):,} rows of "
                f"{DIM}, {N_WORKERS} workers of a node, server elsewhere, look-ahead {DEPTH}, rows shared",
                unit=unit,
                ours=[side[i] / scale for side in sides[model, _SHARED]],
                baseline=[side[i] / scale for side in sides[model, other]],
                baseline_name=text,
            )
            for model in MODELS
            for name, other, text, i, unit, scale in (
                ("node_bytes", _OWN, "each worker reads for itself", 1, "MB", 1e6),
                ("node_1g", _OWN, "each worker reads for itself", 0, "s", 1.0),
                ("pair_1g", _NONE, "no look-ahead", 0, "s", 1.0),
            )
        ]
    )


def session(
    ranks: BenchRanks, consistency: Consistency, how: str, batches: list[list[Int64]]
) -> Side | None:
    """Run one mpips session. Collective. Returns the side on workers, None elsewhere."""
    side: Side | None = ranks.session(
        lambda w: steps(w, batches[w.index - 1] if w.index else [], 0 if how == _NONE else DEPTH),
        [EmbeddingTable("e", DIM, SGD(0.01), consistency, compression="fp16")],
        servers=1,
        timeout_s=120.0,
        lookahead_mib=16 if how == _SHARED else 0,
    )
    return side


def steps(worker: Worker, batches: list[Int64], depth: int) -> Side:
    """Make steps, with a batch each or without any; return seconds and bytes of one. Blocks."""
    handle = worker.table("e")
    assert isinstance(handle, EmbeddingHandle)
    loop = iter(batches)
    if depth:
        loop = mpips.lookahead(batches, keys=lambda keys: keys, worker=worker, depth=depth)

    def step() -> None:
        if batches:
            bag_step(handle, next(loop))
        worker.clock()

    for _ in range(_WARM):
        step()
    return measured(worker, step, _STEPS)
