"""A task that counts how often each sample is read: row i of its table goes down by 1 each time.

The samples' only feature is their number. `pause_ms` is the length of a step, more on odd workers.
"""

import time

import msgspec
import numpy as np

from mpips import BSP, SGD, EmbeddingTable
from mpips.tasks import StepResult, Task


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The task's own options."""

    pause_ms: float = 0.0


class Seen(Task):
    """See above."""

    name = "seen"
    Options = Options
    metrics = ()

    def __init__(self, info, options, seed):
        self.pause_s = options.pause_ms / 1000

    def tables(self):
        return [EmbeddingTable("seen", 1, SGD(1.0), BSP("sum"), init="zeros")]

    def step(self, worker, batch):
        time.sleep(self.pause_s * (1 + worker.index % 2))
        numbers = batch.x[:, 0].astype(np.int64)
        worker.table("seen").push(numbers, np.ones((len(numbers), 1), np.float32))
        return StepResult(1.0, len(numbers))

    def predict(self, worker, batch):
        return np.zeros(batch.n, np.float32)
