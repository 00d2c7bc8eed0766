"""The result of a training job, and the history of its losses and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass
class Result:
    """The result of a job: totals over all workers, metrics of evaluations on worker 0 only.

    Attributes:
        metrics: The mean loss of the last epoch, and the metrics at the end of the training of the validation
            data, or of the test data of a job without.
        history: For each epoch of this launch its number from 1, the mean loss of all workers, and the
            metrics of these data if they were evaluated.
        losses: Summed loss and number of samples of this worker, by epoch from 0.
        evaluated: Metrics of these data, by epoch from 0.
        samples: Samples that were trained on in this launch.
        seconds: Seconds of the training in this launch, without the final evaluation.
        epochs: Epochs of the run that are complete.
        steps: Steps of the run up to here: the greatest clock of a worker, those of earlier launches
            included.
        n_samples: Samples of the training data.
        n_features: Features of the training data.
        skipped: Bad lines that were left out, by "train", "validation" and "test"; only those above 0.
        model: Text about the model that was trained; "" for a task without one.
        notes: Sentences on the data, as printed at the start, on worker 0 only.
        stopped: Why training ended early, or "".
        best: The best checkpoint: its metric, value, epoch and path; None: there is no best checkpoint.
        evaluated_epoch: The last epoch, from 0, that was evaluated, on all workers; -1: none was.
        is_ended_by_caller: `on_epoch_end` has ended it.
        evaluated_data: "validation" or "test": the data of `metrics` and `history`; "" without such data.
        test_metrics: Metrics of the test data; {} without such data, or if it could not be evaluated.
        test_epoch: Number of complete epochs of the values that have `test_metrics`.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    losses: dict[int, tuple[float, int]] = field(default_factory=dict)
    evaluated: dict[int, dict[str, float]] = field(default_factory=dict)
    samples: int = 0
    seconds: float = 0.0
    epochs: int = 0
    steps: int = 0
    n_samples: int = 0
    n_features: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    model: str = ""
    notes: tuple[str, ...] = ()
    stopped: str = ""
    best: dict[str, Any] | None = None
    evaluated_epoch: int = -1
    is_ended_by_caller: bool = False
    evaluated_data: str = ""
    test_metrics: dict[str, float] = field(default_factory=dict)
    test_epoch: int = 0


def loss_sums(result: Result, last: tuple[float, int], n_epochs: int) -> npt.NDArray[np.float64]:
    """Return this worker's losses as values to be added up over workers.

    Args:
        result: Losses by epoch and samples of this worker.
        last: Summed loss and samples of its last epoch.
        n_epochs: Epochs of the run.

    Returns:
        float64, shape (n_epochs + 1, 3): for each epoch summed loss, samples, and 1 if the worker has ended
        it; at the end those of the last epoch, and the samples of this launch.
    """
    sums = np.zeros((n_epochs + 1, 3))
    for epoch, (loss, n) in result.losses.items():
        sums[epoch] = loss, n, 1
    sums[-1] = *last, result.samples
    return sums


def history(
    sums: npt.NDArray[np.float64], evaluated: Mapping[int, dict[str, float]]
) -> list[dict[str, float]]:
    """Return `Result.history`.

    Args:
        sums: For each epoch, the values of `loss_sums` added up over workers.
        evaluated: Metrics by epoch from 0.
    """
    found = []
    for epoch in sorted({*np.flatnonzero(sums[:, 2]).tolist(), *evaluated}):
        total, n, _ = sums[epoch] if epoch < len(sums) else (0.0, 0, 0)
        loss = {"loss": float(total / n)} if n else {}
        found.append({"epoch": epoch + 1, **loss, **evaluated.get(epoch, {})})
    return found
