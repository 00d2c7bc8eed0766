"""Metrics of a task's own: exact sums over the samples of all workers, divided at the end.

A task returns a numerator and a denominator for each metric of a batch (`mpips.tasks.base.Task.measure`).
Each is a number or an array with a value for each sample. All values are added exactly (`mpips.data.exact`)
and the quotient is rounded once. So a metric of one value per sample has the same bits for any number of
workers and any order of samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data import exact
from mpips.data.exact import ExactSum, ratio

# The better values of a metric; "none": neither, so it can be reported but not watched.
Direction: TypeAlias = Literal["higher", "lower", "none"]
# For each metric of a batch: numerator and denominator, numbers or arrays of any shape.
Measured: TypeAlias = Mapping[str, tuple[Any, Any]]

_NUMBERS = 4  # whole numbers of an ExactSum


class Quotients(msgspec.Struct, frozen=True):
    """Sums of numerators and denominators. Those of two workers can be added.

    Attributes:
        names: Names of the metrics, equal on all workers.
        over: The sum of the numerators of each.
        under: The sum of the denominators of each.
    """

    names: tuple[str, ...]
    over: tuple[ExactSum, ...]
    under: tuple[ExactSum, ...]

    @classmethod
    def zero(cls, names: Sequence[str]) -> Quotients:
        """Return the sums over no samples."""
        zeros = (ExactSum(),) * len(names)
        return cls(tuple(names), zeros, zeros)

    @classmethod
    def of(cls, names: Sequence[str], found: Measured) -> Quotients:
        """Return the sums of a batch.

        Args:
            names: Names of the metrics.
            found: Value of `Task.measure`.

        Raises:
            ValueError: A metric is missing, or a value is not a pair of numbers or arrays.
        """
        over, under = [], []
        for name in names:
            if name not in found:
                raise ValueError(f"metric {name!r} is missing: found {', '.join(found) or 'none'}")
            pair = found[name]
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ValueError(
                    f"metric {name!r} is {pair!r:.60}: must be (numerator, denominator)"
                )
            over.append(ExactSum.of(_values(pair[0])))
            under.append(ExactSum.of(_values(pair[1])))
        return cls(tuple(names), tuple(over), tuple(under))

    def __add__(self, other: Quotients) -> Quotients:
        """Return the sums over the samples of both."""
        return Quotients(
            self.names,
            tuple(a + b for a, b in zip(self.over, other.over, strict=True)),
            tuple(a + b for a, b in zip(self.under, other.under, strict=True)),
        )

    def pack(self) -> npt.NDArray[np.int64]:
        """Return the sums as int64 values."""
        return exact.pack([n for s in (*self.over, *self.under) for n in s.to_numbers()])

    @classmethod
    def unpack(cls, names: Sequence[str], packed: npt.NDArray[np.int64]) -> Quotients:
        """Return the sums that `pack` packed."""
        numbers = exact.unpack(packed)
        sums = [ExactSum(*numbers[i : i + _NUMBERS]) for i in range(0, len(numbers), _NUMBERS)]
        return cls(tuple(names), tuple(sums[: len(names)]), tuple(sums[len(names) :]))

    def values(self) -> dict[str, float]:
        """Return numerator / denominator of each metric; nan where the denominator is 0 or not finite."""
        pairs = zip(self.names, self.over, self.under, strict=True)
        return {name: _divide(over, under) for name, over, under in pairs}


def _values(value: Any) -> npt.NDArray[np.float64]:
    """Return a number or an array as float64, shape (n,)."""
    return np.atleast_1d(np.asarray(value, np.float64)).ravel()


def _divide(over: ExactSum, under: ExactSum) -> float:
    if not under.finite or not under.units:
        return math.nan
    if not over.finite:
        return over.over(1) * math.copysign(1.0, under.units)
    return ratio(over.units, under.units)
