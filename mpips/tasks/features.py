"""Scaled features, as a matrix for dense models or by unique key for sparse models."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from mpips import _native
from mpips.data.dataset import Batch, Features, Fields, SparseBatch
from mpips.data.info import DataInfo
from mpips.data.moments import MAX_FEATURES, Moments, Vector
from mpips.data.words import SCALED
from mpips.errors import DataError

Float32: TypeAlias = npt.NDArray[np.float32]
Int64: TypeAlias = npt.NDArray[np.int64]

# A dense model has a weight for each feature and pulls all of them in every step.
MAX_DENSE_FEATURES = 1 << 16
# Standardised values are clipped to this absolute value, so that rare features and outliers do not dominate.
MAX_DEVIATION = 10.0
# Greatest error of rounding a shift to float32, as a fraction of the standard deviation.
ROUNDING = 1e-4
# Numbers of a product of entries with rows that are in memory at a time.
MOST_PRODUCTS = 1 << 22


def with_rows(info: DataInfo) -> str:
    """Return what has rows of weights, for people."""
    return "the words and columns of numbers" if info.n_fields else "the features that occur"


class DenseFeatures:
    """Standardised features as a float32 matrix, from dense or sparse batches.

    Attributes:
        n_features: Number of features.
        mean, scale: Number that is subtracted from each feature, and factor of the difference, shape (d,);
            float64 if float32 would lose differences between samples.
    """

    def __init__(self, info: DataInfo, task: str) -> None:
        """Raise DataError for data with no features, or with too many for a dense table."""
        if info.n_features < 1:
            raise DataError(
                f"task '{task}' takes one feature or more, no sample of the data has any"
            )
        if info.n_features > MAX_DENSE_FEATURES:
            raise DataError(
                f"task '{task}' takes rows of 1 to {MAX_DENSE_FEATURES:,} numbers, the data has "
                f"{info.n_features:,}; write longer rows as LIBSVM, which may have any number of features"
            )
        self.n_features = info.n_features
        self._info = info
        self._constant = np.zeros(self.n_features, dtype=np.bool_)
        self.mean: Features = np.zeros(self.n_features, dtype=np.float32)
        self.scale: Features = np.ones(self.n_features, dtype=np.float32)

    def prepare(self, moments: Moments) -> None:
        """Take mean and standard deviation of the training data from its moments."""
        self._constant = moments.constant()
        self.mean, self.scale = _as_precise_as_needed(*moments.standardise())

    def of(self, batch: Batch) -> Float32:
        """Return the standardised features of a batch, a new float32 array of shape (n, d)."""
        # Subtract the mean before the cast: seconds since 1970 have no fractions in float32.
        x = batch.densify(self.n_features) - self.mean
        x *= self.scale
        x = x.astype(np.float32, copy=False)
        return np.clip(x, -MAX_DEVIATION, MAX_DEVIATION, out=x)

    def report(self) -> str:
        """Return a line: number of standardised features, and those without influence."""
        places = np.flatnonzero(self._constant)
        if self._info.kind == "sparse":
            absent = "never present or constant"
            left = f"; {len(places):,} {absent}: no influence" if len(places) else ""
        else:
            left = (
                f"; constant, without influence: {_named(places, self._info)}"
                if len(places)
                else ""
            )
        return (
            f"{self.n_features - len(places):,} of {self.n_features:,} features standardised{left}"
        )


def _as_precise_as_needed(shift: Vector, scale: Vector) -> tuple[Features, Features]:
    """Return both in float32, or in float64 if rounding the shift would be visible after scaling."""
    rounded = shift.astype(np.float32)
    if (np.abs(rounded - shift) * scale > ROUNDING).any():
        return shift, scale
    return rounded, scale.astype(np.float32)


def _named(places: Int64, info: DataInfo) -> str:
    """Return names of features, or their numbers in the file; at most the first ten."""
    names = [
        f"'{info.columns[place]}'" if info.columns else str(place + info.index_base)
        for place in places[:10].tolist()
    ]
    more = f" and {len(places) - 10:,} more" if len(places) > 10 else ""
    return ", ".join(names) + more


class Plans:
    """Pool of key plans, which reuses the memory of plans that no batch uses any more."""

    def __init__(self) -> None:
        self._one_group = _native.Partitioner.hash(1)
        self._free: list[_native.KeyPlan] = []

    def build(self, keys: Int64) -> _native.KeyPlan:
        """Return a plan of these keys (int64, shape (n,)), all in one group."""
        plan = self._free.pop() if self._free else _native.KeyPlan()
        plan.build(keys, self._one_group)
        return plan

    def take_back(self, plan: _native.KeyPlan) -> None:
        """Return a plan to the pool."""
        self._free.append(plan)


class Entries:
    """A sparse batch with its unique keys, so that each key is pulled and pushed once.

    The constructor sets `n` and `keys`, so that rows can be prefetched; `complete` sets the other attributes.

    Attributes:
        n: Number of samples.
        keys: int64, shape (m,), unique, in the order of their first occurrence.
        key_ids: int64, shape (nnz,): place in `keys` of the key of each entry.
        row_ids: int64, shape (nnz,): sample of each entry, ascending.
        indptr: int64, shape (n + 1,): first entry of each sample, and the number of entries.
        values: float32, shape (nnz,), scaled.
        shares: float32, shape (m,): entries of each key in this batch divided by its entries in the training
            data; 1 if the latter are not known.
    """

    key_ids: Int64
    row_ids: Int64
    values: Float32
    shares: Float32

    def __init__(self, batch: SparseBatch, plans: Plans) -> None:
        """Find the unique keys of `batch`, with a key plan from the pool `plans`."""
        self.n = batch.n
        self.indptr = batch.indptr
        self._batch = batch
        self._plans = plans
        self._plan = plans.build(batch.keys)
        self.keys = self._plan.unique_keys

    def complete(self, values: Float32, present: Float32 | None) -> None:
        """Set the other attributes.

        Args:
            values: The scaled values, float32, shape (nnz,).
            present: Number of training samples that contain each of `keys`, at least 1, float32, shape (m,);
                None if unknown.
        """
        self.key_ids = self._plan.inverse.astype(np.int64)
        if present is None:
            self.shares = np.ones(len(self.keys), np.float32)
        else:
            counts = np.bincount(self.key_ids, minlength=len(self.keys))
            self.shares = (counts / present).astype(np.float32)
        self.row_ids = self._batch.row_ids
        self.values = values

    def __del__(self) -> None:
        """Return the plan to the pool."""
        self._plans.take_back(self._plan)

    def sum_by_row(self, entries: Float32) -> Float32:
        """Sum over the entries of each sample: shape (nnz,) to (n,), or (nnz, k) to (n, k)."""
        return _sums(entries, self.indptr)

    def sum_by_key(self, entries: Float32) -> Float32:
        """Sum over the entries of each key: shape (nnz,) to (m,), or (nnz, k) to (m, k)."""
        columns = entries.reshape(len(entries), math.prod(entries.shape[1:]))
        sums = self._plan.sum_rows(np.ascontiguousarray(columns))
        return sums.reshape(len(self.keys), *entries.shape[1:])


def _sums(entries: Float32, indptr: Int64) -> Float32:
    """Return the sum over the entries of each sample, shape (n,) or (n, k); `indptr` as of `Entries`."""
    n = len(indptr) - 1
    # Leave out samples without entries, for which reduceat does not return 0.
    starts, ends = indptr[:-1], indptr[1:]
    filled = starts < ends
    if filled.all():
        return np.add.reduceat(entries, starts, axis=0) if n else entries[:0]
    sums = np.zeros((n, *entries.shape[1:]), dtype=np.float32)
    if filled.any():
        sums[filled] = np.add.reduceat(entries, starts[filled], axis=0)
    return sums


class EntryMatrix:
    """Entries as a matrix of n samples and m unique keys, which can be multiplied with arrays.

    Attributes:
        T: The transposed matrix.
    """

    def __init__(self, entries: Entries) -> None:
        """Take the entries of a batch."""
        self._entries = entries
        self.T = _Transposed(entries)

    def __matmul__(self, rows: Float32) -> Float32:
        """Return the sums of value * row over the entries of each sample: shape (m, k) to (n, k)."""
        entries, indptr = self._entries, self._entries.indptr
        outputs = np.empty((entries.n, rows.shape[1]), np.float32)
        most = max(MOST_PRODUCTS // max(rows.shape[1], 1), 1)
        start = 0
        while start < entries.n:
            # Take as many samples as the memory is for, and at least one.
            last = int(np.searchsorted(indptr, indptr[start] + most, side="right")) - 1
            stop = max(last, start + 1)
            own = slice(indptr[start], indptr[stop])
            products = rows[entries.key_ids[own]]
            products *= entries.values[own, np.newaxis]
            outputs[start:stop] = _sums(products, indptr[start : stop + 1] - indptr[start])
            start = stop
        return outputs


class _Transposed:
    """The transposed matrix of entries."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries

    def __matmul__(self, error: Float32) -> Float32:
        """Return the sums of value * error over the entries of each key: shape (n, k) to (m, k)."""
        products = error[self._entries.row_ids]
        products *= self._entries.values[:, np.newaxis]
        return self._entries.sum_by_key(products)


