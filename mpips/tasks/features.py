"""Features as the models take them: brought to one scale, as a matrix or by unique key."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data.dataset import Batch, SparseBatch
from mpips.data.info import DataInfo
from mpips.data.moments import MAX_FEATURES, Moments
from mpips.errors import DataError

Float32: TypeAlias = npt.NDArray[np.float32]
Int64: TypeAlias = npt.NDArray[np.int64]

# A dense model has a weight for each feature and pulls all of them in every step.
MAX_DENSE_FEATURES = 1 << 16
# Standardised values beyond this are cut: rare features and outliers must not rule a step.
MAX_DEVIATION = 10.0
# How many samples are taken to hold a hashed feature, when it is asked how much of its penalty one
# sample bears: in click data most entries are of features at least that frequent.
ASSUMED_PRESENT = 300


class DenseFeatures:
    """Standardised features as a float32 matrix, from dense or sparse batches."""

    def __init__(self, info: DataInfo, task: str) -> None:
        """Refuse data too wide for a dense model."""
        if info.n_features > MAX_DENSE_FEATURES or info.n_features < 1:
            raise DataError(
                f"task '{task}' has a dense weight for each feature and takes 1 to "
                f"{MAX_DENSE_FEATURES} features, the data has {info.n_features}; "
                "use task 'logistic' or 'fm' for sparse data of two classes"
            )
        self.n_features = info.n_features
        self._mean = np.zeros(self.n_features, dtype=np.float32)
        self._scale = np.ones(self.n_features, dtype=np.float32)

    def prepare(self, moments: Moments) -> None:
        """Take mean and standard deviation of the training data."""
        mean, scale = moments.standardise()
        self._mean, self._scale = mean.astype(np.float32), scale.astype(np.float32)

    def of(self, batch: Batch) -> Float32:
        """Return the features of a batch, a new array of shape (n, d)."""
        x = batch.densify(self.n_features) if isinstance(batch, SparseBatch) else batch.x
        x = (x - self._mean) * self._scale
        return np.clip(x, -MAX_DEVIATION, MAX_DEVIATION, out=x)


class Entries:
    """A sparse batch with each key once, so that each is pulled and pushed once.

    Attributes:
        n: Number of samples.
        keys: int64, shape (m,), ascending, unique.
        key_ids: int64, shape (nnz,): the place in `keys` of each entry's key.
        row_ids: int64, shape (nnz,): the sample of each entry, ascending.
        values: float32, shape (nnz,), scaled.
        shares: float32, shape (m,): the entries of each key in this batch, as a share of those in
            the training data, or of `ASSUMED_PRESENT` where those are not known.
    """

    def __init__(self, batch: SparseBatch, values: Float32, present: Float32 | None) -> None:
        """Find the unique keys of `batch`.

        Args:
            batch: The samples.
            values: Their scaled values, float32, shape (nnz,).
            present: How many samples hold each feature, float32, shape (d,), or None if unknown.
        """
        self.n = batch.n
        self.keys, self.key_ids, counts = np.unique(
            batch.keys, return_inverse=True, return_counts=True
        )
        in_all = ASSUMED_PRESENT if present is None else np.maximum(present[self.keys], 1)
        self.shares = (counts / in_all).astype(np.float32)
        self.row_ids = batch.row_ids
        self.values = values
        self._by_key = np.argsort(self.key_ids, kind="stable")
        self._key_starts = np.searchsorted(self.key_ids[self._by_key], np.arange(len(self.keys)))

    def sum_by_row(self, entries: Float32) -> Float32:
        """Sum over each sample's entries: shape (nnz,) to (n,), or (nnz, k) to (n, k)."""
        sums = np.zeros((self.n, *entries.shape[1:]), dtype=np.float32)
        rows, starts = np.unique(self.row_ids, return_index=True)
        if len(rows):
            sums[rows] = np.add.reduceat(entries, starts, axis=0)
        return sums

    def sum_by_key(self, entries: Float32) -> Float32:
        """Sum over each key's entries: shape (nnz,) to (m,), or (nnz, k) to (m, k)."""
        if len(self.keys) == 0:
            return np.zeros((0, *entries.shape[1:]), dtype=np.float32)
        return np.add.reduceat(entries[self._by_key], self._key_starts, axis=0)


class SparseFeatures:
    """Scaled features by unique key; remembers the batch that was announced."""

    def __init__(self, info: DataInfo, task: str) -> None:
        """Refuse data that is not sparse or not of two classes."""
        if info.kind != "sparse":
            raise DataError(
                f"task '{task}' takes sparse data (LIBSVM, or CSV with categorical columns), "
                "this is dense; use task 'softmax' or 'mlp'"
            )
        if info.n_classes != 2:
            raise DataError(
                f"task '{task}' takes two classes, the data has {info.n_classes}; "
                "use task 'softmax' or 'mlp' for more"
            )
        # Where features are too many to be counted, rare ones need a penalty by the optimizer.
        self.counted = info.n_features <= MAX_FEATURES
        self._shift: Float32 | None = None
        self._scale: Float32 | None = None
        self._present: Float32 | None = None
        self._announced: tuple[Batch, Entries] | None = None

    def prepare(self, moments: Moments) -> None:
        """Take the scale of each feature, where the data has few enough to have moments."""
        if moments.n_features:
            shift, scale = moments.standardise_present()
            self._shift, self._scale = shift.astype(np.float32), scale.astype(np.float32)
            self._present = moments.present.astype(np.float32)

    def announce(self, batch: Batch) -> Entries:
        """Return `of(batch)` and keep it for the step that will ask again."""
        entries = self.of(batch)
        self._announced = batch, entries
        return entries

    def of(self, batch: Batch) -> Entries:
        """Return the entries of a sparse batch."""
        if self._announced is not None and self._announced[0] is batch:
            return self._announced[1]
        if not isinstance(batch, SparseBatch):
            raise TypeError(f"expected a SparseBatch, got {type(batch).__name__}")
        values = batch.values
        if self._shift is not None and self._scale is not None:
            values = (values - self._shift[batch.keys]) * self._scale[batch.keys]
            np.clip(values, -MAX_DEVIATION, MAX_DEVIATION, out=values)
        return Entries(batch, values, self._present)
