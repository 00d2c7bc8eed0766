"""The pipeline of docs/examples, with checkpoints. It prints the digest of its values.

usage: pipelined.py STEPS [WORKER STEP]   in that step SIGKILL of that worker ends the first attempt: in the
middle of its messages, when a checkpoint is there.
"""

import hashlib
import importlib
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import mpips

# Made data instead of the digits: scikit-learn takes longer to load than all of this.
made = np.random.default_rng(1).integers(0, 17, (500, 65))
datasets: Any = SimpleNamespace(load_digits=lambda return_X_y: (made[:, :64], made[:, 64] % 10))
sys.modules["sklearn.datasets"] = datasets
sys.path.insert(0, str(Path(__file__).parents[3] / "docs/examples"))
pipeline: Any = importlib.import_module("pipeline")

pipeline.STEPS = int(sys.argv[1])
DEATH = [int(word) for word in sys.argv[2:]]
MICRO_BATCH = 2  # the tag of the message before which the worker is killed


class Doomed:
    """A worker that is killed before it sends a message of a step."""

    def __init__(self, worker: mpips.Worker, step: int) -> None:
        self._worker, self._step = worker, step

    def __getattr__(self, name: str) -> object:
        return getattr(self._worker, name)

    def send(self, array: object, *, to: int, tag: int) -> None:
        """Send an array, or be killed when there is a checkpoint. To write it the servers need no worker."""
        if tag == MICRO_BATCH and self._worker.now == self._step:
            latest = Path(os.environ["MPIPS_RUN_DIR"]) / "checkpoints" / "latest"
            deadline = time.monotonic() + 60
            while not latest.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        self._worker.send(array, to=to, tag=tag)


def main(worker: mpips.Worker) -> list:
    """Train the pipeline."""
    is_doomed = DEATH and os.environ.get("MPIPS_GENERATION") == "0" and worker.index == DEATH[0]
    return pipeline.main(Doomed(worker, DEATH[1]) if is_doomed else worker)


outcome = mpips.run(main, pipeline.tables, every_steps=10)
if outcome.is_first_worker:
    digest = hashlib.sha256(b"".join(values.tobytes() for values in outcome.value))
    print("digest", digest.hexdigest())