class SparseFeatures:
    """Scaled features by unique key; stores the entries of the batch that was announced.

    Attributes:
        hashed: The keys have no scale; any number of them may be unknown.
        shift, scale: Number that is subtracted from each feature, and factor of the difference, shape (d,);
            None if `hashed`.
        seen: bool, shape (d,): a training sample contains the feature.
        centred: Features that every training sample contains, int64, ascending; see `of_unseen`.
        is_number: Columns of numbers that are beside hashed words, bool, one for each column; shape (0,)
            without columns, and in models of earlier versions, which do not scale them.
        columns: The number that is subtracted in these columns, and the factor of the difference, each of
            the shape of `is_number`; 0 and 1 for words. None without numbers.
    """

    def __init__(self, info: DataInfo, task: str, *, has_numbers: bool = True) -> None:
        """Take the kind of the features.

        Args:
            info: The training data.
            task: Name of the task, for errors.
            has_numbers: Batches also have the columns of numbers that are beside words.

        Raises:
            DataError: The data is not sparse.
        """
        if info.kind != "sparse":
            raise DataError(
                f"task '{task}' takes LIBSVM, sparse arrays and CSV with columns of text "
                "(data.categorical), the data is rows of numbers; use task 'logistic', 'softmax' or 'mlp'"
            )
        # Hashed keys have no moments.
        self.hashed = info.n_features > MAX_FEATURES
        self._info = info
        self.shift: Features | None = None
        self.scale: Features | None = None
        self._present: Float32 | None = None  # training samples with each feature, at least 1
        self.seen = np.zeros(0, np.bool_)
        self.centred = np.zeros(0, np.int64)
        # For hashed keys: map from key to place in `_counts`, and training samples with each key.
        self._rows: _native.RowMap | None = None
        self._counts = np.zeros(0, np.float32)
        self.is_number = np.zeros(0, np.bool_)
        if has_numbers and self.hashed and info.words >= SCALED:
            self.is_number = np.array([name not in info.categorical for name in info.columns], bool)
        self.columns: tuple[Features, Features] | None = None
        self._announced: tuple[Batch, Entries] | None = None
        self._plans = Plans()

    def prepare(self, moments: Moments) -> None:
        """Take the scale of each feature from the moments; of hashed keys the counts, and that of columns.

        Raises:
            DataError: The moments are not those of data with columns.
        """
        if self.is_number.any():
            columns = moments.columns
            if columns is None or columns.n_features != len(self.is_number):
                raise DataError("the moments of the columns of the training data are missing")
            mean, scale = columns.standardise_filled()
            self.columns = _as_precise_as_needed(
                np.where(self.is_number, mean, 0.0), np.where(self.is_number, scale, 1.0)
            )
        if moments.n_features:
            shift, scale = moments.standardise_present()
            self.shift, self.scale = _as_precise_as_needed(shift, scale)
            self._present = np.maximum(moments.present, 1).astype(np.float32)
            self.seen = moments.present > 0
            self.centred = np.flatnonzero(moments.centred()).astype(np.int64)
        elif len(moments.keys):
            self._rows = _native.RowMap(len(moments.keys))
            rows, _ = self._rows.find_or_insert(moments.keys)
            # Reserve the last place for keys that the training data does not contain.
            self._counts = np.ones(len(moments.keys) + 1, np.float32)
            self._counts[rows] = moments.present

    def announce(self, batch: Batch) -> Int64:
        """Return the unique keys of a batch, and store its entries for the call of `of` with this batch."""
        entries = self._keys_of(batch)
        self._announced = batch, entries
        return entries.keys

    def of(self, batch: Batch) -> Entries:
        """Return the entries of a batch of the training data."""
        held, self._announced = self._announced, None
        entries = held[1] if held is not None and held[0] is batch else self._keys_of(batch)
        assert isinstance(batch, SparseBatch)
        entries.complete(self._scaled(batch), self._samples_with(entries.keys))
        return entries

    def of_unseen(self, batch: Batch) -> Entries:
        """Return the entries of a batch to be predicted.

        Features that no training sample contains are left out, if these are known, because the model has
        learned nothing about them. A centred feature that a sample does not contain is 0 there and gets an
        entry.
        """
        if isinstance(batch, SparseBatch) and self._present is not None:
            batch = with_zeros(only(batch, self.seen.take(batch.keys)), self.centred)
        entries = self._keys_of(batch)
        assert isinstance(batch, SparseBatch)
        entries.complete(self._scaled(batch), None)
        return entries

    def report(self) -> str:
        """Return a line: how many features were scaled in which way."""
        if self.columns is not None:
            varies = self.is_number & (self.columns[1] != 0)
            constant = _named(np.flatnonzero(self.is_number & ~varies), self._info)
            return (
                f"{np.count_nonzero(~self.is_number):,} columns of words, {np.count_nonzero(varies):,} of "
                "numbers (standardised)"
                + (f"; constant, without influence: {constant}" if constant else "")
            )
        if self.shift is None or self._present is None:
            return "features are hashed keys: not scaled"
        n_seen = np.count_nonzero(self.seen)
        n_absent = len(self._present) - n_seen
        absent = f"; {n_absent:,} in no sample: left out" if n_absent else ""
        return (
            f"{len(self.centred):,} of {len(self._present):,} features standardised (in all samples), "
            f"{n_seen - len(self.centred):,} divided by their root mean square{absent}"
        )

    def _scaled(self, batch: SparseBatch) -> Float32:
        if self.columns is not None:
            return _standardised(batch.values, columns_of(batch), *self.columns)
        if self.shift is None or self.scale is None:
            return batch.values
        return _standardised(batch.values, batch.keys, self.shift, self.scale)

    def _samples_with(self, keys: Int64) -> Float32 | None:
        """Return the number of training samples with each key, at least 1; None if unknown."""
        if self._present is not None:
            return self._present.take(keys)
        if self._rows is None:
            return None
        return self._counts.take(self._rows.find(keys), mode="clip")

    def _keys_of(self, batch: Batch) -> Entries:
        if not isinstance(batch, SparseBatch):
            raise TypeError(f"expected a SparseBatch, got {type(batch).__name__}")
        return Entries(batch, self._plans)


