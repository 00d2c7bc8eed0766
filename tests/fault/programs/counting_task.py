"""A task whose tables hold, at the end, how often each feature was seen: exact in any order."""

from __future__ import annotations

import time

import msgspec
import numpy as np

from mpips import SGD, DenseTable, EmbeddingTable
from mpips.tasks import StepResult, Task

COPIES = 200  # of the dense counts: a push of 320 KiB


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`pause_s`: a step takes about so long."""

    pause_s: float = 0.01


class Counting(Task):
    name = "counting"
    Options = Options
    default_epochs = 6
    default_batch_size = 16

    def __init__(self, info, options, seed):
        self.n_features = info.n_features
        self.options = options

    def tables(self):
        shape = (COPIES, self.n_features)
        return [
            DenseTable("seen", shape, SGD(1.0), init=np.zeros(shape, np.float32)),
            EmbeddingTable("rows", 4, SGD(1.0), init="zeros"),
        ]

    def step(self, worker, batch):
        time.sleep(self.options.pause_s)
        counts = batch.densify(self.n_features).sum(axis=0)
        keys = np.flatnonzero(counts).astype(np.int64)
        worker.table("seen").push(np.tile(counts, (COPIES, 1)))
        rows = np.repeat(counts[keys, None], 4, axis=1).astype(np.float32)
        worker.table("rows").push(keys, rows)
        return StepResult(0.0, batch.n)

    def predict(self, worker, batch):
        return np.zeros(batch.n, np.float32)
