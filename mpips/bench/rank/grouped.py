"""Steps of three workers of a node whose server is on another one: time and bytes on the link, with a group.

A step is a push of a gradient, the end of the clock, and a pull of the new values, under BSP and under ASP.
The bytes are those that the interface of the workers' node has sent and received.
"""

from __future__ import annotations

from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.bench.rank.alternating import alternate
from mpips.bench.rank.network import N_QUICK, N, Side, steps
from mpips.bench.rank.ranks import BenchRanks
from mpips.model.consistency import ASP, BSP, Consistency
from mpips.model.optimizer import SGD
from mpips.model.table import DenseTable

N_WORKERS = 3
MODELS: dict[str, Consistency] = {
    "": BSP(),
    "asp_": ASP(),
}  # by the first part of the names of figures
FIRST = 4  # rank of the first worker of the node without the server


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure on seven ranks; return findings on one rank, None on others. Collective."""
    n = N_QUICK if options.quick else N
    sides = alternate(
        options,
        [(model, topology) for model in MODELS for topology in ("node", "flat")],
        lambda side: session(ranks, MODELS[side[0]], side[1], n),
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


def session(ranks: BenchRanks, consistency: Consistency, topology: str, n: int) -> Side | None:
    """Run one mpips session. Collective. Returns the side on workers, None elsewhere."""
    side: Side | None = ranks.session(
        lambda w: steps(w, n),
        [DenseTable("w", (n,), SGD(0.01), consistency)],
        servers=1,
        timeout_s=120.0,
        topology=topology,
    )
    return side
