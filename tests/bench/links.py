"""The suite `links`: look-ahead, groups of workers, small tables and the order of values on a link of 1 Gb/s.

Links between imitated nodes are limited as in the suite `network` of `mpips bench`. Programs on ranks are in
lookahead.py, groups.py, small_tables.py and priority.py.
"""

from __future__ import annotations

from mpips.bench.launching import Options, on_nodes
from mpips.bench.measure import Findings
from mpips.bench.network import LINKS, TIMEOUT_S, why_no_links
from mpips.errors import CapabilityError
from mpips.testing.nodes import Nodes
from tests.bench import lookahead

_RANKS = (1, 1)  # scheduler and server; a worker
_PAIR_RANKS = (3, 2)  # scheduler, server and a worker; two workers
_GROUP_RANKS = (4, 3)  # scheduler, a server and two workers; three workers
_RACK_RANKS = (3, 2, 2)  # scheduler, a server and a worker; two workers; two workers
_PROGRAMS = {
    "lookahead:one_worker": _RANKS,
    "lookahead:two_workers": _PAIR_RANKS,
    "groups:dense": _GROUP_RANKS,
    "groups:rows": _GROUP_RANKS,
    "small_tables:pulls": _RANKS,
    "priority:layers": _RANKS,
}
RATIOS = (
    *(f"lookahead_1g_{model}" for model in lookahead.MODELS),
    *(
        f"lookahead_{name}_{model}"
        for model in lookahead.PAIR
        for name in ("node_bytes", "node_1g", "pair_1g")
    ),
    *("node_bytes", "asp_node_bytes", "node_step_1g", "asp_node_step_1g", "node_rows_bytes"),
    *("rack_bytes", "rack_node_bytes", "small_pulls", "priority", "priority_all"),
)


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure between imitated nodes.

    Args:
        suite: "links".
        options: Repetitions and sizes.
        nodes: 1: nothing is measured; otherwise nodes, if this machine can imitate them.

    Raises:
        BenchError: A launch failed.
        CapabilityError: `nodes` is 2 and this machine cannot imitate nodes or limit links.
    """
    reason = "--nodes 1" if nodes == 1 else why_no_links()
    if nodes == 2 and reason:
        raise CapabilityError(f"--nodes 2: {reason}")
    if reason:
        return Findings(skipped=dict.fromkeys(RATIOS, reason))
    found = Findings()
    with Nodes(2) as imitated:
        imitated.limit(LINKS["1g"])
        for program, ranks in _PROGRAMS.items():
            found.add(on_nodes(f"tests.bench.{program}", imitated, ranks, options, TIMEOUT_S))
    with Nodes(3) as imitated:
        found.add(on_nodes("tests.bench.groups:racks", imitated, _RACK_RANKS, options, TIMEOUT_S))
    return found
