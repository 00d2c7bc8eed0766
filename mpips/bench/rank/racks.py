"""Bytes on links of a rack of two nodes with two workers each, whose server is on a third node.

A step is a push of a gradient, the end of the clock, and a pull of the new values, under BSP. The bytes are
those that an interface has sent and received: that of the server's node, which stands for the link between
racks, and that of the first node of the rack. A worker on the server's node, which is in no group, reads the
former.
"""

from __future__ import annotations

from collections.abc import Mapping

from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.bench.rank.network import N_QUICK, N, Side, steps
from mpips.bench.rank.ranks import BenchRanks
from mpips.model.optimizer import SGD
from mpips.model.table import DenseTable

# Worker 0 is on the server's node, workers 1 and 2 on the first node of the rack, 3 and 4 on the second one.
TOPOLOGIES: Mapping[str, object] = {
    "[[[1, 2], [3, 4]]]": [[[1, 2], [3, 4]]],
    "[[1, 2, 3, 4]]": [[1, 2, 3, 4]],
    "[[1, 2], [3, 4]]": [[1, 2], [3, 4]],
}
_OURS, _ONE_LEVEL, _NODES = TOPOLOGIES
_BETWEEN, _WITHIN = (
    2,
    3,
)  # ranks that read the interface of the server's node, and of the rack's first node


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure on seven ranks; return findings on two ranks, None on others. Collective."""
    n = N_QUICK if options.quick else N
    sides: dict[str, list[Side]] = {topology: [] for topology in TOPOLOGIES}
    for _ in range(options.repetitions):
        for topology, found in sides.items():
            side: Side | None = ranks.session(
                lambda w: steps(w, n),
                [DenseTable("w", (n,), SGD(0.01))],
                servers=1,
                timeout_s=120.0,
                topology=TOPOLOGIES[topology],
            )
            if side is not None:
                found.append(side)
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
