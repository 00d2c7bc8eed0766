"""The job of the suite `elastic`: every worker records when each of its steps ends."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mpips.data.dataset import Batch
from mpips.data.info import DataInfo
from mpips.model.optimizer import Adagrad
from mpips.model.table import DenseTable, Table
from mpips.rundir import directory
from mpips.tasks import StepResult, Task
from mpips.tasks.base import Float32, Worker

N_VALUES = 1 << 20
_PAUSE_S = 0.005  # seconds in each step, so that others have the cores as well


def steps_file(attempt: Path, worker: int) -> Path:
    """Return the path of the times of a worker's steps in an attempt, in the attempt's folder of logs."""
    return attempt / f"steps-{worker}"


def read_steps(attempt: Path, worker: int) -> NDArray[np.float64]:
    """Return the Unix times at which a worker has ended its steps in an attempt, float64, shape (n,)."""
    path = steps_file(attempt, worker)
    data = path.read_bytes() if path.exists() else b""
    return np.frombuffer(data[: len(data) // 8 * 8], np.float64)


class SteppingTask(Task):
    """Push a constant, and record the end of each step."""

    name = "stepping"

    def __init__(self, info: DataInfo, options: Any, seed: int) -> None:
        """Open no file yet; data and options do not matter."""
        self._file: BinaryIO | None = None

    def tables(self) -> list[Table]:
        """Return one dense table of 4 MiB."""
        return [DenseTable("w", (N_VALUES,), Adagrad(0.01))]

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """Record the end of the step before; pull, sleep and push a constant."""
        run = directory.current()
        assert run is not None
        if self._file is None:
            self._file = steps_file(run.logs, worker.index).open("ab", buffering=0)
        self._file.write(struct.pack("d", time.time()))
        w = worker.table("w").pull()
        time.sleep(_PAUSE_S)
        worker.table("w").push(w * 0 + 1)
        return StepResult(0.0, batch.n)

    def predict(self, worker: Worker, batch: Batch) -> Float32:
        """Raise NotImplementedError: the task predicts nothing."""
        raise NotImplementedError
