"""A task whose steps cannot be repeated: the keys of its pushes are drawn anew each time."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import numpy as np

from mpips import SGD, EmbeddingTable
from mpips.tasks import StepResult, Task


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Steps are slow until a file of this pattern is in the folder."""

    folder: str = ""
    pattern: str = "*/checkpoints/step-*/manifest.json"
    pause_s: float = 0.2


class Unseeded(Task):
    """Counts rows of random keys."""

    name = "unseeded"
    Options = Options
    metrics = ()
    default_epochs = 2
    default_batch_size = 16

    def __init__(self, info, options, seed):
        self.random = np.random.default_rng()
        self.options = options
        self.waiting = bool(options.folder)

    def tables(self):
        return [EmbeddingTable("rows", 4, SGD(1.0), init="zeros")]

    def step(self, worker, batch):
        until = time.monotonic() + self.options.pause_s
        while self.waiting and time.monotonic() < until:
            self.waiting = not any(Path(self.options.folder).glob(self.options.pattern))
            time.sleep(0.01)
        keys = self.random.choice(10**6, 50, replace=False).astype(np.int64)
        worker.table("rows").push(keys, np.ones((50, 4), np.float32))
        return StepResult(0.0, batch.n)

    def predict(self, worker, batch):
        return np.zeros(batch.n, np.float32)
