"""Measure dense pushes of one worker to one server, each on its own core."""

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
    """Measure pushes of all sizes; return findings on the worker's rank, None on the other. Collective."""
    found = Findings()
    for n_bytes in CALLS:
        sides = Sides(ranks, options, n_bytes)
        comparisons = _until_applied(sides) if sides.small else _stream(sides)
        found.comparisons += comparisons if ranks.rank == 1 else []
    return found if ranks.rank == 1 else None


def _until_applied(sides: Sides) -> list[Comparison]:
    update = np.ones(sides.n, np.float32)

    def ours(worker: Worker, handle: Any) -> float:
        seconds_per_call(lambda: handle.push(update).wait(), sides.calls // 10 + 1)
        return seconds_per_call(lambda: handle.push(update).wait(), sides.calls)

    def theirs(client: TwoSidedClient) -> float:
        seconds_per_call(lambda: client.push(update), sides.calls // 10 + 1)
        return seconds_per_call(lambda: client.push(update), sides.calls)

    a, b = sides.alternate(ours, theirs)
    return [
        Comparison(
            name=f"push_ack_{sides.size}_vs_two_sided",
            what=f"{sides.size} dense push until it is acknowledged",
            unit="us",
            ours=[s * 1e6 for s in a],
            baseline=[s * 1e6 for s in b],
            baseline_name=BASELINE,
        )
    ]


def _stream(sides: Sides) -> list[Comparison]:
    """Measure pushes of which two are in flight; an array is pushed again when its last push is applied.

    The baselines do not check for NaN. The zero-copy push that is compared with them does not either, since
    the check reads the update once more. Updates from ordinary memory are checked while they are copied.
    """
    update = np.ones(sides.n, np.float32)
    copied: list[float] = []
    sums: list[float] = []

    def ours(worker: Worker, handle: Any) -> float:
        return _seconds_per_push(sides, handle, _staged(worker, sides.n))

    def ours_checked(worker: Worker, handle: Any) -> float:
        copied.append(_seconds_per_push(sides, handle, [update, update]))
        return _seconds_per_push(sides, handle, _staged(worker, sides.n))

    def theirs(client: TwoSidedClient) -> float:
        client.push_many(update, 2)
        result = seconds_per_call(lambda: client.push_many(update, sides.calls), 1) / sides.calls
        sums.append(_in_place_sum(sides.n, sides.calls))
        return result

    zero_copy, server = sides.alternate(ours, theirs, check_finite=False)
    zero_copy_sums = sums[:]
    sums.clear()
    bare: list[float] = []
    checked, _ = sides.alternate(
        ours_checked, theirs, between=lambda: bare.append(sides.bare_pipeline())
    )
    rows = {
        "vs_two_sided": (zero_copy, server, "zero-copy push", BASELINE),
        "vs_sum": (zero_copy, zero_copy_sums, "zero-copy push", "in-place sum"),
        "checked_vs_sum": (checked, sums, "zero-copy push with check_finite", "in-place sum"),
        "copy_vs_sum": (copied, sums, "push from ordinary memory", "in-place sum"),
        "copy_vs_bare": (copied, bare, "push from ordinary memory", "bare copy and sum"),
    }
    return [
        Comparison(
            name=f"push_{sides.size}_{name}",
            what=f"{sides.size} {what}, SGD applied, gradient per second",
            unit="GB/s",
            ours=rates(a, sides.gigabytes),
            baseline=rates(b, sides.gigabytes),
            baseline_name=baseline,
        )
        for name, (a, b, what, baseline) in rows.items()
    ]


def _staged(worker: Worker, n: int) -> list[Any]:
    arrays = [worker.allocate(n) for _ in range(2)]
    for array in arrays:
        array[:] = 1.0
    return arrays


def _seconds_per_push(sides: Sides, handle: Any, updates: list[Any]) -> float:
    _pipelined(handle, updates, 4)
    return seconds_per_call(lambda: _pipelined(handle, updates, sides.calls), 1) / sides.calls


def _pipelined(handle: Any, updates: list[Any], n: int) -> None:
    """Push `n` times from alternating `updates`; an array is pushed again when its last push is applied."""
    open_pushes: list[Any] = [None] * len(updates)
    for i in range(n):
        slot = i % len(updates)
        if open_pushes[slot] is not None:
            open_pushes[slot].wait()
        open_pushes[slot] = handle.push(updates[slot])
    for request in open_pushes:
        if request is not None:
            request.wait()


def _in_place_sum(n: int, calls: int) -> float:
    a, b = np.zeros(n, np.float32), np.ones(n, np.float32)
    np.add(a, b, out=a)
    return seconds_per_call(lambda: np.add(a, b, out=a), calls)