def columns_of(batch: Batch) -> Fields:
    """Return the column of each entry, shape (nnz,).

    Raises:
        DataError: The entries do not come from named columns.
    """
    if isinstance(batch, SparseBatch) and batch.fields is not None:
        return batch.fields
    raise DataError(
        "this model takes samples with named columns: a CSV file, or a frame with the columns of the "
        "training data"
    )


def _standardised(
    values: Features, places: npt.NDArray[np.integer[Any]], shift: Features, scale: Features
) -> Float32:
    """Return (value - shift) * scale, clipped, float32, shape (nnz,); `places`: those in the two arrays."""
    found = values - shift.take(places)
    found *= scale.take(places)
    narrow = found.astype(np.float32, copy=False)
    return np.clip(narrow, -MAX_DEVIATION, MAX_DEVIATION, out=narrow)


def only(batch: SparseBatch, wanted: npt.NDArray[np.bool_]) -> SparseBatch:
    """Return the batch with only the entries for which `wanted` (bool, shape (nnz,)) is True."""
    if wanted.all():
        return batch
    n_before = np.concatenate(([0], np.cumsum(wanted, dtype=np.int64)))
    indptr, keys = n_before[batch.indptr], batch.keys[wanted]
    fields = batch.fields[wanted] if batch.fields is not None else None
    return replace(batch, indptr=indptr, keys=keys, values=batch.values[wanted], fields=fields)


