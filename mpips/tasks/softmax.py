"""Multinomial logistic regression: the simplest model with layers, for any number of classes."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from mpips.data.dataset import Batch
from mpips.data.info import DataInfo
from mpips.model.optimizer import Adagrad
from mpips.model.table import DenseTable, Table
from mpips.tasks.base import Float32, StepResult, Worker
from mpips.tasks.classifiers import LayeredTask
from mpips.tasks.options import INITIAL_ACCUMULATOR, Penalty, Rate, RowPrior, refuse_idle
from mpips.tasks.proposals import PENALTY, RATE, Proposal, around


class SoftmaxOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[options] of the task `softmax`."""

    learning_rate: Annotated[Rate, Meta(description="Learning rate of Adagrad.")] = 0.1
    l2: Annotated[
        Penalty,
        Meta(
            description="The loss has l2 / 2 times the sum of squared weights added. Rows of weights have "
            "prior instead."
        ),
    ] = 2e-3
    prior: RowPrior = 1.0


class Softmax(LayeredTask):
    """Probabilities softmax(x W + b) of features x."""

    name = "softmax"
    Options = SoftmaxOptions
    uses_weights = True
    default_epochs = 40
    default_batch_size = 32
    optimizer_options: ClassVar = {"learning_rate": ("", "lr")}
    first = "weight"

    def __init__(self, info: DataInfo, options: SoftmaxOptions, seed: int) -> None:
        """Check that the data suits the task; see `Task`."""
        super().__init__(info, options, seed)
        refuse_idle(options, "l2" if self.inputs.has_rows else "prior", self.inputs.has_rows)

    def tables(self) -> list[Table]:
        """Return `weight` and `bias`, shape (k,), initially 0: the problem is convex.

        `weight` has shape (d, k), or rows of k values.
        """
        rate = self._options.learning_rate
        optimizer = Adagrad(lr=rate, initial_accumulator=INITIAL_ACCUMULATOR)
        k = self.outputs.n
        return [
            self.inputs.table("weight", k, optimizer, "zeros"),
            DenseTable("bias", (k,), optimizer=optimizer),
        ]

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """Pull, compute the gradient, push."""
        inputs = self.inputs.of(batch)
        weight, bias = inputs.pull(worker, "weight"), worker.table("bias").pull()
        loss_sum, error = self.outputs.loss(inputs.x @ weight + bias, batch.labels, batch.weights)

        # Turn the summed gradient into the weighted mean over the batch.
        error *= np.float32(batch.weight / batch.n)
        gradient = inputs.x.T @ error
        gradient += inputs.penalty(weight, self._options, batch)
        inputs.push(worker, "weight", gradient, weight)
        worker.table("bias").push(error.sum(axis=0), base=bias)
        return StepResult(loss_sum, batch.n)

    def evaluate(self, worker: Worker, batch: Batch) -> Float32:
        """Pull the model and return the logits of the classes, float32, shape (n, k)."""
        inputs = self.inputs.of_unseen(batch)
        logits: Float32 = inputs.x @ inputs.pull(worker, "weight") + worker.table("bias").pull()
        return logits

    def proposals(self) -> list[Proposal]:
        """Propose the rate and the penalty that these data have."""
        own = self._options
        penalty = around("prior", own.prior or 1.0, 100, PENALTY)
        if not self.inputs.has_rows:
            penalty = around("l2", own.l2 or 2e-3, 30, PENALTY)
        return [around("learning_rate", own.learning_rate, 10, RATE), penalty]

    def describe_model(self) -> str:
        """Return what is trained: softmax regression, of which features."""
        return (
            f"softmax regression of {self.n_classes:,} classes, a weight for each class and each of "
            f"{self.inputs.parts}"
        )
