"""Programs of the suite `links`: steps with and without a look-ahead of 8 batches, server on another node.

A step pulls the rows of a batch, computes their gradient, pushes it, and ends the clock. Keys follow Zipf's
law with exponent 1.05 over ten million keys. Rows are pulled in float32; `MODELS` says in which codec their
gradients are pushed, and what a step computes. "bag" sums the rows of each sample's bag, which is almost
nothing, so only the push hides the transfer of the next rows. "fm" computes the loss of a factorization
machine and its gradient, with the interactions of the task `fm`.

`one_worker` has a worker without others on its node. `two_workers` has two workers of a node, with
look-aheads that share rows and without; the keys of the two are different draws, and a third worker, on the
server's node, only ends its clocks. The bytes are those that the interface of the workers' node has sent and
received.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

import mpips
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.bench.rank.network import Side, measured
from mpips.bench.rank.ranks import BenchRanks, alternate
from mpips.data.dataset import SparseBatch
from mpips.model.consistency import BSP, SSP, Consistency
from mpips.model.optimizer import SGD
from mpips.model.table import EmbeddingTable
from mpips.tasks.features import Entries, Plans
from mpips.tasks.fm import factor_gradient, interactions
from mpips.tasks.losses import logistic_loss
from mpips.worker.embedding import EmbeddingHandle
from mpips.worker.worker import Worker

Int64 = NDArray[np.int64]
WORKER = 1  # rank
DEPTH = 8
DIM = 64
_EXPONENT, _N_KEYS = 1.05, 10_000_000
_SAMPLES, _BAG = 512, 26  # of a batch
_SAMPLES_QUICK = 32
_WARM, _STEPS = 3, 20
PAIR: dict[str, Consistency] = {"bsp": BSP(), "ssp": SSP(8)}
N_WORKERS = 2
FIRST = 3  # rank of the first of the two workers
_SHARED, _OWN, _NONE = "shared", "own", "none"
_PAIR_WARM, _PAIR_STEPS = 8, 16
_PLANS = Plans()
# name -> consistency, codec of pushes, what a step computes
MODELS: dict[str, tuple[Consistency, str, str]] = {
    "bsp": (BSP(), "fp16", "bag"),
    "ssp": (SSP(8), "fp16", "bag"),
    "bsp_float32": (BSP(), "none", "bag"),
    "ssp_float32": (SSP(8), "none", "bag"),
    "fm_bsp": (BSP(), "fp16", "fm"),
    "fm_ssp": (SSP(8), "fp16", "fm"),
}


def one_worker(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure on two ranks; return findings on the worker's rank, None on the other. Collective."""
    batches = batches_of(_SAMPLES_QUICK if options.quick else _SAMPLES)
    sides = alternate(
        options,
        [(name, depth) for name in MODELS for depth in (DEPTH, 0)],
        lambda side: session(ranks, side[0], batches, side[1]),
    )
    if ranks.rank != WORKER:
        return None
    size = len(np.unique(batches[0]))
    return Findings(
        comparisons=[
            Comparison(
                name=f"lookahead_1g_{name}",
                what=f"{consistency.name.upper()} step of about {size:,} rows of {DIM} ({model}), one "
                f"worker, server on another node, pushes in {'float32' if push == 'none' else push}, "
                f"look-ahead {DEPTH}",
                unit="s",
                ours=sides[name, DEPTH],
                baseline=sides[name, 0],
                baseline_name="no look-ahead",
            )
            for name, (consistency, push, model) in MODELS.items()
        ]
    )


def batches_of(samples: int) -> list[Int64]:
    """Return the keys of all steps, int64, shape (samples, bag), the same in every session."""
    return keys_of(_WARM + _STEPS, samples, 1)


def keys_of(n_steps: int, samples: int, seed: int) -> list[Int64]:
    """Return the keys of each step, int64, shape (samples, bag)."""
    weights = np.arange(1, _N_KEYS + 1, dtype=np.float64) ** -_EXPONENT
    edges = np.cumsum(weights / weights.sum())
    rng = np.random.default_rng(seed)
    shape = (n_steps, samples, _BAG)
    return list(np.searchsorted(edges, rng.random(shape)).astype(np.int64))


def session(ranks: BenchRanks, name: str, batches: list[Int64], depth: int) -> float | None:
    """Run one mpips session. Collective. Returns the seconds of a step on workers, None elsewhere."""
    consistency, push, model = MODELS[name]
    table = EmbeddingTable("e", DIM, SGD(0.01), consistency, compression=push)
    step = fm_step if model == "fm" else bag_step
    seconds: float | None = ranks.session(
        lambda w: steps(w, batches, depth, step), [table], servers=1, timeout_s=120.0
    )
    return seconds


