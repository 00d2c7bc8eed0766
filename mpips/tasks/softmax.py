"""Multinomial logistic regression: the plainest dense model, for any number of classes."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from mpips.data.dataset import Batch
from mpips.data.info import DataInfo
from mpips.data.metrics import Scores
from mpips.data.moments import Moments
from mpips.model.optimizer import Adagrad
from mpips.model.table import DenseTable, Table
from mpips.tasks.base import Float32, StepResult, Task, Worker
from mpips.tasks.features import DenseFeatures
from mpips.tasks.losses import (
    class_count,
    class_logits,
    class_metrics,
    class_scores,
    softmax_loss,
)
from mpips.tasks.options import INITIAL_ACCUMULATOR, Penalty, Rate


class SoftmaxOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the task `softmax`.

    Attributes:
        learning_rate: Of Adagrad, whose steps shrink by themselves.
        l2: The loss has l2 / 2 times the sum of squared weights added.
    """

    learning_rate: Rate = 0.1
    l2: Penalty = 2e-3


class Softmax(Task):
    """Probabilities softmax(x W + b) of standardised features x."""

    name = "softmax"
    Options = SoftmaxOptions
    default_epochs = 40
    default_batch_size = 32
    optimizer_options: ClassVar = {"learning_rate": ("", "lr")}

    def __init__(self, info: DataInfo, options: SoftmaxOptions, seed: int) -> None:
        """Check that the data suits the task; see `Task`."""
        self._features = DenseFeatures(info, self.name)
        self._options = options
        self._n_classes = class_count(info, self.name)
        self.metrics = class_metrics(info)

    def tables(self) -> list[Table]:
        """Return `weight` (d, k) and `bias` (k,), both zero at first: the problem is convex."""
        rate = self._options.learning_rate
        optimizer = Adagrad(lr=rate, initial_accumulator=INITIAL_ACCUMULATOR)
        shape = (self._features.n_features, self._n_classes)
        return [
            DenseTable("weight", shape, optimizer=optimizer),
            DenseTable("bias", shape[1:], optimizer=optimizer),
        ]

    def prepare(self, worker: Worker, moments: Moments) -> None:
        """Take mean and deviation of the features."""
        self._features.prepare(moments)

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """Pull, compute the gradient, push."""
        x = self._features.of(batch)
        weight, bias = worker.table("weight").pull(), worker.table("bias").pull()
        loss_sum, error = softmax_loss(x @ weight + bias, batch.labels)

        error *= np.float32(batch.weight / batch.n)
        weight_gradient = x.T @ error
        weight_gradient += np.float32(self._options.l2 * batch.weight) * weight
        worker.table("weight").push(weight_gradient, base=weight)
        worker.table("bias").push(error.sum(axis=0), base=bias)
        return StepResult(loss_sum, batch.n)

    def predict(self, worker: Worker, batch: Batch) -> Float32:
        """Return the probabilities of the classes."""
        return class_scores(self._class_logits(worker, batch))

    def logits(self, worker: Worker, batch: Batch) -> Scores:
        """Return the logits of the classes, of two their difference."""
        return class_logits(self._class_logits(worker, batch))

    def report(self) -> str:
        """Return what was standardised."""
        return self._features.report()

    def _class_logits(self, worker: Worker, batch: Batch) -> Float32:
        x = self._features.of(batch)
        logits: Float32 = x @ worker.table("weight").pull() + worker.table("bias").pull()
        return logits
