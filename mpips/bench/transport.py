"""The suite `transport`: pushes and pulls between nodes, and by the same transports within a node."""

from __future__ import annotations

from mpips.bench.launching import Options, on_nodes, on_ranks, why_not_on_nodes
from mpips.bench.measure import Findings
from mpips.errors import CapabilityError
from mpips.testing.nodes import Nodes

BETWEEN_NODES = (
    "tcp_push_ack_4k_vs_put_flush",
    "tcp_push_16m_vs_put",
    "tcp_pull_16m_vs_get",
)
_TIMEOUT_S = 600.0


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure one server and one worker on two imitated nodes, then on this machine.

    Args:
        suite: "transport".
        options: Repetitions and sizes.
        nodes: 2: only nodes; 1: only this machine; 0: this machine, and nodes if they can be imitated.

    Raises:
        CapabilityError: `nodes` is 2 and this machine cannot imitate nodes.
    """
    found = Findings()
    reason = "--nodes 1" if nodes == 1 else why_not_on_nodes()
    if nodes == 2 and reason:
        raise CapabilityError(f"--nodes 2: {reason}")
    if reason:
        found.skipped = dict.fromkeys(BETWEEN_NODES, reason)
    else:
        with Nodes(2) as imitated:
            found.add(
                on_nodes("mpips.bench.rank.transport:run", imitated, [1, 1], options, _TIMEOUT_S)
            )
    if nodes != 2:
        found.add(on_ranks("mpips.bench.rank.transport:run", 2, options, _TIMEOUT_S))
    return found
