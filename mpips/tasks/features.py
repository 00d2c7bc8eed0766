"""Features as the models take them: brought to one scale, as a matrix or by unique key."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mpips import _native
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
        x = x - self._mean
        x *= self._scale
        return np.clip(x, -MAX_DEVIATION, MAX_DEVIATION, out=x)


class Plans:
    """Key plans that no batch holds, kept for the memory that they have grown to."""

    def __init__(self) -> None:
        self._one_group = _native.Partitioner.hash(1)
        self._free: list[_native.KeyPlan] = []

    def build(self, keys: Int64) -> _native.KeyPlan:
        """A plan of these keys, all in one group."""
        plan = self._free.pop() if self._free else _native.KeyPlan()
        plan.build(keys, self._one_group)
        return plan

    def take_back(self, plan: _native.KeyPlan) -> None:
        """Build this one anew next time."""
        self._free.append(plan)


class Entries:
    """A sparse batch with each key once, so that each is pulled and pushed once.

    `keys` are there at once, so that their rows can be asked for; the rest comes with `complete`.

    Attributes:
        n: Number of samples.
        keys: int64, shape (m,), unique, in the order of their first appearance.
        key_ids: int64, shape (nnz,): the place in `keys` of each entry's key.
        row_ids: int64, shape (nnz,): the sample of each entry, ascending.
        values: float32, shape (nnz,), scaled.
        shares: float32, shape (m,): the entries of each key in this batch, as a share of those in
            the training data, or of `ASSUMED_PRESENT` where those are not known.
    """

    key_ids: Int64
    row_ids: Int64
    values: Float32
    shares: Float32

    def __init__(self, batch: SparseBatch, plans: Plans) -> None:
        """Find the unique keys of `batch`; `plans` give and take back what finds them."""
        self.n = batch.n
        self._batch = batch
        self._plans = plans
        self._plan = plans.build(batch.keys)
        self.keys = self._plan.unique_keys

    def complete(self, values: Float32, present: Float32 | None) -> None:
        """Set the other attributes.

        Args:
            values: The scaled values, float32, shape (nnz,).
            present: At least 1, the number of samples that hold each feature, float32, shape (d,),
                or None if unknown.
        """
        self.key_ids = self._plan.inverse.astype(np.int64)
        counts = np.bincount(self.key_ids, minlength=len(self.keys))
        in_all = ASSUMED_PRESENT if present is None else present.take(self.keys)
        self.shares = (counts / in_all).astype(np.float32)
        self.row_ids = self._batch.row_ids
        self.values = values

    def __del__(self) -> None:
        """Leave the plan, with the memory that it has, to a batch to come."""
        self._plans.take_back(self._plan)

    def sum_by_row(self, entries: Float32) -> Float32:
        """Sum over each sample's entries: shape (nnz,) to (n,), or (nnz, k) to (n, k)."""
        starts, ends = self._batch.indptr[:-1], self._batch.indptr[1:]
        filled = starts < ends
        if filled.all():
            return np.add.reduceat(entries, starts, axis=0) if self.n else entries[:0]
        sums = np.zeros((self.n, *entries.shape[1:]), dtype=np.float32)
        if filled.any():
            sums[filled] = np.add.reduceat(entries, starts[filled], axis=0)
        return sums

    def sum_by_key(self, entries: Float32) -> Float32:
        """Sum over each key's entries: shape (nnz,) to (m,), or (nnz, k) to (m, k)."""
        columns = entries.reshape(len(entries), math.prod(entries.shape[1:]))
        sums = self._plan.sum_rows(np.ascontiguousarray(columns))
        return sums.reshape(len(self.keys), *entries.shape[1:])


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
        self._plans = Plans()

    def prepare(self, moments: Moments) -> None:
        """Take the scale of each feature, where the data has few enough to have moments."""
        if moments.n_features:
            shift, scale = moments.standardise_present()
            self._shift, self._scale = shift.astype(np.float32), scale.astype(np.float32)
            self._present = np.maximum(moments.present, 1).astype(np.float32)

    def announce(self, batch: Batch) -> Int64:
        """Return the unique keys of a batch and keep them for the step that will ask again."""
        entries = self._keys_of(batch)
        self._announced = batch, entries
        return entries.keys

    def of(self, batch: Batch) -> Entries:
        """Return the entries of a sparse batch."""
        held, self._announced = self._announced, None
        entries = held[1] if held is not None and held[0] is batch else self._keys_of(batch)
        assert isinstance(batch, SparseBatch)
        values = batch.values
        if self._shift is not None and self._scale is not None:
            values = values - self._shift.take(batch.keys)
            values *= self._scale.take(batch.keys)
            np.clip(values, -MAX_DEVIATION, MAX_DEVIATION, out=values)
        entries.complete(values, self._present)
        return entries

    def _keys_of(self, batch: Batch) -> Entries:
        if not isinstance(batch, SparseBatch):
            raise TypeError(f"expected a SparseBatch, got {type(batch).__name__}")
        return Entries(batch, self._plans)
