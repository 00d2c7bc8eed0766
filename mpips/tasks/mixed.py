"""Base of the tasks that predict from a table with columns of text and of numbers.

Each text has an embedding, a row of the table `embedding`. The inputs are the embeddings of a sample's cells
of text, column by column, and its standardised numbers. They go through fully connected layers with ReLU
between them. An output is that of the last layer and what a subclass adds to it, its side:

    wide_deep   a weight for each text and each number
    deepfm      these weights, and the products of all pairs of embeddings
    dcnv2       cross layers

There is one output for two classes (the logit) and for a number, else one for each class or label;
`outputs.py` has their losses.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Protocol, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from mpips.data.dataset import Batch
from mpips.data.info import DataInfo
from mpips.data.metrics import Scores
from mpips.data.moments import Moments
from mpips.model.optimizer import Adagrad
from mpips.model.table import EmbeddingTable, Table
from mpips.tasks.base import Float32, StepResult, Task, Worker
from mpips.tasks.columns import ColumnBatch, ColumnFeatures
from mpips.tasks.layers import backward, forward, layer_tables, pull_layers
from mpips.tasks.linear import prior_gradient
from mpips.tasks.options import INITIAL_ACCUMULATOR, Count, Penalty, Rate
from mpips.tasks.outputs import LabelKind, outputs_of
from mpips.tasks.proposals import FACTORS, PENALTY, RATE, WIDTHS, Proposal, among, around


class MixedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[options] of the tasks `wide_deep` and `deepfm`."""

    dim: Annotated[Count, Meta(description="Length of an embedding.")] = 8
    hidden: Annotated[
        tuple[Count, ...],
        Meta(description="Widths of the hidden layers, from the input to the output."),
    ] = (128, 64)
    learning_rate: Annotated[Rate, Meta(description="Learning rate of Adagrad.")] = 0.05
    l2: Annotated[
        Penalty,
        Meta(
            description="The loss has l2 / 2 times the sum of the squared weights of dense tables added."
        ),
    ] = 5e-4
    prior: Annotated[
        Penalty,
        Meta(
            description="The summed loss of all samples has prior / 2 times the sum of squares of the rows "
            "of all texts added."
        ),
    ] = 20.0
    # With all embeddings 0, all their gradients are 0.
    init_std: Annotated[Rate, Meta(description="Standard deviation of the initial embeddings.")] = (
        0.01
    )
    labels: LabelKind = "classes"


class SideOutput(Protocol):
    """The part of the outputs of one batch that a task computes itself, beside the network.

    Attributes:
        outputs: float32, shape (n, k).
    """

    outputs: Float32

    def push(self, error: Float32) -> Float32 | None:
        """Push the gradients by the tables of the side.

        Args:
            error: Gradient by the outputs, float32, shape (n, k).

        Returns:
            The gradient by the inputs, float32, of their shape; None: it is 0.
        """


SideOutputs: TypeAlias = list[SideOutput]


class MixedStep:
    """The values of one batch from which the sides compute, in a step or for a prediction.

    Attributes:
        worker: The worker.
        batch: The batch.
        columns: Its columns.
        rows: The embeddings of its texts, float32, shape (m, dim).
        inputs: Its inputs, float32, shape (n, width).
        options: Options of the task.
    """

    def __init__(
        self, worker: Worker, batch: Batch, columns: ColumnBatch, rows: Float32, options: Any
    ) -> None:
        """Join the inputs."""
        self.worker = worker
        self.batch = batch
        self.columns = columns
        self.rows = rows
        self.inputs = columns.inputs(rows)
        self.options = options

    def push_dense(self, name: str, gradient: Float32, base: Float32) -> None:
        """Push the gradient of a dense table, with that of the penalty `l2`.

        Args:
            name: The table.
            gradient: As many values as the table has.
            base: The values that the gradient was computed on, of the shape of the table.
        """
        decay = np.float32(self.options.l2 * self.batch.weight)
        self.worker.table(name).push(gradient.reshape(base.shape) + decay * base, base=base)


