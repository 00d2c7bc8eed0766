"""Linear models: a weight for each output and each feature, and a bias for each output.

The penalty is that of a normal prior of the weights; the biases have none. `LinearRows` has the weights in
rows of an embedding table, one for each key that occurs, and the biases in the row of key -1. `LinearMatrix`
has the weights in a dense table, and the biases in another.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from mpips.data.dataset import Batch
from mpips.data.info import DataInfo
from mpips.data.moments import Moments
from mpips.model.optimizer import Optimizer
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.tasks.base import Float32, Keys, StepResult, Worker
from mpips.tasks.features import DenseFeatures, Entries, EntryMatrix, SparseFeatures, with_rows
from mpips.tasks.outputs import Outputs

# The bias is a row of the table; features have keys from 0 on.
BIAS_KEY = np.int64(-1)


class LinearModel(Protocol):
    """The features and the weights of a linear model, for one storage of samples.

    Attributes:
        parts: Names what has a weight, for people.
    """

    parts: str

    def prepare(self, moments: Moments) -> None:
        """Take the scale of the features."""

    def tables(self, optimizer: Optimizer) -> list[Table]:
        """Return the tables, all with this optimizer and values of 0."""

    def prefetch(self, worker: Worker, batch: Batch) -> None:
        """Prefetch the rows of a batch."""

    def step(self, worker: Worker, batch: Batch, prior: float) -> StepResult:
        """Pull, compute the gradient with that of the penalty, push. Blocks in the pull."""

    def evaluate(self, worker: Worker, batch: Batch) -> Float32:
        """Pull the model and return the outputs, float32, shape (n, k)."""

    def report(self) -> str:
        """Return how the features were scaled."""


class LinearRows:
    """The table `weight` has a row of k values for each key.

    Attributes:
        features: Scale of the features.
    """

    def __init__(self, info: DataInfo, task: str, outputs: Outputs) -> None:
        """Take the outputs, k for each sample."""
        self.features = SparseFeatures(info, task)
        self._outputs = outputs
        self.parts = with_rows(info)

    def prepare(self, moments: Moments) -> None:
        """Take the scale of the features."""
        self.features.prepare(moments)

    def tables(self, optimizer: Optimizer) -> list[Table]:
        """Return `weight`."""
        return [EmbeddingTable("weight", self._outputs.n, optimizer=optimizer)]

    def prefetch(self, worker: Worker, batch: Batch) -> None:
        """Prefetch the rows of a batch."""
        worker.table("weight").prefetch(with_bias(self.features.announce(batch)))

    def step(self, worker: Worker, batch: Batch, prior: float) -> StepResult:
        """Pull the rows of the batch, compute their gradient, push it."""
        entries = self.features.of(batch)
        keys = with_bias(entries.keys)
        rows = worker.table("weight").pull(keys)
        outputs = _outputs(entries, rows)
        loss_sum, error = self._outputs.loss(outputs, batch.labels, batch.weights)

        # Turn the summed gradient into the weighted mean over the batch.
        error *= np.float32(batch.weight / batch.n)
        gradient = _gradient(entries, error)
        gradient[1:] += prior_gradient(entries, rows[1:], prior, batch)
        worker.table("weight").push(keys, gradient, base=rows)
        return StepResult(loss_sum, batch.n)

    def evaluate(self, worker: Worker, batch: Batch) -> Float32:
        """Pull the rows of the batch and return the outputs, float32, shape (n, k)."""
        entries = self.features.of_unseen(batch)
        return _outputs(entries, worker.table("weight").pull(with_bias(entries.keys)))

    def report(self) -> str:
        """Return how the features were scaled."""
        return self.features.report()


class LinearMatrix:
    """The table `weight` has shape (d, k), `bias` shape (k,).

    Attributes:
        features: Scale of the features.
    """

    def __init__(self, info: DataInfo, task: str, outputs: Outputs) -> None:
        """Raise DataError for more features than a dense table may have."""
        self.features = DenseFeatures(info, task)
        self._outputs = outputs
        self._n_samples = info.n_samples_total
        self.parts = f"{info.n_features:,} features"

    def prepare(self, moments: Moments) -> None:
        """Take the scale of the features."""
        self.features.prepare(moments)

    def tables(self, optimizer: Optimizer) -> list[Table]:
        """Return `weight` and `bias`."""
        shape = (self.features.n_features, self._outputs.n)
        return [
            DenseTable("weight", shape, optimizer=optimizer),
            DenseTable("bias", shape[1:], optimizer=optimizer),
        ]

    def prefetch(self, worker: Worker, batch: Batch) -> None:
        """Do nothing: a step pulls the whole tables."""

    def step(self, worker: Worker, batch: Batch, prior: float) -> StepResult:
        """Pull both tables, compute the gradients, push both."""
        x = self.features.of(batch)
        weight, bias = worker.table("weight").pull(), worker.table("bias").pull()
        loss_sum, error = self._outputs.loss(x @ weight + bias, batch.labels, batch.weights)

        # Turn the summed gradient into the weighted mean over the batch.
        error *= np.float32(batch.weight / batch.n)
        gradient = x.T @ error
        # A batch adds its part of the penalty of all samples.
        gradient += np.float32(prior * batch.weight / self._n_samples) * weight
        worker.table("weight").push(gradient, base=weight)
        worker.table("bias").push(error.sum(axis=0), base=bias)
        return StepResult(loss_sum, batch.n)

    def evaluate(self, worker: Worker, batch: Batch) -> Float32:
        """Pull both tables and return the outputs, float32, shape (n, k)."""
        x = self.features.of(batch)
        outputs: Float32 = x @ worker.table("weight").pull() + worker.table("bias").pull()
        return outputs

    def report(self) -> str:
        """Return how the features were scaled."""
        return self.features.report()


def with_bias(keys: Keys) -> Keys:
    """Return the keys with the key of the bias in front, int64, shape (1 + n,)."""
    return np.concatenate(([BIAS_KEY], keys))


def linear_logits(entries: Entries, rows: Float32) -> Float32:
    """Return bias + sum of weight * value, float32, shape (n,); `rows`: shape (1 + m, 1), the bias first."""
    products = rows[1:, 0].take(entries.key_ids)
    products *= entries.values
    logits = entries.sum_by_row(products)
    logits += rows[0, 0]
    return logits


def linear_gradient(entries: Entries, error: Float32) -> Float32:
    """Return the gradient by the rows, shape (1 + m, 1), from `error`, that by the logits, shape (n,)."""
    products = error.take(entries.row_ids)
    products *= entries.values
    gradient = np.empty((1 + len(entries.keys), 1), np.float32)
    gradient[0] = error.sum()
    gradient[1:, 0] = entries.sum_by_key(products)
    return gradient


def _outputs(entries: Entries, rows: Float32) -> Float32:
    """Return biases + sums of weights * value, float32, shape (n, k); `rows`: shape (1 + m, k)."""
    if rows.shape[1] == 1:
        return linear_logits(entries, rows)[:, np.newaxis]
    outputs = EntryMatrix(entries) @ rows[1:]
    outputs += rows[0]
    return outputs


def _gradient(entries: Entries, error: Float32) -> Float32:
    """Return the gradient by the rows, shape (1 + m, k), from `error`, that by the outputs, shape (n, k)."""
    if error.shape[1] == 1:
        return linear_gradient(entries, error[:, 0])
    return np.concatenate([error.sum(axis=0, keepdims=True), EntryMatrix(entries).T @ error])


def prior_gradient(entries: Entries, rows: Float32, prior: float, batch: Batch) -> Float32:
    """Return the gradient of the penalty by the rows, shape (m, dim).

    A batch adds the part of a key's penalty that equals its part of the key's entries in the training data.
    Over an epoch the parts sum to the whole penalty, and no key needs a push in a batch that does not contain
    it.
    """
    shares: Float32 = np.float32(prior * batch.weight / batch.n) * entries.shares
    return shares[:, np.newaxis] * rows
