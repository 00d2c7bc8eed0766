"""The suites `push`, `pull` and `embedding`: one worker and one server on one node."""

from __future__ import annotations

from mpips.bench.launching import Options, on_ranks
from mpips.bench.measure import Findings

_PROGRAMS = {"push": "dense:push", "pull": "dense:pull", "embedding": "embedding:run"}


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure on two ranks of this machine. `nodes` has no effect.

    Raises:
        BenchError: The ranks failed.
    """
    return on_ranks(f"mpips.bench.rank.{_PROGRAMS[suite]}", 2, options)
