"""Choose the number of epochs of a draft, and the patience of its early stopping, by the number of samples.

With validation data the number of epochs is only a bound: training ends when the validation data is predicted
worse for a while, and the best values are kept. So few samples get more epochs than a task has by default:
they come to `LEAST_UPDATES`. Many samples get fewer, so that a run has an end: they come to `MOST_UPDATES` at
most. Without validation data nothing ends a run that only learns its samples by heart, so it is not made
longer. Nor is a run of a task whose penalty depends on its length (`Task.schedule`: the l1 of FTRL): with 71
epochs in place of 30, a file of 2,500 samples was predicted worse.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from mpips.tasks import Task

LEAST_UPDATES = 5_000  # updates of a run with validation data, unless it has MOST_EPOCHS
MOST_UPDATES = 200_000  # updates of a run, unless it has LEAST_EPOCHS
LEAST_EPOCHS, MOST_EPOCHS = 3, 200
# Epochs without a better metric after which training ends. More of them choose among more epochs by the noise
# of few validation samples: with 20, files of 2,500 samples were never predicted better, and sometimes worse.
PATIENCE = 5


class Passes(NamedTuple):
    """The length of a run.

    Attributes:
        epochs: Passes over the samples.
        patience: Epochs without a better metric after which training ends; 0: no early stopping.
        per_epoch: Updates of an epoch of one worker.
        reason: Why the number of epochs is not the default of the task; "": it is.
    """

    epochs: int
    patience: int
    per_epoch: int
    reason: str


def choose_passes(task: type[Task], n_samples: int, holds_out: bool) -> Passes:
    """Return the length of a run of one worker with the default batch size of the task.

    Args:
        task: The task.
        n_samples: Samples that are trained on.
        holds_out: There is validation data.
    """
    per_epoch = max(1, math.ceil(n_samples / task.default_batch_size))
    epochs, reason = task.default_epochs, ""
    fewest = 0
    if holds_out and not has_schedule(task):
        fewest = min(math.ceil(LEAST_UPDATES / per_epoch), MOST_EPOCHS)
    most = max(MOST_UPDATES // per_epoch, LEAST_EPOCHS)
    if epochs < fewest:
        epochs, reason = fewest, "few samples"
    if epochs > most:
        epochs, reason = most, "many samples"
    patience = min(PATIENCE, max(epochs // 3, 2)) if holds_out else 0
    return Passes(epochs, patience, per_epoch, reason)


def has_schedule(task: type[Task]) -> bool:
    """Return True if the options of the task's tables depend on the length of the run."""
    return getattr(task, "schedule", Task.schedule) is not Task.schedule
