"""Measure dense pulls of one worker from one server, each on its own core."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings, rates, seconds_per_call
from mpips.bench.rank.ranks import BenchRanks
from mpips.bench.rank.sides import BASELINE, CALLS, Sides
from mpips.bench.rank.two_sided import TwoSidedClient
from mpips.worker.worker import Worker


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure pulls of all sizes into the caller's array; return findings on rank 1. Collective."""
    found = Findings()
    for n_bytes in CALLS:
        comparisons = _pull(Sides(ranks, options, n_bytes))
        found.comparisons += comparisons if ranks.rank == 1 else []
    return found if ranks.rank == 1 else None


def _pull(sides: Sides) -> list[Comparison]:
    out = np.zeros(sides.n, np.float32)
    copies: list[float] = []

    def ours(worker: Worker, handle: Any) -> float:
        seconds_per_call(lambda: handle.pull(out), sides.calls // 10 + 1)
        return seconds_per_call(lambda: handle.pull(out), sides.calls)

    def theirs(client: TwoSidedClient) -> float:
        source = np.ones(sides.n, np.float32)
        seconds_per_call(lambda: np.copyto(out, source), 2)
        copies.append(seconds_per_call(lambda: np.copyto(out, source), sides.calls))
        seconds_per_call(lambda: client.pull(out), sides.calls // 10 + 1)
        return seconds_per_call(lambda: client.pull(out), sides.calls)

    a, b = sides.alternate(ours, theirs)
    rows = {"vs_two_sided": (b, BASELINE), "vs_memcpy": (copies, "memcpy")}
    return [
        Comparison(
            name=f"pull_{sides.size}_{name}",
            what=f"{sides.size} dense pull into the caller's array",
            unit="us" if sides.small else "GB/s",
            ours=[s * 1e6 for s in a] if sides.small else rates(a, sides.gigabytes),
            baseline=[s * 1e6 for s in base] if sides.small else rates(base, sides.gigabytes),
            baseline_name=baseline,
        )
        for name, (base, baseline) in rows.items()
    ]
