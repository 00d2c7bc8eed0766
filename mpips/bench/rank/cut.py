"""What a checkpoint in the middle of training costs a worker: the pause at the cut, and pushes meanwhile.

Rank 0 is scheduler and server, rank 1 a worker that pushes 64 KiB, waits until they are applied and ends its
clock, again and again, beside a large table that only the checkpoint touches. The longest step of each
checkpoint is compared with a memcpy of what the server holds, on the server's rank in the same run; the steps
while it is written with those right before it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

import mpips
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Figure, Findings, typical_seconds
from mpips.bench.rank.ranks import Ranks
from mpips.worker import Worker

_LARGE = 64 << 20  # floats: 256 MiB
_SMALL = 16384
_BEFORE_S = 0.3
_LOOK_S = 0.005
_PATIENCE_S = 60.0


class _Steps:
    """A worker's steps and how long each took."""

    def __init__(self, worker: Worker, folder: Path) -> None:
        self._worker = worker
        self._folder = folder
        self._table = worker.table("small")
        self._update = np.ones(_SMALL, np.float32)
        self.ends: list[float] = []

    def until(self, end: float) -> None:
        """Make steps until a time of `perf_counter`."""
        while not self.ends or self.ends[-1] < end:
            self._table.push(self._update).wait()
            self._worker.clock()
            self.ends.append(time.perf_counter())

    def published(self) -> int:
        """Checkpoints that are there."""
        return sum(name.startswith("step-") for name in os.listdir(self._folder))

    def one_checkpoint(self) -> tuple[float, float, float]:
        """Longest step in seconds; steps per second while it was written, and before."""
        self.ends = [time.perf_counter()]
        n_before = self.published()
        asked = self.ends[-1] + _BEFORE_S
        self.until(asked)
        first = len(self.ends) - 1
        self._worker.checkpoint()
        while self.published() == n_before:
            if self.ends[-1] > asked + _PATIENCE_S:
                raise TimeoutError("no checkpoint was written")
            self.until(self.ends[-1] + _LOOK_S)
        taken = np.diff(self.ends[first:])
        longest = int(taken.argmax())
        writing = self.ends[first + longest + 1 :]
        return (
            float(taken[longest]),
            (len(writing) - 1) / (writing[-1] - writing[0]),
            first / (self.ends[first] - self.ends[0]),
        )


def run(ranks: Ranks, options: Options) -> Findings | None:
    """Called on both ranks; the worker's rank reports."""
    ranks.pin()
    n = _LARGE >> (5 if options.quick else 0)
    name = tempfile.mkdtemp(prefix="mpips-bench-cut-") if ranks.rank == 0 else ""
    folder = Path(ranks.comm.bcast(name))
    copies: list[float] = []
    found: list[tuple[float, float, float]] = []
    # In turn: memcpy on the server's rank, then a checkpoint in a session of its own.
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
    """Seconds for a copy of `n` floats into memory that was in use before."""
    source, to = np.ones(n, np.float32), np.zeros(n, np.float32)
    return typical_seconds(lambda: np.copyto(to, source), 5)


def _session(ranks: Ranks, folder: Path, n: int) -> tuple[float, float, float] | None:
    tables = [
        mpips.DenseTable("large", (n,), mpips.SGD(1.0), mpips.ASP()),
        mpips.DenseTable("small", (_SMALL,), mpips.SGD(1.0), mpips.ASP()),
    ]

    def main(worker: Worker) -> tuple[float, float, float]:
        steps = _Steps(worker, folder)
        steps.until(time.perf_counter() + _BEFORE_S)
        return steps.one_checkpoint()

    value: tuple[float, float, float] | None = ranks.session(
        main, tables, save=folder, resume="never", every_s=1e6
    )
    return value


def _findings(copies: list[float], found: list[tuple[float, float, float]]) -> Findings:
    pauses, writing, before = (list(column) for column in zip(*found, strict=True))
    return Findings(
        comparisons=[
            Comparison(
                name="stall_vs_memcpy",
                what="the longest step of a worker around a checkpoint, 256 MiB on the server",
                unit="us",
                ours=[1e6 * pause for pause in pauses],
                baseline=[1e6 * copy for copy in copies],
                baseline_name="memcpy of as much",
            ),
            Comparison(
                name="pushes_while_writing",
                what="pushes of 64 KiB, each waited for, while a checkpoint is written",
                unit="1/s",
                ours=writing,
                baseline=before,
                baseline_name="right before it",
            ),
        ],
        figures=[
            Figure(
                name="checkpoint_pause",
                what="the longest step of a worker around a checkpoint",
                unit="ms",
                values=[1e3 * pause for pause in pauses],
            )
        ],
    )
