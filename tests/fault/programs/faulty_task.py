"""A task whose worker 1 goes wrong at a chosen step, once: least squares, slowly enough to be hit."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

import msgspec
import numpy as np

from mpips import Adagrad, DenseTable
from mpips.tasks import StepResult, Task


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What goes wrong, at which step of this process, unless the file `once` is there already."""

    fault: str = ""
    at: int = 0
    once: str = ""
    pause_s: float = 0.03


class Faulty(Task):
    name = "faulty"
    Options = Options
    default_epochs = 10
    default_batch_size = 16

    def __init__(self, info, options, seed):
        self.n_features = info.n_features
        self.options = options
        self.steps = 0

    def tables(self):
        return [DenseTable("w", (self.n_features,), Adagrad(0.1))]

    def step(self, worker, batch):
        self.steps += 1
        time.sleep(self.options.pause_s)
        if worker.index == 1 and self.steps == self.options.at:
            self.go_wrong()
        x, w = batch.densify(self.n_features), worker.table("w").pull()
        error = x @ w - batch.labels
        worker.table("w").push(x.T @ error * (batch.weight / batch.n), base=w)
        return StepResult(float(error @ error), batch.n)

    def go_wrong(self):
        if self.options.once:
            path = Path(self.options.once)
            if path.exists():
                return
            path.write_text(str(os.getpid()))
        if self.options.fault == "raise":
            raise ValueError("planted")
        if self.options.fault == "memory":
            np.empty(1 << 60, np.uint8)
        if self.options.fault == "crash":
            ctypes.string_at(8)
        if self.options.fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.options.fault == "leave":
            os._exit(3)

    def predict(self, worker, batch):
        return batch.densify(self.n_features) @ worker.table("w").pull()
