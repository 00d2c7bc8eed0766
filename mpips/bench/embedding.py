"""The suite `embedding`: rows pushed and pulled on a node, one server and one worker."""

from __future__ import annotations

from mpips.bench.launching import Options, on_ranks
from mpips.bench.measure import Findings


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure rows on two ranks. `nodes` changes nothing: both are on this machine.

    Raises:
        BenchError: The ranks failed.
    """
    return on_ranks("embedding", 2, options)
