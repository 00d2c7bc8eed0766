"""A task that counts how often each sample is read: row i of its table goes down by 1 each time.

The samples' only feature is their number. `pause_ms` is the length of a step, more on odd workers. With
`until`, steps grow slower until that folder has a checkpoint inside an epoch; then they do not wait.
"""

import time
from pathlib import Path

import msgspec
import numpy as np

from mpips import BSP, SGD, EmbeddingTable
from mpips.checkpoint import list_checkpoints, open_checkpoint
from mpips.tasks import StepResult, Task


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The task's own options."""

    pause_ms: float = 0.0
    until: str = ""


def inside_an_epoch(path):
    """Whether some worker stands inside an epoch at this checkpoint."""
    with open_checkpoint(path) as checkpoint:
        return any(worker.step for worker in checkpoint.manifest.workers)


class Seen(Task):
    """See above."""

    name = "seen"
    Options = Options
    metrics = ()

    def __init__(self, info, options, seed):
        self.pause_s = options.pause_ms / 1000
        self.until = Path(options.until) if options.until else None

    def tables(self):
        return [EmbeddingTable("seen", 1, SGD(1.0), BSP("sum"), init="zeros")]

    def step(self, worker, batch):
        self._wait(worker.index)
        numbers = batch.x[:, 0].astype(np.int64)
        worker.table("seen").push(numbers, np.ones((len(numbers), 1), np.float32))
        return StepResult(1.0, len(numbers))

    def _wait(self, index):
        if self.until:
            if any(inside_an_epoch(entry.path) for entry in list_checkpoints(self.until)):
                self.until, self.pause_s = None, 0.0
            else:
                self.pause_s = min(1.1 * self.pause_s, 1.0)
        time.sleep(self.pause_s * (1 + index % 2))

    def predict(self, worker, batch):
        return np.zeros(batch.n, np.float32)
