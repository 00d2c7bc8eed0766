"""The job of the suite `recovery`: a dense table, and a note of when each attempt has made its first step."""

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
_PAUSE_S = 0.005  # so that a run lasts, and leaves the cores to those who come back


class Recovering(Task):
    """Pushes a constant; worker 0 writes the time of its first complete step into the attempt's logs."""

    name = "recovering"

    def __init__(self, info: DataInfo, options: Any, seed: int) -> None:
        """See Task."""
        self._steps = 0

    def tables(self) -> list[Table]:
        """See Task."""
        return [DenseTable("w", (N_VALUES,), Adagrad(0.01))]

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """See Task."""
        self._steps += 1
        run = directory.current()
        if self._steps == 2 and worker.index == 0 and run is not None:
            directory.replace_json(run.logs / FIRST_STEP, time.time())
        w = worker.table("w").pull()
        time.sleep(_PAUSE_S)
        worker.table("w").push(w * 0 + 1)
        return StepResult(0.0, batch.n)

    def predict(self, worker: Worker, batch: Batch) -> Float32:
        """See Task; there is nothing to predict."""
        raise NotImplementedError