class MixedTask(Task):
    """Task on columns of text and numbers.

    Tables: `embedding`, layers `weight<i>`, shape (width before, width after), and `bias<i>`; a subclass adds
    those of its side in `side_tables` and `sides`.

    Attributes:
        features: Columns of text and of numbers, and the scale of the latter.
        outputs: Meaning of the outputs.
    """

    Options: ClassVar[type[msgspec.Struct]] = MixedOptions
    labels_option = "labels"
    takes_several = True
    uses_weights = True
    default_epochs = 20
    default_batch_size = 64
    optimizer_options: ClassVar = {"learning_rate": ("", "lr")}

    def __init__(self, info: DataInfo, options: Any, seed: int) -> None:
        """Check that the data suits the task; see `Task`."""
        self.features = ColumnFeatures(info, self.name)
        self.outputs = outputs_of(info, self.name, one_logit=True)
        self._options = options
        self.labels = info.wants  # type: ignore[misc]
        self.metrics = self.outputs.metrics
        self._width = self.features.n_texts * options.dim + self.features.n_inputs
        self._widths = (self._width, *options.hidden, self.outputs.n)
        self._n_layers = len(self._widths) - 1

    def prepare(self, worker: Worker, moments: Moments) -> None:
        """Take the scale of the numbers, and that of the targets."""
        self.features.prepare(moments)
        self.outputs.prepare(moments)

    def proposals(self) -> list[Proposal]:
        """Propose the rate, the penalties, and the sizes of embeddings and layers."""
        own = self._options
        found = [around("learning_rate", own.learning_rate, 10, RATE)]
        if self.features.n_texts:
            found.append(around("prior", own.prior or 20.0, 20, PENALTY))
        found.append(around("l2", own.l2 or 5e-4, 30, PENALTY))
        if self.features.n_texts:
            found.append(among("dim", own.dim, [4, 8, 16, 32], FACTORS))
        return [*found, among("hidden", own.hidden, [[64], [128, 64], [256, 128]], WIDTHS)]

    def tables(self) -> list[Table]:
        """Return all tables."""
        optimizer = self.adagrad()
        init = f"normal({self._options.init_std!r})"
        embedding = EmbeddingTable("embedding", self._options.dim, optimizer=optimizer, init=init)
        return [embedding, *layer_tables(self._widths, optimizer), *self.side_tables()]

    def adagrad(self) -> Adagrad:
        """Return the optimizer of all tables."""
        return Adagrad(lr=self._options.learning_rate, initial_accumulator=INITIAL_ACCUMULATOR)

    def side_tables(self) -> list[Table]:
        """Return the tables of the sides."""
        raise NotImplementedError

    def sides(self, step: MixedStep) -> SideOutputs:
        """Pull the tables of the sides and compute their outputs."""
        raise NotImplementedError

    def prefetch(self, worker: Worker, batch: Batch) -> None:
        """Prefetch the embeddings of the texts in a batch."""
        worker.table("embedding").prefetch(self.features.announce(batch))

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """Pull all tables, go forward and back, push all tables."""
        columns = self.features.of(batch)
        rows = worker.table("embedding").pull(columns.texts.keys)
        step = MixedStep(worker, batch, columns, rows, self._options)
        weights, biases = pull_layers(worker, self._n_layers)
        inputs, outputs = forward(step.inputs, weights, biases)
        sides = self.sides(step)
        total = _total(outputs, sides)
        loss_sum, error = self.outputs.loss(total, batch.labels, batch.weights)

        # Turn the summed gradient into the weighted mean over the batch.
        error *= np.float32(batch.weight / batch.n)
        by_inputs = np.zeros_like(step.inputs)
        for i, gradient, by_bias, by_outputs in backward(inputs, weights, error):
            step.push_dense(f"weight{i}", gradient, weights[i])
            worker.table(f"bias{i}").push(by_bias, base=biases[i])
            if i == 0:
                by_inputs = by_outputs @ weights[0].T
        for side in sides:
            more = side.push(error)
            if more is not None:
                by_inputs += more
        by_rows = columns.sum_by_key(columns.cells(by_inputs, self._options.dim))
        by_rows += prior_gradient(columns.texts, rows, self._options.prior, batch)
        worker.table("embedding").push(columns.texts.keys, by_rows, base=rows)
        return StepResult(loss_sum, batch.n)

    def predict(self, worker: Worker, batch: Batch) -> Float32:
        """Return probabilities of class 1, shape (n,), of all classes or labels, (n, k), or numbers, (n,)."""
        return self.outputs.predict(self.evaluate(worker, batch))

    def logits(self, worker: Worker, batch: Batch) -> Scores | None:
        """Return the logits of class 1, shape (n,), or of all classes or labels, (n, k); None for numbers."""
        return self.outputs.logits(self.evaluate(worker, batch))

    def evaluate(self, worker: Worker, batch: Batch) -> Float32:
        """Pull what the batch needs and return the outputs, float32, shape (n, k).

        A text that no training sample contains counts like an empty cell.
        """
        columns = self.features.of_unseen(batch)
        embedding = worker.table("embedding")
        rows = embedding.pull(columns.texts.keys)
        # A row that equals its initial value has received no update.
        rows[(rows == embedding.initial(columns.texts.keys)).all(axis=1)] = 0
        step = MixedStep(worker, batch, columns, rows, self._options)
        _, outputs = forward(step.inputs, *pull_layers(worker, self._n_layers))
        return _total(outputs, self.sides(step))

    def report(self) -> str:
        """Return how many columns there are of each kind, how they were scaled, and constant labels."""
        return self.features.report() + self.outputs.report()


def _total(outputs: Float32, sides: SideOutputs) -> Float32:
    """Return the outputs of the last layer and of all sides together, float32, shape (n, k)."""
    total = outputs.copy()
    for side in sides:
        total += side.outputs
    return total
