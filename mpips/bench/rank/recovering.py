"""The job of the suite `recovery`: it records when each attempt has completed its first step."""

from __future__ import annotations

import time
from typing import Any

from mpips.data.dataset import Batch
from mpips.data.info import DataInfo
from mpips.model.optimizer import Adagrad
from mpips.model.table import DenseTable, Table
from mpips.rundir import directory
from mpips.tasks import StepResult, Task
from mpips.tasks.base import Float32, Worker

FIRST_STEP = "first-step"
N_VALUES = 1 << 20
_PAUSE_S = 0.005  # seconds in each step, so that the run lasts and leaves the cores to the recovering ranks


class Recovering(Task):
    """Push a constant; worker 0 writes the time at which its first step is complete to the attempt's logs."""

    name = "recovering"

    def __init__(self, info: DataInfo, options: Any, seed: int) -> None:
        """Start with step 0; data and options do not matter."""
        self._steps = 0

    def tables(self) -> list[Table]:
        """Return one dense table of 4 MiB."""
        return [DenseTable("w", (N_VALUES,), Adagrad(0.01))]

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """Pull, sleep and push a constant; record the end of the first step of worker 0."""
        self._steps += 1
        run = directory.current()
        if self._steps == 2 and worker.index == 0 and run is not None:
            directory.replace_json(run.logs / FIRST_STEP, time.time())
        w = worker.table("w").pull()
        time.sleep(_PAUSE_S)
        worker.table("w").push(w * 0 + 1)
        return StepResult(0.0, batch.n)

    def predict(self, worker: Worker, batch: Batch) -> Float32:
        """Raise NotImplementedError: the task predicts nothing."""
        raise NotImplementedError
