"""Multi-layer perceptron: fully connected layers with ReLU between them.

The outputs are logits of the classes (softmax), or a standardised number; see `outputs.py`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from mpips.data.dataset import Batch
from mpips.data.info import DataInfo
from mpips.model.optimizer import Adagrad
from mpips.model.table import Table
from mpips.tasks.base import Float32, StepResult, Worker
from mpips.tasks.classifiers import DenseTask
from mpips.tasks.layers import backward, forward, layer_tables, pull_layers
from mpips.tasks.options import INITIAL_ACCUMULATOR, Count, Penalty, Rate
from mpips.tasks.outputs import LabelKind


class MlpOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[options] of the task `mlp`."""

    hidden: Annotated[
        tuple[Count, ...],
        Meta(description="Widths of the hidden layers, from the input to the output."),
    ] = (128,)
    learning_rate: Annotated[Rate, Meta(description="Learning rate of Adagrad.")] = 0.02
    l2: Annotated[
        Penalty, Meta(description="The loss has l2 / 2 times the sum of squared weights added.")
    ] = 1e-3
    labels: LabelKind = "classes"


class Mlp(DenseTask):
    """Layer i has the tables `weight<i>`, shape (width before, width after), and `bias<i>`."""

    name = "mlp"
    Options = MlpOptions
    labels_option = "labels"
    takes_several = True
    uses_weights = True
    default_epochs = 50
    default_batch_size = 32
    optimizer_options: ClassVar = {"learning_rate": ("", "lr")}

    def __init__(self, info: DataInfo, options: MlpOptions, seed: int) -> None:
        """Check that the data suits the task; see `Task`."""
        super().__init__(info, options, seed)
        self._widths = (info.n_features, *options.hidden, self.outputs.n)
        self._n_layers = len(self._widths) - 1

    def tables(self) -> list[Table]:
        """Return two tables per layer."""
        rate = self._options.learning_rate
        return layer_tables(self._widths, Adagrad(lr=rate, initial_accumulator=INITIAL_ACCUMULATOR))

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """Pull all layers, go forward and back, push all layers."""
        # Prepare the features before the pull: the servers may still be applying the last updates.
        x = self.features.of(batch)
        weights, biases = pull_layers(worker, self._n_layers)
        inputs, outputs = forward(x, weights, biases)
        loss_sum, error = self.outputs.loss(outputs, batch.labels, batch.weights)

        error *= np.float32(batch.weight / batch.n)
        decay = np.float32(self._options.l2 * batch.weight)
        for i, gradient, bias_gradient, _ in backward(inputs, weights, error):
            gradient += decay * weights[i]
            worker.table(f"weight{i}").push(gradient, base=weights[i])
            worker.table(f"bias{i}").push(bias_gradient, base=biases[i])
        return StepResult(loss_sum, batch.n)

    def evaluate(self, worker: Worker, batch: Batch) -> Float32:
        """Pull all layers and return the outputs, float32, shape (n, k)."""
        return forward(self.features.of(batch), *pull_layers(worker, self._n_layers))[1]
