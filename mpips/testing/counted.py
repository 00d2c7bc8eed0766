"""The job of `bench recovery --kills` and of the fault tests: it counts how often each feature was seen.

What is pushed are small whole numbers, whose sums float32 holds exactly in any order: under every
consistency model a table holds, at the end, each feature as often as it is in the data, times the epochs.
Two more tables are fitted to the labels: each of their updates depends on the bits of all those before, so
under BSP their bits are those of a run that nothing has disturbed.

Rows that are pulled must hold at least what this process has seen of them and pushed since. An update
that is lost is so found at once, and not only at the end.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from pathlib import Path

import msgspec
import numpy as np

from mpips.data.dataset import Batch, SparseBatch
from mpips.data.info import DataInfo
from mpips.data.metrics import BINARY_METRICS
from mpips.errors import MpipsError
from mpips.model.optimizer import SGD, Adagrad
from mpips.model.partition import LayerPartition, RangePartition
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.rundir import directory
from mpips.tasks import StepResult, Task
from mpips.tasks.base import Float32, Keys, Worker

DIM = 4
COPIES = 8  # of the dense counts: a push of several records
SMALL_COPIES = 16
STEPS = "steps"  # file in an attempt's logs, with the worker's index: its number of steps so far
_FAR = 1 << 40  # keys of other servers
_AGAIN = 3  # steps of a process whose pushes may be there already
_HELP_EVERY = 8  # steps between two helper processes
_HELPER_S = 60.0  # the longest life of a helper process


class LostUpdateError(MpipsError):
    """A pull has found less than what was there before."""


class Counting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the task.

    Attributes:
        pause_s: Seconds that a step sleeps, so that a run lasts and leaves the cores to others.
        copies: Rows of the dense counts: decides in how many records, and on which way, they are pushed.
        dense: Push counts to a dense table.
        small: Push them to a small dense table, too, before the large one.
        rows: Push counts to an embedding table.
        pulls: Pull the rows before, and for an evaluation.
        fitted: Fit a dense table, and rows where they are pulled, to the labels.
        gaps: Push counts to an embedding table all of whose rows lie on one server, and to a dense table
            that one server holds.
        helper: "terminated": now and then a pool of processes is started and terminated; "alive": a forked
            child lives as long as the worker and longer.
    """

    pause_s: float = 0.005
    copies: int = COPIES
    dense: bool = True
    small: bool = False
    rows: bool = True
    pulls: bool = False
    fitted: bool = True
    gaps: bool = False
    helper: str = ""


