"""A task that trains one epoch and then waits at each step until a file is there."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import numpy as np

from mpips import SGD, DenseTable
from mpips.tasks import StepResult, Task


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file to wait for."""

    gate: str = ""


class Gated(Task):
    name = "gated"
    Options = Options
    default_epochs = 3
    default_batch_size = 16

    def __init__(self, info, options, seed):
        self.n_features = info.n_features
        self.n_samples = info.n_samples_total
        self.gate = Path(options.gate)
        self.samples = 0
        self.spoke = False

    def tables(self):
        return [DenseTable("w", (self.n_features,), SGD(0.01))]

    def step(self, worker, batch):
        self.samples += batch.n
        if self.samples > self.n_samples // worker.n_workers + 1:
            deadline = time.monotonic() + 60
            while not self.gate.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            if worker.index == 0 and not self.spoke:
                self.spoke = True
                print("the gate is open", flush=True)
        worker.table("w").push(np.zeros(self.n_features, np.float32))
        return StepResult(0.5 * batch.n, batch.n)

    def predict(self, worker, batch):
        return np.zeros(batch.n, np.float32)
