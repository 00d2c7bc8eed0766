"""A multi-layer perceptron: fully connected layers with ReLU between them, softmax at the end."""

from __future__ import annotations

import math
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
from mpips.tasks.options import INITIAL_ACCUMULATOR, Count, Penalty, Rate


class MlpOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the task `mlp`.

    Attributes:
        hidden: Widths of the hidden layers, from the input on.
        learning_rate: Of Adagrad, whose steps shrink by themselves.
        l2: The loss has l2 / 2 times the sum of squared weights added.
    """

    hidden: tuple[Count, ...] = (128,)
    learning_rate: Rate = 0.02
    l2: Penalty = 1e-3


class Mlp(Task):
    """Layer i has the tables `weight<i>` (width before, width after) and `bias<i>`."""

    name = "mlp"
    Options = MlpOptions
    default_epochs = 50
    default_batch_size = 32
    optimizer_options: ClassVar = {"learning_rate": ("", "lr")}

    def __init__(self, info: DataInfo, options: MlpOptions, seed: int) -> None:
        """Check that the data suits the task; see `Task`."""
        self._features = DenseFeatures(info, self.name)
        self._options = options
        self._widths = (info.n_features, *options.hidden, class_count(info, self.name))
        self._layers = range(len(self._widths) - 1)
        self.metrics = class_metrics(info)

    def tables(self) -> list[Table]:
        """Return two tables per layer; hidden layers start as He et al. (ICCV 2015) say."""
        rate = self._options.learning_rate
        optimizer = Adagrad(lr=rate, initial_accumulator=INITIAL_ACCUMULATOR)
        tables: list[Table] = []
        for i in self._layers:
            fan_in, fan_out = self._widths[i : i + 2]
            last = i == self._layers[-1]
            init = "xavier_normal" if last else f"normal({math.sqrt(2 / fan_in)!r})"
            tables += [
                DenseTable(f"weight{i}", (fan_in, fan_out), optimizer=optimizer, init=init),
                DenseTable(f"bias{i}", (fan_out,), optimizer=optimizer),
            ]
        return tables

    def prepare(self, worker: Worker, moments: Moments) -> None:
        """Take mean and deviation of the features."""
        self._features.prepare(moments)

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """Pull all layers, go forward and back, push all layers."""
        # What needs no values comes first: the servers may still be at work on them.
        x = self._features.of(batch)
        weights, biases = self._pull(worker)
        inputs, logits = self._forward(x, weights, biases)
        loss_sum, error = softmax_loss(logits, batch.labels)

        # Go back; `error` is the gradient by the output of layer i before its ReLU.
        error *= np.float32(batch.weight / batch.n)
        decay = np.float32(self._options.l2 * batch.weight)
        for i in reversed(self._layers):
            gradient = inputs[i].T @ error
            gradient += decay * weights[i]
            worker.table(f"weight{i}").push(gradient, base=weights[i])
            worker.table(f"bias{i}").push(error.sum(axis=0), base=biases[i])
            if i > 0:
                error = error @ weights[i].T
                error *= inputs[i] > 0
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
        return self._forward(self._features.of(batch), *self._pull(worker))[1]

    def _pull(self, worker: Worker) -> tuple[list[Float32], list[Float32]]:
        weights = [worker.table(f"weight{i}").pull() for i in self._layers]
        return weights, [worker.table(f"bias{i}").pull() for i in self._layers]

    def _forward(
        self, x: Float32, weights: list[Float32], biases: list[Float32]
    ) -> tuple[list[Float32], Float32]:
        """Return the input of every layer and the logits (n, k)."""
        inputs = [x]
        for i in self._layers:
            outputs = inputs[-1] @ weights[i]
            outputs += biases[i]
            if i < self._layers[-1]:
                inputs.append(np.maximum(outputs, 0, out=outputs))
        return inputs, outputs
