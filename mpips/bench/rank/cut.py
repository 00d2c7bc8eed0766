"""Measure what a checkpoint during training costs a worker: the pause at the cut, and slower pushes after it.

Rank 0 is scheduler and server, rank 1 the worker. In each step the worker pushes 64 KiB, waits until they are
applied and ends its clock. A second, large table belongs only to the checkpoint. Two comparisons:

* The step after the cut record waits until the server has copied its tables. It is compared with a memcpy of
  as many bytes on the server's rank in the same run.
* The step rate while the server writes the copy to disk is compared with the rate just before the checkpoint.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import mpips
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Figure, Findings, typical_seconds
from mpips.bench.rank.ranks import BenchRanks
from mpips.worker.worker import Worker, connection_of

_LARGE = 64 << 20  # floats: 256 MiB
_SMALL = 16384
_BEFORE_S = 0.3
_LOOK_S = 0.005
_PATIENCE_S = 60.0


class _Cost(NamedTuple):
    """The cost of one checkpoint for the worker."""

    pause: float  # seconds of the step after the cut
    longest: float  # seconds of the longest step while the checkpoint is written
    writing: float  # steps per second while the checkpoint is written
    before: float  # steps per second just before the checkpoint


class _Steps:
    """The steps of a worker and the times at which they ended.

    Attributes:
        ends: Value of `perf_counter` at the start and at the end of each step.
        cut_at: Number of the step that ended with a cut record; None before the cut.
    """

    def __init__(self, worker: Worker, folder: Path) -> None:
        self._worker = worker
        self._folder = folder
        self._table = worker.table("small")
        self._update = np.ones(_SMALL, np.float32)
        self._writer = connection_of(worker).channels[0].writer
        self.ends: list[float] = []
        self.cut_at: int | None = None

    def until(self, end: float) -> None:
        """Make steps until `perf_counter` reaches `end`. Blocks."""
        while not self.ends or self.ends[-1] < end:
            before = self._writer.next_sequence
            self._table.push(self._update).wait()
            self._worker.clock()
            # A step writes a push and a tick; a third record is the cut.
            if self._writer.next_sequence - before > 2:
                self.cut_at = len(self.ends)
            self.ends.append(time.perf_counter())

    def published(self) -> set[str]:
        """Return the names of the published checkpoints."""
        return {name for name in os.listdir(self._folder) if name.startswith("step-")}

    def one_checkpoint(self) -> _Cost:
        """Make steps before, during and until the end of one checkpoint; return its cost. Blocks.

        Raises:
            TimeoutError: No checkpoint was published within a minute.
        """
        self.ends, self.cut_at = [time.perf_counter()], None
        before = self.published()
        asked = self.ends[-1] + _BEFORE_S
        self.until(asked)
        first = len(self.ends) - 1
        self._worker.checkpoint()
        while self.published() <= before:
            if self.ends[-1] > asked + _PATIENCE_S:
                raise TimeoutError(
                    f"no checkpoint was published within {_PATIENCE_S:g} s of the request"
                )
            self.until(self.ends[-1] + _LOOK_S)
        assert self.cut_at is not None
        behind = self.cut_at + 1
        writing = self.ends[behind:]
        return _Cost(
            self.ends[behind] - self.ends[behind - 1],
            float(np.diff(writing).max()),
            (len(writing) - 1) / (writing[-1] - writing[0]),
            first / (self.ends[first] - self.ends[0]),
        )


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure on two ranks; return findings on the worker's rank, None on the other. Collective."""
    ranks.pin()
    n = _LARGE >> (5 if options.quick else 0)
    name = tempfile.mkdtemp(prefix="mpips-bench-cut-") if ranks.rank == 0 else ""
    folder = Path(ranks.comm.bcast(name))
    copies: list[float] = []
    found: list[_Cost] = []
    # Alternate memcpy on the server's rank with a session that writes one checkpoint.
    try:
        for _ in range(options.repetitions):
            copies.append(ranks.comm.bcast(_copy(n) if ranks.rank == 0 else None))
            mine = _session(ranks, folder, n)
            if mine is not None:
                found.append(mine)
    finally:
        ranks.comm.Barrier()
        if ranks.rank == 0:
            shutil.rmtree(folder)
    return _findings(copies, found) if ranks.rank == 1 else None


def _copy(n: int) -> float:
    """Return the seconds of a copy of `n` float32 into memory that is already mapped."""
    source, to = np.ones(n, np.float32), np.zeros(n, np.float32)
    return typical_seconds(lambda: np.copyto(to, source), 5)


def _session(ranks: BenchRanks, folder: Path, n: int) -> _Cost | None:
    tables = [
        mpips.DenseTable("large", (n,), mpips.SGD(1.0), mpips.ASP()),
        mpips.DenseTable("small", (_SMALL,), mpips.SGD(1.0), mpips.ASP()),
    ]

    def main(worker: Worker) -> _Cost:
        steps = _Steps(worker, folder)
        steps.until(time.perf_counter() + _BEFORE_S)
        return steps.one_checkpoint()

    value: _Cost | None = ranks.session(main, tables, save=folder, resume="never", every_s=1e6)
    return value


def _findings(copies: list[float], found: list[_Cost]) -> Findings:
    return Findings(
        comparisons=[
            Comparison(
                name="stall_vs_memcpy",
                what="a worker's step at the cut of a checkpoint, 256 MiB on the server",
                unit="us",
                ours=[1e6 * cost.pause for cost in found],
                baseline=[1e6 * copy for copy in copies],
                baseline_name="memcpy of as many bytes",
            ),
            Comparison(
                name="pushes_while_writing",
                what="pushes of 64 KiB, one at a time, while a checkpoint is written",
                unit="1/s",
                ours=[cost.writing for cost in found],
                baseline=[cost.before for cost in found],
                baseline_name="just before it",
            ),
        ],
        figures=[
            Figure(
                name="longest_step_while_writing",
                what="the longest step of a worker while a checkpoint is written",
                unit="ms",
                values=[1e3 * cost.longest for cost in found],
            )
        ],
    )
