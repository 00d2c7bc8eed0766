"""The ranks of a benchmark: pinning, and turns between an mpips session and a baseline."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mpi4py import MPI

import mpips
from mpips.model.table import Table
from mpips.worker.worker import Worker


class BenchRanks:
    """All ranks of one launch."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        """`comm`: all of them."""
        self.comm = comm
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()

    def pin(self) -> None:
        """Give each rank of a machine a core of its own where there are enough. Collective."""
        # Imitated nodes do not share memory, but they share the kernel, and so the cores.
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text()
        same = [r for r, k in enumerate(self.comm.allgather(kernel)) if k == kernel]
        cores = sorted(os.sched_getaffinity(0))
        if len(same) <= len(cores):
            os.sched_setaffinity(0, {cores[same.index(self.rank)]})

    def session(
        self, main: Callable[[Worker], Any], tables: Sequence[Table], **options: Any
    ) -> Any:
        """One mpips session on these ranks; what `main` returned, on workers. Collective."""
        options.setdefault("timeout_s", 60.0)
        return mpips.run(main, tables, comm=self.comm, verbose=False, **options).value
