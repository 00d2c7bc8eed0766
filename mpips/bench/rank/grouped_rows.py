"""Bytes on the link of three workers of a node, in a group, with rows on a server of another node.

A step pulls the rows of a batch, pushes their gradient and ends the clock, under BSP. Keys follow Zipf's law
with exponent 1.05 over 100,000 keys, so that workers have frequent keys in common. A batch of 131,072 keys
has about 24,600 different ones; the three batches of a clock have 0.65 times as many together as one by one.
This is the least share of bytes that a group can reach. The bytes are those that the interface of the
workers' node has sent and received.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.bench.rank.alternating import alternate
from mpips.bench.rank.grouped import FIRST, N_WORKERS
from mpips.bench.rank.network import Side, measured
from mpips.bench.rank.ranks import BenchRanks
from mpips.model.optimizer import SGD
from mpips.model.table import EmbeddingTable
from mpips.worker.worker import Worker

Int64 = NDArray[np.int64]

_DIM = 16
_EXPONENT, _N_KEYS = 1.05, 100_000
_BATCH = 131_072  # keys of a worker and step
_BATCH_QUICK = 8192
_STEPS = 4  # the first of them is not measured


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure on seven ranks; return findings on one rank, None on others. Collective."""
    batches = batches_of(_BATCH_QUICK if options.quick else _BATCH)
    sides = alternate(options, ("node", "flat"), lambda topology: session(ranks, topology, batches))
    if ranks.rank != FIRST:
        return None
    return Findings(
        comparisons=[
            Comparison(
                name="node_rows_bytes",
                what=f"BSP step of rows, {batches.shape[2]:,} keys of Zipf {_EXPONENT}, {N_WORKERS} workers "
                f"of a node, server on another node, topology = node (different keys: {common(batches):.2f})",
                unit="MB",
                ours=[n_bytes / 1e6 for _, n_bytes in sides["node"]],
                baseline=[n_bytes / 1e6 for _, n_bytes in sides["flat"]],
                baseline_name="topology = flat",
            )
        ]
    )


def batches_of(n: int) -> Int64:
    """Return the keys of each worker and step, int64, shape (steps, workers, n)."""
    weights = np.arange(1, _N_KEYS + 1, dtype=np.float64) ** -_EXPONENT
    edges = np.cumsum(weights / weights.sum())
    rng = np.random.default_rng(1)
    return np.searchsorted(edges, rng.random((_STEPS, N_WORKERS, n))).astype(np.int64)


def common(batches: Int64) -> float:
    """Return the different keys of all workers of a step together, as a share of those of each added up."""
    together = sum(len(np.unique(step)) for step in batches)
    apart = sum(len(np.unique(keys)) for step in batches for keys in step)
    return together / apart


def session(ranks: BenchRanks, topology: str, batches: Int64) -> Side | None:
    """Run one mpips session. Collective. Returns the side on workers, None elsewhere."""
    side: Side | None = ranks.session(
        lambda w: _work(w, batches),
        [EmbeddingTable("rows", _DIM, SGD(0.01))],
        servers=1,
        timeout_s=120.0,
        topology=topology,
    )
    return side


def _work(worker: Worker, batches: Int64) -> Side:
    handle = worker.table("rows")
    steps = [batch[worker.index % N_WORKERS] for batch in batches]
    rng = np.random.default_rng(worker.index)
    gradient = rng.standard_normal((len(steps[0]), _DIM), np.float32)
    later = iter(steps)

    def step() -> None:
        keys = next(later)
        handle.pull(keys)
        handle.push(keys, gradient)
        worker.clock()

    step()
    return measured(worker, step, len(steps) - 1)
