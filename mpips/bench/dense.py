"""Dense pushes and pulls on one node: one server and one worker, a core each."""

from __future__ import annotations

from mpips.bench.launching import Options, on_ranks
from mpips.bench.measure import Findings


def run(suite: str, options: Options, nodes: int) -> Findings:
    """The suites "push" and "pull"; `nodes` means nothing here. See mpips.bench.rank.push and .pull."""
    return on_ranks(suite, 2, options)
