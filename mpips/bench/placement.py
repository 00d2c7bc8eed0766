"""The suite `placement`: placement = "auto" against the better of servers and replicated tables."""

from __future__ import annotations

from mpips.bench.launching import Options, on_ranks
from mpips.bench.measure import Findings
from mpips.bench.rank.placement import N_RANKS


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure on this machine. `nodes` has no effect."""
    return on_ranks("placement", N_RANKS, options)
