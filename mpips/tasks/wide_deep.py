"""Wide & Deep: a linear model and a network, trained together.

Cheng et al., "Wide & Deep Learning for Recommender Systems", DLRS 2016. The wide part here has a weight for
each text and for each number; products of columns, which the paper's wide part has for pairs that its
authors chose, are what `deepfm` and `dcnv2` learn. All tables have Adagrad.
"""

from __future__ import annotations

from mpips.data.dataset import Batch
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.tasks.base import Float32, Worker
from mpips.tasks.linear import prior_gradient
from mpips.tasks.mixed import MixedStep, MixedTask, SideOutputs


class Linear:
    """The side with k weights for each text, in the table `wide`, and each number, in `linear`.

    Attributes:
        outputs: float32, shape (n, k).
    """

    def __init__(self, step: MixedStep) -> None:
        """Pull the weights of the batch."""
        self._step = step
        texts, numbers = step.columns.texts, step.columns.numbers
        self._rows = step.worker.table("wide").pull(texts.keys)
        self.outputs: Float32 = texts.sum_by_row(self._rows[texts.key_ids])
        if numbers.shape[1]:
            self._weights = step.worker.table("linear").pull()
            self.outputs = self.outputs + numbers @ self._weights.reshape(numbers.shape[1], -1)

    def push(self, error: Float32) -> None:
        """Push the gradients by the weights. There is no gradient by the inputs of the network."""
        step = self._step
        texts, numbers = step.columns.texts, step.columns.numbers
        gradient = texts.sum_by_key(error[texts.row_ids])
        gradient = gradient + prior_gradient(texts, self._rows, step.options.prior, step.batch)
        step.worker.table("wide").push(texts.keys, gradient, base=self._rows)
        if numbers.shape[1]:
            step.push_dense("linear", numbers.T @ error, self._weights)


class WideDeep(MixedTask):
    """A network and a linear model on the same columns."""

    name = "wide_deep"

    def side_tables(self) -> list[Table]:
        """Return `wide`, with a value for each output in a row, and, if there are numbers, `linear`.

        `linear` has shape (numbers,) for one output, else (numbers, outputs).
        """
        k, n_inputs = self.outputs.n, self.features.n_inputs
        tables: list[Table] = [EmbeddingTable("wide", k, optimizer=self.adagrad())]
        if n_inputs:
            shape = (n_inputs, k) if k > 1 else (n_inputs,)
            tables.append(DenseTable("linear", shape, optimizer=self.adagrad()))
        return tables

    def prefetch(self, worker: Worker, batch: Batch) -> None:
        """Prefetch the rows of the texts in a batch in both tables."""
        keys = self.features.announce(batch)
        worker.table("embedding").prefetch(keys)
        worker.table("wide").prefetch(keys)

    def sides(self, step: MixedStep) -> SideOutputs:
        """Return the linear model."""
        return [Linear(step)]
