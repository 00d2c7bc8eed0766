"""One size of dense table, measured alternately by an mpips session and by the plain two-sided server."""

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