def steps(
    worker: Worker, batches: list[Int64], depth: int, step: Callable[[EmbeddingHandle, Int64], None]
) -> float:
    """Make steps; return seconds of one. Blocks."""
    handle = worker.table("e")
    assert isinstance(handle, EmbeddingHandle)
    loop: Iterable[Int64] = batches
    if depth:
        loop = mpips.lookahead(batches, keys=lambda keys: keys, worker=worker, depth=depth)
    start = 0.0
    for number, keys in enumerate(loop):
        if number == _WARM:
            worker.flush()
            start = time.perf_counter()
        step(handle, keys)
        worker.clock()
    worker.flush()
    return (time.perf_counter() - start) / _STEPS


def bag_step(handle: EmbeddingHandle, keys: Int64) -> None:
    """Pull and push the rows of a batch; the loss is half the squared length of each bag's sum."""
    flat = keys.reshape(-1)
    rows = handle.pull(flat)
    # A push adds the rows of equal keys.
    sums = rows.reshape(*keys.shape, DIM).sum(axis=1)
    handle.push(flat, np.repeat(sums, keys.shape[1], axis=0))


def fm_step(handle: EmbeddingHandle, keys: Int64) -> None:
    """Pull and push the factors of a batch whose features are all 1."""
    n, bag = keys.shape
    indptr = np.arange(0, keys.size + 1, bag)
    values = np.ones(keys.size, np.float32)
    labels = keys[:, 0] & 1
    entries = Entries(SparseBatch(indptr, keys.reshape(-1), values, labels), _PLANS)
    entries.complete(values, None)
    factors = handle.pull(entries.keys)
    logits, sums = interactions(entries, factors)
    _, error = logistic_loss(logits, labels)
    handle.push(entries.keys, factor_gradient(entries, factors, sums, error / np.float32(n)))


# Of the node of the two workers, 64 MiB are staging memory. 16 MiB for rows of each are left, or too little.
_STATED = {"ring_slots": 32, "slot_kib": 128, "staging_mib": 32}
_ROWS = {**_STATED, "node_buffers_mib": 96}
_NO_ROWS = {**_STATED, "node_buffers_mib": 65}


def two_workers(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure on five ranks; return findings on one rank, None on others. Collective."""
    samples = _SAMPLES_QUICK if options.quick else _SAMPLES
    batches = [keys_of(_PAIR_WARM + _PAIR_STEPS, samples, seed) for seed in range(N_WORKERS)]
    sides = alternate(
        options,
        [(model, how) for model in PAIR for how in (_SHARED, _OWN, _NONE)],
        lambda side: _pair_session(ranks, PAIR[side[0]], side[1], batches),
    )
    if ranks.rank != FIRST:
        return None
    return Findings(
        comparisons=[
            Comparison(
                name=f"lookahead_{name}_{model}",
                what=f"{PAIR[model].name.upper()} step of about {len(np.unique(batches[0][0])):,} rows of "
                f"{DIM}, {N_WORKERS} workers of a node, server elsewhere, look-ahead {DEPTH}, rows shared",
                unit=unit,
                ours=[side[i] / scale for side in sides[model, _SHARED]],
                baseline=[side[i] / scale for side in sides[model, other]],
                baseline_name=text,
            )
            for model in PAIR
            for name, other, text, i, unit, scale in (
                ("node_bytes", _OWN, "each worker reads for itself", 1, "MB", 1e6),
                ("node_1g", _OWN, "each worker reads for itself", 0, "s", 1.0),
                ("pair_1g", _NONE, "no look-ahead", 0, "s", 1.0),
            )
        ]
    )


def _pair_session(
    ranks: BenchRanks, consistency: Consistency, how: str, batches: list[list[Int64]]
) -> Side | None:
    """Run one mpips session. Collective. Returns the side on workers, None elsewhere."""
    side: Side | None = ranks.session(
        lambda w: _pair_steps(
            w, batches[w.index - 1] if w.index else [], 0 if how == _NONE else DEPTH
        ),
        [EmbeddingTable("e", DIM, SGD(0.01), consistency, compression="fp16")],
        servers=1,
        timeout_s=120.0,
        **(_ROWS if how == _SHARED else _NO_ROWS),
    )
    return side


def _pair_steps(worker: Worker, batches: list[Int64], depth: int) -> Side:
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

    for _ in range(_PAIR_WARM):
        step()
    return measured(worker, step, _PAIR_STEPS)
