"""One size of dense table: turns of an mpips session and of the plain two-sided server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpips.bench.launching import Options
from mpips.bench.rank.limits import copy_then_sum
from mpips.bench.rank.ranks import BenchRanks
from mpips.bench.rank.two_sided import TwoSidedClient, two_sided
from mpips.model.consistency import ASP
from mpips.model.optimizer import SGD
from mpips.model.table import DenseTable
from mpips.worker.worker import Worker

KIB, MIB = 1 << 10, 1 << 20
CALLS = {4 * KIB: 20000, 64 * KIB: 5000, 4 * MIB: 200, 64 * MIB: 16}
NAMES = {4 * KIB: "4k", 64 * KIB: "64k", 4 * MIB: "4m", 64 * MIB: "64m"}
BASELINE = "two-sided mpi4py server"


class Sides:
    """Measures what rank 1 does; rank 0 serves both. Collective over two ranks.

    Attributes:
        n: float32 elements of the table.
        calls: Calls that make one measurement.
        small: Whether times per call matter, not bytes per second.
    """

    def __init__(self, ranks: BenchRanks, options: Options, n_bytes: int) -> None:
        """A table of `n_bytes`."""
        self._ranks = ranks
        self._repetitions = options.repetitions
        self.n_bytes = n_bytes
        self.n = n_bytes // 4
        self.calls = max(2, CALLS[n_bytes] // (50 if options.quick else 1))
        self.size = NAMES[n_bytes]
        self.small = n_bytes <= 64 * KIB

    @property
    def gigabytes(self) -> float:
        """Size of the table in 1e9 bytes."""
        return self.n_bytes / 1e9

    def bare_pipeline(self) -> float:
        """Seconds per update of two processes that copy and sum. Collective; see `copy_then_sum`."""
        return copy_then_sum(self._ranks.comm, self.n, self.calls)

    def turns(
        self,
        ours: Callable[[Worker, Any], float],
        theirs: Callable[[TwoSidedClient], float],
        check_finite: bool = True,
        between: Callable[[], object] = lambda: None,
    ) -> tuple[list[float], list[float]]:
        """What both return, one value per repetition; meaningful on rank 1. All do `between` after each."""
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
