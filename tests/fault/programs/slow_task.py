"""A task one worker of which is slow, so that with backup workers it skips clocks."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec
import numpy as np

from mpips import BSP, SGD, DenseTable
from mpips.data import Batch, DataInfo
from mpips.tasks import StepResult, Task
from mpips.training import evaluation
from mpips.worker.worker import Worker

if "DIVIDED_AUC" in os.environ:
    evaluation._ONE_RANK = 0  # as with more test samples than one worker ranks


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The slow worker, and the seconds that it sleeps in a step."""

    slow: int = 0
    pause_s: float = 0.02


class Slow(Task):
    """Push nothing new; pull in steps and in predictions, as tasks do."""

    name = "slow"
    Options = Options
    default_epochs = 4
    default_batch_size = 8

    def __init__(self, info: DataInfo, options: Options, seed: int) -> None:
        """Make the task."""
        self.n, self.options = info.n_features, options

    def tables(self) -> list[Any]:
        """Return one dense table with a backup worker."""
        return [DenseTable("w", (self.n,), SGD(0.01), BSP(backup=1))]

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """Pull, wait if this worker is the slow one, push."""
        worker.table("w").pull()
        if worker.index == self.options.slow:
            time.sleep(self.options.pause_s)
        worker.table("w").push(np.zeros(self.n, np.float32))
        return StepResult(0.5 * batch.n, batch.n)

    def predict(self, worker: Worker, batch: Batch) -> np.ndarray:
        """Pull, and return ascending scores."""
        worker.table("w").pull()
        return np.linspace(0, 1, batch.n).astype(np.float32)