def with_zeros(batch: SparseBatch, keys: Int64) -> SparseBatch:
    """Return the batch with entries of value 0 for those of `keys` that a sample does not contain.

    Args:
        batch: The batch; it is not changed.
        keys: int64, shape (k,), unique, ascending.
    """
    if not len(keys):
        return batch
    # Find the samples that do not contain all keys.
    rows = batch.row_ids
    places = np.minimum(np.searchsorted(keys, batch.keys), len(keys) - 1)
    among = keys[places] == batch.keys
    short = np.flatnonzero(np.bincount(rows[among], minlength=batch.n) < len(keys))
    if not len(short):
        return batch
    # Append the missing entries, then sort all entries by sample.
    added = [
        np.setdiff1d(keys, _keys_of_row(batch, row), assume_unique=True) for row in short.tolist()
    ]
    all_rows = np.concatenate([rows, np.repeat(short, [len(own) for own in added])])
    order = np.argsort(all_rows, kind="stable")
    all_keys = np.concatenate([batch.keys, *added])[order]
    zeros = np.zeros(len(all_rows) - len(rows), np.float32)
    values = np.concatenate([batch.values, zeros])[order]
    indptr = np.concatenate(([0], np.cumsum(np.bincount(all_rows, minlength=batch.n))))
    return replace(batch, indptr=indptr.astype(np.int64), keys=all_keys, values=values)


def _keys_of_row(batch: SparseBatch, row: int) -> Int64:
    return batch.keys[batch.indptr[row] : batch.indptr[row + 1]]
