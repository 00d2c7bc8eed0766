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
from mpips.model.table import DenseTable, Table
from mpips.tasks.base import Float32, StepResult, Worker
from mpips.tasks.classifiers import LayeredTask
from mpips.tasks.inputs import LayerInput
from mpips.tasks.layers import backward, forward, layer_tables
from mpips.tasks.options import (
    INITIAL_ACCUMULATOR,
    Count,
    Penalty,
    Rate,
    RowPrior,
    refuse_idle,
)
from mpips.tasks.outputs import LabelKind
from mpips.tasks.proposals import PENALTY, RATE, WIDTHS, Proposal, among, around

# Initial rows of the first layer, where their number is not known.
ROW_INIT = "normal(0.01)"


class MlpOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[options] of the task `mlp`."""

    hidden: Annotated[
        tuple[Count, ...],
        Meta(description="Widths of the hidden layers, from the input to the output."),
    ] = (128,)
    learning_rate: Annotated[Rate, Meta(description="Learning rate of Adagrad.")] = 0.02
    l2: Annotated[
        Penalty,
        Meta(
            description="The loss has l2 / 2 times the sum of squared weights added. Rows of weights have "
            "prior instead."
        ),
    ] = 1e-3
    prior: RowPrior = 1.0
    labels: LabelKind = "classes"


class Mlp(LayeredTask):
    """Layer i has the tables `weight<i>`, shape (width before, width after), and `bias<i>`.

    `weight0` may have rows of (width after) values instead.
    """

    name = "mlp"
    Options = MlpOptions
    labels_option = "labels"
    takes_several = True
    uses_weights = True
    default_epochs = 50
    default_batch_size = 32
    optimizer_options: ClassVar = {"learning_rate": ("", "lr")}
    first = "weight0"

    def __init__(self, info: DataInfo, options: MlpOptions, seed: int) -> None:
        """Check that the data suits the task; see `Task`."""
        super().__init__(info, options, seed)
        self._widths = (info.n_features, *options.hidden, self.outputs.n)
        self._n_layers = len(self._widths) - 1
        if not self.inputs.has_rows:
            refuse_idle(options, "prior", has_rows=False)
        elif self._n_layers == 1:
            refuse_idle(options, "l2", has_rows=True)

    def tables(self) -> list[Table]:
        """Return two tables per layer."""
        rate = self._options.learning_rate
        optimizer = Adagrad(lr=rate, initial_accumulator=INITIAL_ACCUMULATOR)
        if not self.inputs.has_rows:
            return layer_tables(self._widths, optimizer)
        # With one layer the problem is convex; with more, rows of 0 would all have equal gradients.
        init, width = ROW_INIT if self._n_layers > 1 else "zeros", self._widths[1]
        rows = self.inputs.table("weight0", width, optimizer, init)
        bias = DenseTable("bias0", (width,), optimizer=optimizer)
        return [rows, bias, *layer_tables(self._widths[1:], optimizer, first=1)]

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """Pull all layers, go forward and back, push all layers."""
        # Prepare the features before the pull: the servers may still be applying the last updates.
        inputs = self.inputs.of(batch)
        weights, biases = self._pull(worker, inputs)
        layers, outputs = forward(inputs.x, weights, biases)
        loss_sum, error = self.outputs.loss(outputs, batch.labels, batch.weights)

        error *= np.float32(batch.weight / batch.n)
        decay = np.float32(self._options.l2 * batch.weight)
        for i, gradient, bias_gradient, _ in backward(layers, weights, error):
            if i == 0:
                gradient += inputs.penalty(weights[0], self._options, batch)
                inputs.push(worker, "weight0", gradient, weights[0])
            else:
                gradient += decay * weights[i]
                worker.table(f"weight{i}").push(gradient, base=weights[i])
            worker.table(f"bias{i}").push(bias_gradient, base=biases[i])
        return StepResult(loss_sum, batch.n)

    def evaluate(self, worker: Worker, batch: Batch) -> Float32:
        """Pull all layers and return the outputs, float32, shape (n, k)."""
        inputs = self.inputs.of_unseen(batch)
        return forward(inputs.x, *self._pull(worker, inputs))[1]

    def _pull(self, worker: Worker, inputs: LayerInput) -> tuple[list[Float32], list[Float32]]:
        """Pull the weights and the biases of all layers. Blocks."""
        first = inputs.pull(worker, "weight0")
        weights = [worker.table(f"weight{i}").pull() for i in range(1, self._n_layers)]
        biases = [worker.table(f"bias{i}").pull() for i in range(self._n_layers)]
        return [first, *weights], biases

    def proposals(self) -> list[Proposal]:
        """Propose the rate, the penalties that these data have, and the widths of the layers."""
        own, found = self._options, []
        found.append(around("learning_rate", own.learning_rate, 10, RATE))
        if self._n_layers > 1 or not self.inputs.has_rows:
            found.append(around("l2", own.l2 or 1e-3, 30, PENALTY))
        if self.inputs.has_rows:
            found.append(around("prior", own.prior or 1.0, 30, PENALTY))
        return [*found, among("hidden", own.hidden, [[64], [128], [256], [128, 64]], WIDTHS)]

    def describe_model(self) -> str:
        """Return what is trained: layers of which widths, on which features."""
        outputs = {
            "targets": "a number",
            "several": f"{self.outputs.n:,} labels of a sample",
        }.get(self.labels, f"{self.n_classes:,} classes")
        hidden = ", ".join(f"{width:,}" for width in self._widths[1:-1])
        layers = f"with ReLU layers of {hidden} units" if hidden else "without hidden layers"
        return f"network {layers}, from {self.inputs.parts} to {outputs}"
