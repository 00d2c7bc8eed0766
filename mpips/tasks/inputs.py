"""The inputs of the first layer of a network, in the two forms that samples have.

`MatrixInputs`: a matrix of standardised features. The weights of the layer are a dense table, which a step
pulls and pushes as a whole. `EntryInputs`: lists of words, or of more features than a dense table may have.
The weights are an embedding table with a row for each key that occurs, and a step pulls those of its batch.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from mpips.data.dataset import Batch
from mpips.data.info import DataInfo
from mpips.data.moments import Moments
from mpips.model.optimizer import Optimizer
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.tasks.base import Float32, Worker
from mpips.tasks.features import (
    MAX_DENSE_FEATURES,
    DenseFeatures,
    Entries,
    EntryMatrix,
    SparseFeatures,
    with_rows,
)
from mpips.tasks.linear import prior_gradient


class Penalties(Protocol):
    """Options of a task, with the penalties of the weights of its first layer."""

    l2: float
    prior: float


class LayerInput(Protocol):
    """The inputs of one batch, and their weights.

    Attributes:
        x: An array, float32, shape (n, m), or an `EntryMatrix`: only for products with arrays.
    """

    x: Any

    def pull(self, worker: Worker, table: str) -> Float32:
        """Pull the weights of the m inputs, float32, shape (m, width). Blocks."""

    def penalty(self, weights: Float32, options: Penalties, batch: Batch) -> Float32:
        """Return the gradient of the penalty by the weights, of their shape."""

    def push(self, worker: Worker, table: str, gradient: Float32, base: Float32) -> None:
        """Push the gradient by the weights `base`, which `pull` returned."""


class LayerInputs(Protocol):
    """Makes the inputs of batches.

    Attributes:
        has_rows: The weights are rows of an embedding table.
        parts: Names the inputs, for people.
    """

    has_rows: bool
    parts: str

    def prepare(self, moments: Moments) -> None:
        """Take the scale of the features."""

    def table(self, name: str, width: int, optimizer: Optimizer, init: str) -> Table:
        """Return the table of the weights, `width` for each input."""

    def prefetch(self, worker: Worker, table: str, batch: Batch) -> None:
        """Prefetch the weights of a batch."""

    def of(self, batch: Batch) -> LayerInput:
        """Return the inputs of a batch of the training data."""

    def of_unseen(self, batch: Batch) -> LayerInput:
        """Return the inputs of a batch to be predicted."""

    def report(self) -> str:
        """Return how the features were scaled."""


class MatrixInputs:
    """Makes a matrix of standardised features.

    Attributes:
        features: Scale of the features.
    """

    has_rows = False

    def __init__(self, info: DataInfo, task: str) -> None:
        """Raise DataError for more features than a dense table may have."""
        self.features = DenseFeatures(info, task)
        self.parts = f"{info.n_features:,} features"

    def prepare(self, moments: Moments) -> None:
        """Take the scale of the features."""
        self.features.prepare(moments)

    def table(self, name: str, width: int, optimizer: Optimizer, init: str) -> Table:
        """Return a dense table of shape (d, width)."""
        shape = (self.features.n_features, width)
        return DenseTable(name, shape, optimizer=optimizer, init=init)

    def prefetch(self, worker: Worker, table: str, batch: Batch) -> None:
        """Do nothing: a step pulls the whole table."""

    def of(self, batch: Batch) -> MatrixInput:
        """Return the matrix of a batch."""
        return MatrixInput(self.features.of(batch))

    of_unseen = of

    def report(self) -> str:
        """Return how many features were standardised, and which have no influence."""
        return self.features.report()


class MatrixInput:
    """A matrix; see `LayerInput`."""

    def __init__(self, x: Float32) -> None:
        """Take the standardised features, shape (n, d)."""
        self.x = x

    def pull(self, worker: Worker, table: str) -> Float32:
        """Pull the table, float32, shape (d, width). Blocks."""
        weights: Float32 = worker.table(table).pull()
        return weights

    def penalty(self, weights: Float32, options: Penalties, batch: Batch) -> Float32:
        """Return the gradient of l2 / 2 times the sum of squared weights."""
        return np.float32(options.l2 * batch.weight) * weights

    def push(self, worker: Worker, table: str, gradient: Float32, base: Float32) -> None:
        """Push the gradient of the table."""
        worker.table(table).push(gradient, base=base)


class EntryInputs:
    """Makes entries with the unique keys of a batch.

    Attributes:
        features: Scale of the features.
    """

    has_rows = True

    def __init__(self, info: DataInfo, task: str) -> None:
        """Take the kind of the features."""
        self.features = SparseFeatures(info, task)
        self.parts = with_rows(info)

    def prepare(self, moments: Moments) -> None:
        """Take the scale of the features."""
        self.features.prepare(moments)

    def table(self, name: str, width: int, optimizer: Optimizer, init: str) -> Table:
        """Return an embedding table with rows of `width` values."""
        return EmbeddingTable(name, width, optimizer=optimizer, init=init)

    def prefetch(self, worker: Worker, table: str, batch: Batch) -> None:
        """Prefetch the rows of a batch."""
        worker.table(table).prefetch(self.features.announce(batch))

    def of(self, batch: Batch) -> EntryInput:
        """Return the entries of a batch of the training data."""
        return EntryInput(self.features.of(batch), is_unseen=False)

    def of_unseen(self, batch: Batch) -> EntryInput:
        """Return the entries of a batch to be predicted; those that no training sample has count 0."""
        return EntryInput(self.features.of_unseen(batch), is_unseen=self.features.hashed)

    def report(self) -> str:
        """Return how the features were scaled."""
        return self.features.report()


class EntryInput:
    """Entries; see `LayerInput`."""

    def __init__(self, entries: Entries, is_unseen: bool) -> None:
        """Take the entries; `is_unseen`: the training data may lack some of their keys."""
        self.x = EntryMatrix(entries)
        self._entries = entries
        self._is_unseen = is_unseen

    def pull(self, worker: Worker, table: str) -> Float32:
        """Pull the rows of the m keys, float32, shape (m, width). Blocks."""
        handle = worker.table(table)
        rows: Float32 = handle.pull(self._entries.keys)
        if self._is_unseen:
            # A row that equals its initial value has received no update.
            rows[(rows == handle.initial(self._entries.keys)).all(axis=1)] = 0
        return rows

    def penalty(self, weights: Float32, options: Penalties, batch: Batch) -> Float32:
        """Return the gradient of the batch's part of prior / 2 times the sum of squared weights."""
        return prior_gradient(self._entries, weights, options.prior, batch)

    def push(self, worker: Worker, table: str, gradient: Float32, base: Float32) -> None:
        """Push the gradients of the rows."""
        worker.table(table).push(self._entries.keys, gradient, base=base)


def inputs_of(info: DataInfo, task: str) -> LayerInputs:
    """Return the inputs that suit the training data.

    Raises:
        DataError: The rows have no numbers, or more than a dense table may have.
    """
    if info.kind == "sparse" and info.n_features > MAX_DENSE_FEATURES:
        return EntryInputs(info, task)
    return MatrixInputs(info, task)
