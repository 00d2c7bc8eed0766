"""Multinomial logistic regression: the simplest dense model, for any number of classes."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from mpips.data.dataset import Batch
from mpips.model.optimizer import Adagrad
from mpips.model.table import DenseTable, Table
from mpips.tasks.base import Float32, StepResult, Worker
from mpips.tasks.classifiers import DenseTask
from mpips.tasks.losses import softmax_loss
from mpips.tasks.options import INITIAL_ACCUMULATOR, Penalty, Rate


class SoftmaxOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[options] of the task `softmax`."""

    learning_rate: Annotated[Rate, Meta(description="Learning rate of Adagrad.")] = 0.1
    l2: Annotated[
        Penalty, Meta(description="The loss has l2 / 2 times the sum of squared weights added.")
    ] = 2e-3


class Softmax(DenseTask):
    """Probabilities softmax(x W + b) of standardised features x."""

    name = "softmax"
    Options = SoftmaxOptions
    uses_weights = True
    default_epochs = 40
    default_batch_size = 32
    optimizer_options: ClassVar = {"learning_rate": ("", "lr")}

    def tables(self) -> list[Table]:
        """Return `weight`, shape (d, k), and `bias`, shape (k,), both initially 0: the problem is convex."""
        rate = self._options.learning_rate
        optimizer = Adagrad(lr=rate, initial_accumulator=INITIAL_ACCUMULATOR)
        shape = (self.features.n_features, self.outputs.n)
        return [
            DenseTable("weight", shape, optimizer=optimizer),
            DenseTable("bias", shape[1:], optimizer=optimizer),
        ]

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """Pull, compute the gradient, push."""
        x = self.features.of(batch)
        weight, bias = worker.table("weight").pull(), worker.table("bias").pull()
        loss_sum, error = softmax_loss(x @ weight + bias, batch.labels, batch.weights)

        # Turn the summed gradient into the weighted mean over the batch.
        error *= np.float32(batch.weight / batch.n)
        weight_gradient = x.T @ error
        weight_gradient += np.float32(self._options.l2 * batch.weight) * weight
        worker.table("weight").push(weight_gradient, base=weight)
        worker.table("bias").push(error.sum(axis=0), base=bias)
        return StepResult(loss_sum, batch.n)

    def evaluate(self, worker: Worker, batch: Batch) -> Float32:
        """Pull the model and return the logits of the classes, float32, shape (n, k)."""
        x = self.features.of(batch)
        logits: Float32 = x @ worker.table("weight").pull() + worker.table("bias").pull()
        return logits
