"""Measure dense pushes and pulls of one worker at one server, each on its own core.

An mpips session and the plain two-sided server take turns on the same two ranks, rank 0 the server and rank 1
the worker. Other baselines are limits of the memory: an in-place sum, memcpy, and two processes of which one
copies and the other one sums; and for single pushes a bare handover of the values.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from mpips import kernels
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings, rates, seconds_per_call, typical_seconds
from mpips.bench.rank.handover import Handovers, figures
from mpips.bench.rank.ranks import BenchRanks
from mpips.bench.rank.two_sided import TwoSidedClient, two_sided
from mpips.model.consistency import ASP
from mpips.model.optimizer import SGD
from mpips.model.table import DenseTable
from mpips.worker.worker import Worker

KIB, MIB = 1 << 10, 1 << 20
CALLS = {4 * KIB: 20000, 64 * KIB: 5000, 4 * MIB: 200, 64 * MIB: 16}
FRESH = (4 * KIB, 64 * KIB, 4 * MIB)  # sizes of updates that are computed anew before each push
NAMES = {4 * KIB: "4k", 64 * KIB: "64k", 4 * MIB: "4m", 64 * MIB: "64m"}
BASELINE = "two-sided mpi4py server"


class Sides:
    """Measure rank 1 as the worker of mpips and as the client of the two-sided server; rank 0 is the server.

    Attributes:
        n_bytes: Bytes of the table.
        n: float32 elements of the table.
        calls: Calls in one measurement.
        size: Size in the names of figures.
        small: True if times per call are reported, False if bytes per second are.
    """

    def __init__(self, ranks: BenchRanks, options: Options, n_bytes: int) -> None:
        """`n_bytes`: Size of the table, a key of CALLS."""
        self._ranks = ranks
        self._repetitions = options.repetitions
        self.n_bytes = n_bytes
        self.n = n_bytes // 4
        self.calls = max(2, CALLS[n_bytes] // (50 if options.quick else 1))
        self.size = NAMES[n_bytes]
        self.small = n_bytes <= 64 * KIB

    @property
    def gigabytes(self) -> float:
        """Return the size of the table in units of 1e9 bytes."""
        return self.n_bytes / 1e9

    def bare_pipeline(self) -> float:
        """Return the seconds per update of two processes that copy and sum (`copy_then_sum`). Collective."""
        return copy_then_sum(self._ranks.comm, self.n, self.calls)

    def alternate(
        self,
        ours: Callable[[Worker, Any], float],
        theirs: Callable[[TwoSidedClient], float],
        check_finite: bool = True,
        between: Callable[[], object] = lambda: None,
    ) -> tuple[list[float], list[float]]:
        """Alternate between mpips and the two-sided server. Collective over two ranks.

        Args:
            ours: Measures the table of an mpips session. Called on the worker.
            theirs: Measures the two-sided server. Called on rank 1.
            check_finite: Option of the table in mpips.
            between: Called on both ranks after each repetition.

        Returns:
            The values of `ours` and of `theirs`, one per repetition, on rank 1.
        """
        a: list[float] = []
        b: list[float] = []
        table = DenseTable(
            "w", (self.n,), optimizer=SGD(lr=1.0), consistency=ASP(), check_finite=check_finite
        )
        for _ in range(self._repetitions):
            self._ranks.session(lambda w: a.append(ours(w, w.table("w"))), [table], servers=1)
            two_sided(self._ranks.comm, self.n, lambda client: b.append(theirs(client)))
            between()
        return a, b


def push(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure pushes of all sizes; return findings on the worker's rank, None on the other. Collective."""
    found = Findings()
    round_trips: list[float] = []
    handovers: dict[str, list[float]] = {}
    for n_bytes in CALLS:
        sides = Sides(ranks, options, n_bytes)
        comparisons = _until_applied(sides) if sides.small else _stream(sides)
        if n_bytes in FRESH:
            with Handovers(ranks.comm, sides.n) as bare:
                seconds = handovers.setdefault(sides.size, [])
                between = partial(_hand_over, bare, sides, round_trips, seconds)
                comparisons += _fresh(sides, between, seconds)
        found.comparisons += comparisons if ranks.rank == 1 else []
    found.figures += figures(round_trips, handovers)
    return found if ranks.rank == 1 else None


def _hand_over(
    bare: Handovers, sides: Sides, round_trips: list[float], handovers: list[float]
) -> None:
    round_trips.append(bare.round_trip(sides.calls))
    handovers.append(bare.seconds(sides.n, sides.calls))


