"""Samples in memory, and batches taken from them.

Sparse samples are compressed rows: sample i has `keys[indptr[i]:indptr[i+1]]` and the values at the same
places. A reader returns labels as they are in the file (float64). `align` turns them into classes (int64), or
leaves them unchanged if the task predicts targets; batches contain either. Dense features are float32, or
float64 if float32 would lose differences between samples (`DataInfo.wide`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mpips._native import take_samples
from mpips.data.options import Wants

Labels: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.float64]
Features: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Rows: TypeAlias = npt.NDArray[np.int64]
Weights: TypeAlias = npt.NDArray[np.float32]
Fields: TypeAlias = npt.NDArray[np.int32]

# Fields of entries of data with several labels; the same as in native/src/data/libsvm.hpp.
FEATURE, LABEL = 0, 1
N_FIELDS = 2


class SparseBatch(msgspec.Struct, frozen=True):
    """Samples as lists of (key, value).

    Attributes:
        indptr: int64, shape (n + 1,).
        keys: int64, shape (nnz,); no key occurs twice in a sample.
        values: float32, shape (nnz,).
        labels: int64 classes or float64 targets, shape (n,).
        weight: Factor of the mean gradient over the batch.
        fields: CSV: place in `DataInfo.columns` of the column of each entry, int32, shape (nnz,); None for
            other formats.
        weights: Factors of the losses and gradients of the samples, float32, shape (n,); None: all are 1.
    """

    indptr: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]
    labels: Labels
    weight: float = 1.0
    fields: Fields | None = None
    weights: Weights | None = None

    @property
    def n(self) -> int:
        """Number of samples; may be 0."""
        return len(self.labels)

    @property
    def row_ids(self) -> npt.NDArray[np.int64]:
        """The sample of each entry, int64, shape (nnz,), ascending; a new array at each access."""
        return np.repeat(np.arange(self.n, dtype=np.int64), np.diff(self.indptr))

    def densify(self, n_features: int) -> npt.NDArray[np.float32]:
        """Return the samples as float32, shape (n, n_features); keys must be below `n_features`."""
        x = np.zeros((self.n, n_features), dtype=np.float32)
        x[self.row_ids, self.keys] = self.values
        return x


class DenseBatch(msgspec.Struct, frozen=True):
    """Samples as rows: `x` float32 or float64, shape (n, d); `labels`, `weights` as in SparseBatch."""

    x: Features
    labels: Labels
    weight: float = 1.0
    weights: Weights | None = None

    @property
    def n(self) -> int:
        """Number of samples; may be 0."""
        return len(self.labels)

    def densify(self, n_features: int) -> Features:
        """Return `x`, not a copy. The method exists so that tasks accept dense and sparse batches."""
        return self.x


Batch: TypeAlias = SparseBatch | DenseBatch


class SparseData(msgspec.Struct, frozen=True):
    """A worker's samples in compressed rows, as in `SparseBatch`.

    Attributes:
        indptr, values, labels, fields, weights: As in `SparseBatch`.
        indices: Keys below `n_features`.
        n_features: One more than the greatest possible key.
        n_fields: Number of columns; 0 if `fields` is None.
    """

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]
    labels: Labels
    n_features: int
    fields: Fields | None = None
    n_fields: int = 0
    weights: Weights | None = None

    @property
    def n(self) -> int:
        """Number of samples."""
        return len(self.labels)

    def take(self, rows: Rows, weight: float = 1.0) -> SparseBatch:
        """Copy samples `rows` (int64, shape (n,), any order) into a batch."""
        indptr, indices, values, fields = take_samples(
            rows,
            np.ascontiguousarray(self.indptr),
            np.ascontiguousarray(self.indices),
            np.ascontiguousarray(self.values),
            None if self.fields is None else np.ascontiguousarray(self.fields),
        )
        weights = self.weights[rows] if self.weights is not None else None
        return SparseBatch(indptr, indices, values, self.labels[rows], weight, fields, weights)


class DenseData(msgspec.Struct, frozen=True):
    """A worker's samples as rows: `x` float32 or float64, shape (n, d); `labels`, `weights` shape (n,)."""

    x: Features
    labels: Labels
    weights: Weights | None = None

    @property
    def n(self) -> int:
        """Number of samples."""
        return len(self.labels)

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return int(self.x.shape[1])

    def take(self, rows: Rows, weight: float = 1.0) -> DenseBatch:
        """Copy samples `rows` (int64, shape (n,), any order) into a batch."""
        weights = self.weights[rows] if self.weights is not None else None
        return DenseBatch(self.x[rows], self.labels[rows], weight, weights)


Dataset: TypeAlias = SparseData | DenseData


def all_labels(data: Dataset, wants: Wants) -> Labels:
    """Return the labels of all samples of data as it was read, one after the other; see `label_sets.py`."""
    if wants == "several" and isinstance(data, SparseData) and data.fields is not None:
        found: Rows = data.indices[data.fields == LABEL]
        return found
    return data.labels


def join(parts: Sequence[Dataset]) -> Dataset:
    """Return the samples of all parts, at least one and all of one kind, in their order."""
    if len(parts) == 1:
        return parts[0]
    labels = np.concatenate([part.labels for part in parts])
    sparse = [part for part in parts if isinstance(part, SparseData)]
    if not sparse:
        return DenseData(
            np.concatenate([part.x for part in parts if isinstance(part, DenseData)]),
            labels,
            _joined_weights(parts),
        )
    return SparseData(
        _joined_indptr([part.indptr for part in sparse]),
        np.concatenate([part.indices for part in sparse]),
        np.concatenate([part.values for part in sparse]),
        labels,
        max(part.n_features for part in sparse),
        _joined_fields([part.fields for part in sparse]),
        sparse[0].n_fields,
        _joined_weights(parts),
    )


def join_batches(parts: Sequence[Batch], weight: float) -> Batch:
    """Return the samples of all batches, at least one and all of one kind, as one batch."""
    labels = np.concatenate([part.labels for part in parts])
    sparse = [part for part in parts if isinstance(part, SparseBatch)]
    if not sparse:
        x = np.concatenate([part.x for part in parts if isinstance(part, DenseBatch)])
        return DenseBatch(x, labels, weight, _joined_weights(parts))
    return SparseBatch(
        _joined_indptr([part.indptr for part in sparse]),
        np.concatenate([part.keys for part in sparse]),
        np.concatenate([part.values for part in sparse]),
        labels,
        weight,
        _joined_fields([part.fields for part in sparse]),
        _joined_weights(parts),
    )


def _joined_indptr(parts: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    ends = np.cumsum([0, *(part[-1] for part in parts)])
    starts = [part[:-1] + end for part, end in zip(parts, ends, strict=False)]
    return np.concatenate([*starts, ends[-1:]]).astype(np.int64)


def _joined_weights(parts: Sequence[Dataset] | Sequence[Batch]) -> Weights | None:
    there = [part.weights for part in parts if part.weights is not None]
    return np.concatenate(there) if there else None


def _joined_fields(parts: Sequence[Fields | None]) -> Fields | None:
    there = [part for part in parts if part is not None]
    return np.concatenate(there) if there else None
