"""First and second moments of each feature, with which tasks scale the features.

Squared deviations are summed about the mean, not about 0: if a feature varies little compared with its mean,
the difference of two large sums would have no correct digit. The means of parts are combined by the pairwise
formulas of Chan, Golub and LeVeque ("Algorithms for computing the sample variance", The American Statistician
37, 1983).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data.dataset import Dataset, DenseData, SparseData
from mpips.model.distinct import distinct_counts, distinct_places

Vector: TypeAlias = npt.NDArray[np.float64]
Keys: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

# Greatest number of features for which means and deviations are computed; hashed keys have more.
MAX_FEATURES = 1 << 22
# A standard deviation below this fraction of the mean is only rounding of float64 values.
CONSTANT = 1e-14


def _no_keys() -> Keys:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Moments:
    """Moments over samples for each of d features; d is 0 if there are more than `MAX_FEATURES`.

    Attributes:
        count: Number of samples.
        present: float64, shape (d,): number of samples that contain the feature. If d is 0, shape (m,):
            number of samples that contain each of `keys`.
        mean: float64, shape (d,): mean over the samples that contain the feature.
        squares: float64, shape (d,): sum of squared deviations from that mean.
        keys: If d is 0, the keys that occur, int64, shape (m,), ascending.
        columns: Moments of the values in each column of a CSV file, whose cells are hashed; None for other
            data.
        targets: Moments of the numbers to be predicted, one feature, or of several labels; None for classes.
    """

    count: int
    present: Vector
    mean: Vector
    squares: Vector
    keys: Keys = field(default_factory=_no_keys)
    columns: Moments | None = None
    targets: Moments | None = None

    @classmethod
    def of(cls, data: Dataset, targets: bool = False) -> Moments:
        """Compute the moments of one worker's samples; not collective.

        Args:
            data: The samples.
            targets: Labels also have moments: they are numbers to be predicted, or several for each sample.
        """
        found = cls._of_features(data)
        if targets:
            # Several labels have a column each.
            numbers = np.asarray(data.labels, np.float64)
            numbers = numbers[:, np.newaxis] if numbers.ndim == 1 else numbers
            found = replace(found, targets=_of_dense(DenseData(numbers, numbers[:, 0])))
        return found

    @classmethod
    def _of_features(cls, data: Dataset) -> Moments:
        if isinstance(data, DenseData):
            return _of_dense(data)
        if data.n_features > MAX_FEATURES:
            keys, counts = distinct_counts(data.indices)
            columns = _of_columns(data) if data.fields is not None else None
            return cls(data.n, counts.astype(np.float64), np.zeros(0), np.zeros(0), keys, columns)
        return _of_sparse(data)

    @classmethod
    def empty(cls, n_features: int, n_fields: int = 0, n_targets: int = 0) -> Moments:
        """Return the moments of no samples; d is 0 if there are more than `MAX_FEATURES` features.

        Args:
            n_features: Number of features.
            n_fields: Number of columns of hashed data; see `DataInfo.n_fields`.
            n_targets: See `DataInfo.n_targets`.
        """
        d = n_features if n_features <= MAX_FEATURES else 0
        columns = cls.empty(n_fields) if n_fields else None
        numbers = cls.empty(n_targets) if n_targets else None
        return cls(0, np.zeros(d), np.zeros(d), np.zeros(d), columns=columns, targets=numbers)

    def to_arrays(self) -> dict[str, Vector]:
        """Return what prediction needs of the moments, for a checkpoint: arrays by path, each float64.

        The keys of hashed features are left out: only training needs their counts.
        """
        found = {"features/count": np.array(float(self.count))}
        parts = (("features", self), ("columns", self.columns), ("targets", self.targets))
        for group, own in parts:
            if own is not None and own.n_features:
                found[f"{group}/present"] = own.present
                found[f"{group}/mean"] = own.mean
                found[f"{group}/squares"] = own.squares
        return found

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Vector]) -> Moments:
        """Return the moments that `to_arrays` returned as arrays."""
        count, empty = int(arrays["features/count"]), np.zeros(0)

        def group(name: str) -> Moments:
            names = (f"{name}/present", f"{name}/mean", f"{name}/squares")
            present, mean, squares = (arrays.get(path, empty) for path in names)
            return cls(count, present, mean, squares)

        columns = group("columns") if "columns/mean" in arrays else None
        targets = group("targets") if "targets/mean" in arrays else None
        return replace(group("features"), columns=columns, targets=targets)

    @classmethod
    def combine(cls, parts: Sequence[Moments]) -> Moments:
        """Combine the moments of all workers. Their order determines the rounding."""
        targets = [part.targets for part in parts if part.targets is not None]
        return replace(
            cls._combine_features(parts), targets=cls.combine(targets) if targets else None
        )

    @classmethod
    def _combine_features(cls, parts: Sequence[Moments]) -> Moments:
        if not parts[0].n_features:
            return _sum_counts(parts)
        total = parts[0]
        for part in parts[1:]:
            present = total.present + part.present
            share = part.present / np.maximum(present, 1)
            delta = part.mean - total.mean
            total = cls(
                total.count + part.count,
                present,
                total.mean + delta * share,
                total.squares + part.squares + delta * delta * total.present * share,
            )
        return total

    @property
    def n_features(self) -> int:
        """Number of features; 0 if means and deviations are not computed."""
        return len(self.mean)

    def standardise(self) -> tuple[Vector, Vector]:
        """Return mean and 1 / standard deviation over all samples, each shape (d,).

        Samples that do not contain a feature count as 0. The deviation is that of the population: the sum of
        squares is divided by the number of samples. The second array is 0 for a constant feature, so that
        (x - mean) * scale is 0 for it.
        """
        n = max(self.count, 1)
        share = self.present / n
        mean = self.mean * share
        variance = self.squares / n + self.mean * self.mean * share * (1 - share)
        return mean, _inverse_root(variance, self.mean)

    def standardise_filled(self) -> tuple[Vector, Vector]:
        """Return mean and 1 / standard deviation over the samples that contain a feature, each shape (d,).

        The second array is 0 for a feature that is constant there.
        """
        return self.mean, _inverse_root(self.squares / np.maximum(self.present, 1), self.mean)

    def constant(self) -> Flags:
        """Return True for features that have the same value in all samples, bool, shape (d,)."""
        constant: Flags = self.standardise()[1] == 0
        return constant

    def centred(self) -> Flags:
        """Return True for features that `standardise_present` centres, bool, shape (d,)."""
        centred: Flags = (self.present == self.count) & ~self.constant()
        return centred

    def standardise_present(self) -> tuple[Vector, Vector]:
        """Return shift and scale, each shape (d,), for the entries of sparse samples alone.

        Absent entries remain 0. So only a feature that every sample contains is centred, and scaled by its
        standard deviation. A sample to be predicted that does not contain such a feature needs an entry of
        value 0, because an absent entry would stand for the mean. Other features are divided by their root
        mean square over the samples that contain them, which leaves 0/1 features unchanged.
        """
        centred = self.centred()
        _, scale = self.standardise()
        rms = np.sqrt(self.squares / np.maximum(self.present, 1) + self.mean * self.mean)
        return (
            np.where(centred, self.mean, 0.0),
            np.where(centred, scale, 1 / np.where(rms > 0, rms, 1.0)),
        )


def _of_dense(data: DenseData) -> Moments:
    d = data.n_features
    parts = [Moments(0, np.zeros(d), np.zeros(d), np.zeros(d))]
    # Go in blocks, because a float64 copy of all samples can exceed the memory.
    for start in range(0, data.n, 4096):
        block = data.x[start : start + 4096].astype(np.float64)
        mean = block[0] + (block - block[0]).mean(axis=0)
        block -= mean
        block *= block
        n = len(block)
        parts = [
            Moments.combine([*parts, Moments(n, np.full(d, float(n)), mean, block.sum(axis=0))])
        ]
    return parts[0]


def _of_sparse(data: SparseData) -> Moments:
    d, places = data.n_features, data.indices
    present = np.bincount(places, minlength=d).astype(np.float64)
    # Subtract any value of the feature first: the differences are small if the feature varies little.
    pivot = np.zeros(d)
    pivot[places] = data.values
    sums = np.bincount(places, data.values - pivot[places], minlength=d)
    mean = pivot + sums / np.maximum(present, 1)
    deviations = data.values - mean[places]
    squares = np.bincount(places, deviations * deviations, minlength=d)
    return Moments(data.n, present, mean, squares.astype(np.float64))


def _of_columns(data: SparseData) -> Moments:
    assert data.fields is not None
    fields = data.fields.astype(np.int64)
    return _of_sparse(SparseData(data.indptr, fields, data.values, data.labels, data.n_fields))


def _sum_counts(parts: Sequence[Moments]) -> Moments:
    """Return the keys of all parts and the number of samples that contain each."""
    keys, places = distinct_places(np.concatenate([part.keys for part in parts]))
    present = np.bincount(places, np.concatenate([part.present for part in parts]), len(keys))
    count = sum(part.count for part in parts)
    columns = [part.columns for part in parts if part.columns is not None]
    return Moments(
        count,
        present.astype(np.float64),
        np.zeros(0),
        np.zeros(0),
        keys,
        Moments.combine(columns) if columns else None,
    )


def _inverse_root(variance: Vector, mean: Vector) -> Vector:
    """Return 1 / standard deviation; 0 for features that are constant up to rounding."""
    varies = variance > (CONSTANT * mean) ** 2
    inverse: Vector = np.where(varies, 1 / np.sqrt(np.where(varies, variance, 1.0)), 0.0)
    return inverse