def _fresh(sides: Sides, between: Callable[[], object], handovers: list[float]) -> list[Comparison]:
    """Measure pushes of updates that are computed anew each time, as in training, and pulls after them.

    A computation fetches the lines of its result back from the other core, which has read them. The time of
    the computation alone is subtracted on both sides, so this time remains in that of the push.

    Args:
        sides: Both sides.
        between: Called on both ranks after each repetition; adds to `handovers`.
        handovers: Seconds of a handover without mpips, by repetition.
    """
    update, out = np.ones(sides.n, np.float32), np.zeros(sides.n, np.float32)
    pulls_ours: list[float] = []
    pulls_theirs: list[float] = []

    def measured(
        push: Callable[[], object], pull: Callable[[], object], pulls: list[float]
    ) -> float:
        def compute() -> None:
            np.negative(update, out=update)

        def push_fresh() -> None:
            np.negative(update, out=update)
            push()

        def push_and_pull() -> None:
            np.negative(update, out=update)
            push()
            pull()

        # Medians of groups, since the results are differences.
        alone, pushed, both = (
            typical_seconds(work, sides.calls) for work in (compute, push_fresh, push_and_pull)
        )
        # On a disturbed machine the difference of two times may be negative.
        pulls.append(max(both - pushed, both / 100))
        return max(pushed - alone, pushed / 100)

    def ours(worker: Worker, handle: Any) -> float:
        return measured(lambda: handle.push(update).wait(), lambda: handle.pull(out), pulls_ours)

    def theirs(client: TwoSidedClient) -> float:
        return measured(lambda: client.push(update), lambda: client.pull(out), pulls_theirs)

    a, b = sides.alternate(ours, theirs, between=between)
    rows = {
        "push_fresh_{}_vs_two_sided": (a, b, "push of a new update until it is applied", BASELINE),
        "push_fresh_{}_vs_handover": (a, handovers, "push of a new update", "a bare handover"),
        "pull_fresh_{}_vs_two_sided": (pulls_ours, pulls_theirs, "pull after a push", BASELINE),
    }
    return [
        Comparison(
            name=name.format(sides.size),
            what=f"{sides.size} dense {what}",
            unit="us",
            ours=[s * 1e6 for s in one],
            baseline=[s * 1e6 for s in other],
            baseline_name=baseline,
        )
        for name, (one, other, what, baseline) in rows.items()
    ]


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


def pull(ranks: BenchRanks, options: Options) -> Findings | None:
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


def copy_then_sum(comm: MPI.Intracomm, n: int, calls: int) -> float:
    """Return the seconds per update of a bare pipeline. Collective over two ranks of one node. Blocks.

    Rank 1 copies `n` float32 from ordinary memory into one of two shared buffers, past the caches. Rank 0
    adds the buffer to its own tensor. Each buffer has a flag: rank 1 sets it when the buffer is full, rank 0
    clears it when the buffer is added.

    Args:
        comm: Two ranks of one node.
        n: float32 values in an update.
        calls: Updates in the measurement.

    Returns:
        Seconds per update; only the value on rank 1 counts.
    """
    rank = comm.Get_rank()
    window = MPI.Win.Allocate_shared((2 * n * 4 + 128) if rank == 1 else 0, 1, comm=comm)
    memory, _ = window.Shared_query(1)
    raw = np.asarray(memory)
    start = -raw.ctypes.data % 64
    full = raw[start : start + 16].view(np.int64)
    values = raw[start + 64 : start + 64 + 2 * n * 4].view(np.float32).reshape(2, n)
    if rank == 1:
        full[:] = 0
        values[:] = 1.0
    comm.Barrier()
    work = _fill if rank == 1 else _sum
    work(full, values, 2)
    comm.Barrier()
    begin = time.perf_counter()
    work(full, values, calls)
    seconds = (time.perf_counter() - begin) / calls
    comm.Barrier()
    del raw, full, values, memory
    window.Free()
    return seconds


# Nothing else orders values and flag: x86 keeps the stores of one process in order, and `copy_finite` ends
# its non-temporal stores with a fence. This is enough for a measurement.
def _fill(full: np.ndarray, values: np.ndarray, calls: int) -> None:
    update = np.ones(values.shape[1], np.float32)
    for i in range(calls):
        while full[i % 2]:
            pass
        kernels.copy_finite(values[i % 2], update, past_caches=True)
        full[i % 2] = 1
    while full.any():
        pass


def _sum(full: np.ndarray, values: np.ndarray, calls: int) -> None:
    total = np.zeros(values.shape[1], np.float32)
    for i in range(calls):
        while not full[i % 2]:
            pass
        kernels.add(total, values[i % 2])
        full[i % 2] = 0
