"""Programs of the suite `links`: groups of workers of a node or of a rack, whose server is on another node.

* `dense`: a step is a push of a gradient, the end of the clock, and a pull of the new values, under BSP and
ASP.
* `rows`: a step pulls the rows of a batch, pushes their gradient and ends the clock, under BSP. Keys follow
  Zipf's law with exponent 1.05 over 100,000 keys, so that workers have frequent keys in common. A batch of
  131,072 keys has about 24,600 different ones; the three batches of a clock have 0.65 times as many together
  as one by one. This is the least share of bytes that a group can reach.
* `racks`: steps as of `dense`, of two nodes of two workers each that form a rack.

The bytes are those that an interface has sent and received: for `dense` and `rows` that of the workers' node;
for `racks` that of the server's node, which stands for the link between racks, and that of the first node of
the rack. A worker on the server's node, which is in no group, reads the former.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.bench.rank.network import N_QUICK, N, Side, measured, steps
from mpips.bench.rank.ranks import BenchRanks, alternate
from mpips.model.consistency import ASP, BSP, Consistency
from mpips.model.optimizer import SGD
from mpips.model.table import DenseTable, EmbeddingTable
from mpips.worker.worker import Worker

Int64 = NDArray[np.int64]

N_WORKERS = 3
FIRST = 4  # rank of the first worker of the node without the server
MODELS: dict[str, Consistency] = {
    "": BSP(),
    "asp_": ASP(),
}  # by the first part of the names of figures

_DIM = 16
_EXPONENT, _N_KEYS = 1.05, 100_000
_BATCH = 131_072  # keys of a worker and step
_BATCH_QUICK = 8192
_STEPS = 4  # the first of them is not measured

# Worker 0 is on the server's node, workers 1 and 2 on the first node of the rack, 3 and 4 on the second one.
TOPOLOGIES: Mapping[str, object] = {
    "[[[1, 2], [3, 4]]]": [[[1, 2], [3, 4]]],
    "[[1, 2, 3, 4]]": [[1, 2, 3, 4]],
    "[[1, 2], [3, 4]]": [[1, 2], [3, 4]],
}
_OURS, _ONE_LEVEL, _NODES = TOPOLOGIES
# Ranks that read the interface of the server's node, and of the rack's first node.
_BETWEEN, _WITHIN = 2, 3


def dense(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure on seven ranks; return findings on one rank, None on others. Collective."""
    n = N_QUICK if options.quick else N
    sides = alternate(
        options,
        [(model, topology) for model in MODELS for topology in ("node", "flat")],
        lambda side: _dense_session(ranks, MODELS[side[0]], side[1], n),
    )
    if ranks.rank != FIRST:
        return None
    return Findings(
        comparisons=[
            Comparison(
                name=f"{model}{name}",
                what=f"{MODELS[model].name.upper()} step of {n:,} values, {N_WORKERS} workers of a node, "
                "server on another node, topology = node",
                unit=unit,
                ours=[side[i] / scale for side in sides[model, "node"]],
                baseline=[side[i] / scale for side in sides[model, "flat"]],
                baseline_name="topology = flat",
            )
            for model in MODELS
            for name, i, unit, scale in (
                ("node_bytes", 1, "MB", 1e6),
                ("node_step_1g", 0, "s", 1.0),
            )
        ]
    )


def _dense_session(
    ranks: BenchRanks, consistency: Consistency, topology: object, n: int
) -> Side | None:
    table = DenseTable("w", (n,), SGD(0.01), consistency)
    side: Side | None = ranks.session(
        lambda w: steps(w, n), [table], servers=1, timeout_s=120.0, topology=topology
    )
    return side


def rows(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure on seven ranks; return findings on one rank, None on others. Collective."""
    batches = batches_of(_BATCH_QUICK if options.quick else _BATCH)
    sides = alternate(
        options, ("node", "flat"), lambda topology: _row_session(ranks, topology, batches)
    )
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


def _row_session(ranks: BenchRanks, topology: str, batches: Int64) -> Side | None:
    side: Side | None = ranks.session(
        lambda w: _pull_and_push(w, batches),
        [EmbeddingTable("rows", _DIM, SGD(0.01))],
        servers=1,
        timeout_s=120.0,
        topology=topology,
    )
    return side


def _pull_and_push(worker: Worker, batches: Int64) -> Side:
    handle = worker.table("rows")
    mine = [batch[worker.index % N_WORKERS] for batch in batches]
    rng = np.random.default_rng(worker.index)
    gradient = rng.standard_normal((len(mine[0]), _DIM), np.float32)
    later = iter(mine)

    def step() -> None:
        keys = next(later)
        handle.pull(keys)
        handle.push(keys, gradient)
        worker.clock()

    step()
    return measured(worker, step, len(mine) - 1)


def racks(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure on seven ranks; return findings on two ranks, None on others. Collective."""
    n = N_QUICK if options.quick else N
    sides = alternate(
        options, TOPOLOGIES, lambda name: _dense_session(ranks, BSP(), TOPOLOGIES[name], n)
    )
    if ranks.rank not in (_BETWEEN, _WITHIN):
        return None
    name, where, other = (
        ("rack_bytes", "between racks", _NODES)
        if ranks.rank == _BETWEEN
        else ("rack_node_bytes", "of a node of the rack", _ONE_LEVEL)
    )
    return Findings(
        comparisons=[
            Comparison(
                name=name,
                what=f"BSP step of {n:,} values on the link {where}, two nodes of two workers, "
                f"topology = {_OURS}",
                unit="MB",
                ours=[n_bytes / 1e6 for _, n_bytes in sides[_OURS]],
                baseline=[n_bytes / 1e6 for _, n_bytes in sides[other]],
                baseline_name=f"topology = {other}",
            )
        ]
    )
