"""The job of `bench recovery --kills`: tables that hold, at the end, how often each sample was seen.

Every sample has one feature, its own. What is pushed are small whole numbers, whose sums float32 holds
exactly in any order. A third table is fitted: each of its updates hangs on the bits of all those before.
"""

from __future__ import annotations

import time

import msgspec
import numpy as np

from mpips.data.dataset import Batch, SparseBatch
from mpips.data.info import DataInfo
from mpips.model.optimizer import SGD, Adagrad
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.tasks import StepResult, Task
from mpips.tasks.base import Float32, Worker

DIM = 4
COPIES = 8  # of the dense counts: a push of several records


class Pace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`pause_s`: a step sleeps so long, so that a run lasts and leaves the cores to others."""

    pause_s: float = 0.005


class Counted(Task):
    """Pushes each sample's count to a dense and to an embedding table, and fits a line to random labels."""

    name = "counted"
    Options = Pace

    def __init__(self, info: DataInfo, options: Pace, seed: int) -> None:
        """See Task."""
        self._n = info.n_features
        self._options = options

    def tables(self) -> list[Table]:
        """See Task."""
        shape = (COPIES, self._n)
        return [
            DenseTable("seen", shape, SGD(1.0), init=np.zeros(shape, np.float32)),
            EmbeddingTable("rows", DIM, SGD(1.0), init="zeros"),
            DenseTable("fitted", (self._n,), Adagrad(0.1)),
        ]

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """See Task."""
        time.sleep(self._options.pause_s)
        assert isinstance(batch, SparseBatch)
        x = batch.densify(self._n)
        counts = x.sum(axis=0)
        keys = np.flatnonzero(counts).astype(np.int64)
        worker.table("seen").push(np.tile(-counts, (COPIES, 1)))
        worker.table("rows").push(keys, np.repeat(-counts[keys, None], DIM, axis=1))
        w = worker.table("fitted").pull()
        error = x @ w + w.mean() - batch.labels
        gradient = (x.T @ error + error.mean()) * (batch.weight / batch.n)
        worker.table("fitted").push(gradient.astype(np.float32), base=w)
        return StepResult(float(error @ error), batch.n)

    def predict(self, worker: Worker, batch: Batch) -> Float32:
        """See Task; there is nothing to predict."""
        return np.zeros(batch.n, np.float32)
