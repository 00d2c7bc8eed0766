"""First and second moments of each feature: what tasks need to bring features to one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data.dataset import Dataset, DenseData

Vector: TypeAlias = npt.NDArray[np.float64]

# Beyond this many features, hashed keys above all, moments are not taken.
MAX_FEATURES = 1 << 22
# A variance below this share of the squared mean is rounding in float32 values.
CONSTANT = 1e-12


@dataclass(frozen=True)
class Moments:
    """Sums over samples, for each of d features; d is 0 where moments are not taken.

    Attributes:
        count: Number of samples.
        present: float64, shape (d,): samples that hold the feature at all.
        sum: float64, shape (d,).
        square_sum: float64, shape (d,).
    """

    count: int
    present: Vector
    sum: Vector
    square_sum: Vector

    @classmethod
    def of(cls, data: Dataset) -> Moments:
        """Take the moments of one worker's samples; not collective."""
        if data.n_features > MAX_FEATURES:
            return cls(data.n, np.zeros(0), np.zeros(0), np.zeros(0))
        if isinstance(data, DenseData):
            return _of_dense(data)
        d = data.n_features
        values: Vector = data.values.astype(np.float64)
        return cls(
            data.n,
            np.bincount(data.indices, minlength=d).astype(np.float64),
            np.bincount(data.indices, values, minlength=d).astype(np.float64),
            np.bincount(data.indices, values * values, minlength=d).astype(np.float64),
        )

    @classmethod
    def combine(cls, parts: Sequence[Moments]) -> Moments:
        """Add up the workers' moments in the order given, which decides the rounding."""
        total = parts[0]
        for part in parts[1:]:
            total = cls(
                total.count + part.count,
                total.present + part.present,
                total.sum + part.sum,
                total.square_sum + part.square_sum,
            )
        return total

    @property
    def n_features(self) -> int:
        """Number of features, 0 where moments are not taken."""
        return len(self.sum)

    def standardise(self) -> tuple[Vector, Vector]:
        """Return mean and 1 / standard deviation over all samples, each shape (d,).

        The second is 0 for a constant feature, so that (x - mean) * scale is 0 for it.
        """
        return _mean_and_scale(self.sum, self.square_sum, max(self.count, 1))

    def standardise_present(self) -> tuple[Vector, Vector]:
        """Return shift and scale, each shape (d,), for the entries of sparse samples alone.

        Absent entries stay 0, so only a feature that every sample holds is centred; it also gets
        its standard deviation for a scale. Others are divided by their root mean square over the
        samples that hold them: 0/1 features stay as they are.
        """
        n_present = np.maximum(self.present, 1)
        mean, scale = _mean_and_scale(self.sum, self.square_sum, n_present)
        everywhere = (self.present == self.count) & (scale > 0)
        rms = np.sqrt(self.square_sum / n_present)
        return (
            np.where(everywhere, mean, 0.0),
            np.where(everywhere, scale, 1 / np.where(rms > 0, rms, 1.0)),
        )


def _of_dense(data: DenseData) -> Moments:
    total, square = np.zeros(data.n_features), np.zeros(data.n_features)
    # Go in blocks: a float64 copy of everything could be larger than memory.
    for start in range(0, data.n, 4096):
        block = data.x[start : start + 4096].astype(np.float64)
        total += block.sum(axis=0)
        square += (block * block).sum(axis=0)
    return Moments(data.n, np.full(data.n_features, float(data.n)), total, square)


def _mean_and_scale(total: Vector, square: Vector, n: int | Vector) -> tuple[Vector, Vector]:
    mean = total / n
    variance = square / n - mean * mean
    varies = variance > CONSTANT * mean * mean
    return mean, np.where(varies, 1 / np.sqrt(np.where(varies, variance, 1.0)), 0.0)
