"""The task of the suite `kills` of tests/bench and of the fault tests: it counts the features of the samples.

Pushes are small whole numbers. float32 represents their sums exactly, in any order. So under every
consistency model a table contains at the end, for each feature, its number in the data times the epochs.

Two more tables are fitted to the labels. Each of their updates depends on the bits of all updates before it.
So under BSP their bits at the end must be those of an undisturbed run.

The values of pulled rows must be at least the values that this process last pulled plus what it has pushed
since. This check finds a lost update at once, not only at the end.
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
COPIES = 8  # rows of the dense counts, so that a push takes several records
SMALL_COPIES = 16
# A worker writes its number of steps to the file "steps-<index>" in its attempt's logs.
STEPS = "steps"
_FAR = 1 << 40  # upper end of a range of keys; all features are at its beginning, on one server
_AGAIN = 3  # first steps of a process, whose pushes an earlier attempt may have made already
_HELP_EVERY = 8  # steps between two helper processes
_HELPER_S = 60.0  # seconds after which a helper process exits


class LostUpdateError(MpipsError):
    """A pulled row is smaller than the updates that it must contain."""


class Counting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the task.

    Attributes:
        pause_s: Seconds that a step sleeps, so that a run takes long enough and leaves the cores to others.
        copies: Rows of the dense counts; their size decides how they are pushed, and in how many records.
        dense: Push counts to a dense table.
        small: Push counts to a small dense table, before the large one.
        rows: Push counts to an embedding table.
        pulls: Pull the rows before each push and for an evaluation.
        fitted: Fit a dense table, and with `pulls` also rows, to the labels.
        gaps: Push counts to an embedding table with all rows on one server, and to a dense table that lies
            on one server.
        helper: "terminated": start and terminate a pool of processes every few steps. "alive": fork a child
            that outlives the worker. "": no helper process.
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
    """Push the counts of each batch, and fit linear models to the labels."""

    name = "counted"
    Options = Counting
    default_epochs = 6
    default_batch_size = 16
    metrics = tuple(BINARY_METRICS)

    def __init__(self, info: DataInfo, options: Counting, seed: int) -> None:
        """Start with step 0; no counts are known yet."""
        self._n = info.n_features
        self._options = options
        self._least = np.zeros(self._n, np.float32)
        self._steps = 0

    def tables(self) -> list[Table]:
        """Return the tables that the options choose."""
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
        """Record the step, sleep, push the counts and fit the models. Blocks."""
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
        """Push the gradients of the models; return the summed loss of the last one."""
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
        """Pull the counts of these features, float32, shape (n,), and check them.

        Raises:
            LostUpdateError: A row contains less than this process pulled and pushed before.
        """
        found: Float32 = worker.table("rows").pull(keys)
        least = self._least[keys]
        if not (found == found[:, :1]).all() or (found[:, 0] < least).any():
            at = int(np.argmin(found.min(axis=1) - least))
            raise LostUpdateError(
                f"row {keys[at]} of table 'rows' is {found[at].tolist()}, expected at least {least[at]:g}"
            )
        self._least[keys] = found[:, 0]
        return found[:, 0]

    def predict(self, worker: Worker, batch: Batch) -> Float32:
        """Return a number that depends on the rows, not on the labels, to test evaluations."""
        if not self._options.pulls:
            return np.zeros(batch.n, np.float32)
        assert isinstance(batch, SparseBatch)
        x = batch.densify(self._n)
        keys = np.flatnonzero(x.sum(axis=0)).astype(np.int64)
        seen = x[:, keys] @ self._look(worker, keys)
        return (seen / (1 + seen)).astype(np.float32)

    def _note_step(self, worker: Worker) -> None:
        """Write the number of steps for observers outside of the run; start helper processes."""
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
    """Fork a child that does nothing and exits some time after the worker."""
    if os.fork():
        return
    deadline = time.monotonic() + _HELPER_S
    while time.monotonic() < deadline:
        time.sleep(0.1)
    os._exit(0)


def write_steps(logs: Path, worker: int, steps: int) -> None:
    """Write a worker's number of steps to the folder of logs of its attempt."""
    fd = os.open(logs / f"{STEPS}-{worker}", os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(fd, f"{steps:12d}".encode(), 0)
    finally:
        os.close(fd)


def read_steps(logs: Path) -> dict[int, int]:
    """Return the steps so far of an attempt's workers, by index; workers without a file are left out."""
    found = {}
    for path in logs.glob(f"{STEPS}-*"):
        with contextlib.suppress(OSError, ValueError):
            found[int(path.name.rpartition("-")[2])] = int(path.read_text())
    return found
