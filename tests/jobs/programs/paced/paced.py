"""The task `mlp` with pauses, so that a test can disturb it; it computes the same values."""

from __future__ import annotations

import os
import time
from pathlib import Path

from mpips.data.dataset import Batch
from mpips.tasks.base import StepResult, Worker
from mpips.tasks.mlp import Mlp

READY = 10  # steps of worker 0, after which it makes the file "at-work"
PAUSE_S = 0.2  # seconds of pause before each step


class Paced(Mlp):
    """Task that pauses before each step in the first attempt of the first allocation of a job."""

    name = "paced"
    _n_steps = 0

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """Do a step of `mlp`; make the file "at-work" once worker 0 has done READY steps."""
        folder = os.environ.get("MPIPS_TEST_PACED", "")
        counts = [os.environ.get(name, "0") for name in ("SLURM_RESTART_COUNT", "MPIPS_GENERATION")]
        if folder and counts == ["0", "0"]:
            time.sleep(PAUSE_S)
            if worker.index == 0 and self._n_steps == READY:
                Path(folder, "at-work").touch()
        self._n_steps += 1
        return super().step(worker, batch)
