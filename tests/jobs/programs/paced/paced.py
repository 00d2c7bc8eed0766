"""The task `mlp`, slowly enough to be disturbed; what it computes is the same."""

from __future__ import annotations

import os
import time
from pathlib import Path

from mpips.data.dataset import Batch
from mpips.tasks.base import StepResult, Worker
from mpips.tasks.mlp import Mlp

# Steps of a worker after which it says that it is at work.
READY = 10
PAUSE_S = 0.2


class Paced(Mlp):
    """In the first attempt of the first turn of a job, and only there, steps take their time."""

    name = "paced"
    _n_steps = 0

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """Do the step of `mlp`; say when the first worker has done some of them."""
        folder = os.environ.get("MPIPS_TEST_PACED", "")
        counts = [os.environ.get(name, "0") for name in ("SLURM_RESTART_COUNT", "MPIPS_GENERATION")]
        if folder and counts == ["0", "0"]:
            time.sleep(PAUSE_S)
            if worker.index == 0 and self._n_steps == READY:
                Path(folder, "at-work").touch()
        self._n_steps += 1
        return super().step(worker, batch)
