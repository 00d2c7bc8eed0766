"""The suite `embedding`: pushes and pulls of rows of one worker and one server on one node."""

from __future__ import annotations

from mpips.bench.launching import Options, on_ranks
from mpips.bench.measure import Findings


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure rows on two ranks of this machine. `nodes` has no effect.

    Raises:
        BenchError: The ranks failed.
    """
    return on_ranks("embedding", 2, options)
