"""The ranks of a benchmark: their communicator, their cores, and mpips sessions on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import mpips
from mpips.bench.launching import Options

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpips.model.table import Table
    from mpips.worker.worker import Worker

Side = TypeVar("Side")
Value = TypeVar("Value")


class BenchRanks:
    """All ranks of one launch.

    Attributes:
        comm: Communicator of all ranks.
        rank: This rank.
        size: Number of ranks.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        """`comm`: Communicator of all ranks."""
        self.comm = comm
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()

    def pin(self, chosen: Sequence[int] = ()) -> None:
        """Bind each rank to its own core if this machine has enough of them. Collective.

        `chosen`: Cores by rank, for launches of so many ranks.
        """
        if len(chosen) == self.size:
            os.sched_setaffinity(0, {chosen[self.rank]})
            return
        # Count ranks by kernel: imitated nodes share no memory, but they share the kernel and its cores.
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text()
        same = [r for r, k in enumerate(self.comm.allgather(kernel)) if k == kernel]
        cores = sorted(os.sched_getaffinity(0))
        if len(same) <= len(cores):
            os.sched_setaffinity(0, {cores[same.index(self.rank)]})

    def session(
        self, main: Callable[[Worker], Any], tables: Sequence[Table], **options: Any
    ) -> Any:
        """Run one mpips session on these ranks. Collective.

        Returns:
            The value that `main` returned, on workers; None elsewhere.
        """
        options.setdefault("timeout_s", 60.0)
        return mpips.run(main, tables, comm=self.comm, verbose=False, **options).value


def alternate(
    options: Options, sides: Iterable[Side], session: Callable[[Side], Value | None]
) -> dict[Side, list[Value]]:
    """Run a session of each side in turn, `options.repetitions` times. Collective.

    Changes of a machine with time then reach all sides alike.

    Args:
        options: Options of the measurement.
        sides: The sides, hashable.
        session: Runs the session of a side; returns its value on workers, None on other ranks.

    Returns:
        For each side the values of its sessions, one per repetition; empty on ranks that are not workers.
    """
    found: dict[Side, list[Value]] = {side: [] for side in sides}
    for _ in range(options.repetitions):
        for side, values in found.items():
            value = session(side)
            if value is not None:
                values.append(value)
    return found