class Counted(Task):
    """Pushes each sample's counts, and fits lines to the labels."""

    name = "counted"
    Options = Counting
    default_epochs = 6
    default_batch_size = 16
    metrics = tuple(BINARY_METRICS)

    def __init__(self, info: DataInfo, options: Counting, seed: int) -> None:
        """See Task."""
        self._n = info.n_features
        self._options = options
        self._least = np.zeros(self._n, np.float32)
        self._steps = 0

    def tables(self) -> list[Table]:
        """See Task."""
        own, found = self._options, list[Table]()
        if own.small:
            found.append(_counts("small", (SMALL_COPIES, self._n)))
        if own.dense:
            found.append(_counts("seen", (own.copies, self._n)))
        if own.rows:
            found.append(EmbeddingTable("rows", DIM, SGD(1.0), init="zeros"))
        if own.gaps:
            keys = RangePartition(0, _FAR)
            few = EmbeddingTable("few", DIM, SGD(1.0), init="zeros", partition=keys)
            found += [few, _counts("whole", (self._n,), LayerPartition())]
        if own.fitted and own.dense:
            found.append(DenseTable("fitted", (self._n,), Adagrad(0.1)))
        if own.fitted and own.pulls:
            found.append(EmbeddingTable("factors", 1, Adagrad(0.1)))
        return found

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """See Task."""
        self._note_step(worker)
        time.sleep(self._options.pause_s)
        assert isinstance(batch, SparseBatch)
        x = batch.densify(self._n)
        counts = x.sum(axis=0, dtype=np.float32)
        keys = np.flatnonzero(counts).astype(np.int64)
        self._count(worker, counts, keys)
        return StepResult(self._fit(worker, batch, x, keys), batch.n)

    def _count(self, worker: Worker, counts: Float32, keys: Keys) -> None:
        own = self._options
        rows = np.repeat(-counts[keys, None], DIM, axis=1)
        if own.pulls:
            self._look(worker, keys)
        if own.small:
            worker.table("small").push(np.tile(-counts, (SMALL_COPIES, 1)))
        if own.dense:
            worker.table("seen").push(np.tile(-counts, (own.copies, 1)))
        if own.rows:
            worker.table("rows").push(keys, rows)
            if self._steps > _AGAIN:
                self._least[keys] += counts[keys]
        if own.gaps:
            worker.table("few").push(keys, rows)
            worker.table("whole").push(-counts)

    def _fit(self, worker: Worker, batch: Batch, x: Float32, keys: Keys) -> float:
        """Push the gradients of lines; the summed loss of the last one."""
        own, loss = self._options, 0.0
        share = batch.weight / batch.n
        if own.fitted and own.dense:
            w = worker.table("fitted").pull()
            error = x @ w + w.mean() - batch.labels
            gradient = (x.T @ error + error.mean()) * share
            worker.table("fitted").push(gradient.astype(np.float32), base=w)
            loss = float(error @ error)
        if own.fitted and own.pulls:
            v = worker.table("factors").pull(keys)
            error = x[:, keys] @ v[:, 0] - batch.labels
            slope = (x[:, keys].T @ error)[:, None] * share
            worker.table("factors").push(keys, slope.astype(np.float32), base=v)
            loss = float(error @ error)
        return loss

    def _look(self, worker: Worker, keys: Keys) -> Float32:
        """The counts of these features as the rows hold them."""
        found: Float32 = worker.table("rows").pull(keys)
        least = self._least[keys]
        if not (found == found[:, :1]).all() or (found[:, 0] < least).any():
            at = int(np.argmin(found.min(axis=1) - least))
            raise LostUpdateError(
                f"row {keys[at]} of table 'rows' holds {found[at].tolist()}, but {least[at]:g} was there"
            )
        self._least[keys] = found[:, 0]
        return found[:, 0]

    def predict(self, worker: Worker, batch: Batch) -> Float32:
        """See Task; a number that depends on what the rows hold, and says nothing of the labels."""
        if not self._options.pulls:
            return np.zeros(batch.n, np.float32)
        assert isinstance(batch, SparseBatch)
        x = batch.densify(self._n)
        keys = np.flatnonzero(x.sum(axis=0)).astype(np.int64)
        seen = x[:, keys] @ self._look(worker, keys)
        return (seen / (1 + seen)).astype(np.float32)

    def _note_step(self, worker: Worker) -> None:
        """Let those who look from outside see that the worker goes on; start helper processes."""
        self._steps += 1
        run = directory.current()
        if run is not None:
            with contextlib.suppress(OSError):
                write_steps(run.logs, worker.index, self._steps)
        if self._options.helper == "terminated" and self._steps % _HELP_EVERY == 3:
            with multiprocessing.get_context("fork").Pool(1) as pool:
                pool.apply(abs, (self._steps,))
        elif self._options.helper == "alive" and self._steps == 3:
            _fork_a_child()


def _counts(
    name: str, shape: tuple[int, ...], partition: LayerPartition | str = "range"
) -> DenseTable:
    zeros = np.zeros(shape, np.float32)
    return DenseTable(name, shape, SGD(1.0), init=zeros, partition=partition)


def _fork_a_child() -> None:
    """A child that does nothing, and is still there for a while when the worker is not."""
    if os.fork():
        return
    deadline = time.monotonic() + _HELPER_S
    while time.monotonic() < deadline:
        time.sleep(0.1)
    os._exit(0)


def write_steps(logs: Path, worker: int, steps: int) -> None:
    """Leave a worker's number of steps in its attempt's folder of logs."""
    fd = os.open(logs / f"{STEPS}-{worker}", os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(fd, f"{steps:12d}".encode(), 0)
    finally:
        os.close(fd)


def read_steps(logs: Path) -> dict[int, int]:
    """The steps of an attempt's workers so far."""
    found = {}
    for path in logs.glob(f"{STEPS}-*"):
        with contextlib.suppress(OSError, ValueError):
            found[int(path.name.rpartition("-")[2])] = int(path.read_text())
    return found
