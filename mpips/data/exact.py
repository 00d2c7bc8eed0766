"""Exact sums of float64 values: any division of the values among workers gives the same bits.

A sum is kept as a whole number of units of 2**-UNIT_BITS, in which every float64 value and every product of
two is a whole number. Python's whole numbers have any size, so their addition is exact, and therefore
associative and commutative; rounding happens once, in `ratio`. The number has at most 2600 + 2048 bits and
those of the count of values: about 600 bytes for any number of samples. (Kulisch's long accumulator has the
same purpose: "Computer Arithmetic and Validity", 2008.)

NumPy does the work per value. A value is split into a mantissa, a whole number of 53 bits, and an exponent;
the leading 26 and the other 27 bits of mantissas are summed by exponent in float64. That is exact below
2**53, so for blocks of at most 2**20 values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

Float64: TypeAlias = npt.NDArray[np.float64]
Int64: TypeAlias = npt.NDArray[np.int64]

UNIT_BITS = 2600  # a unit is 2**-2600; the smallest product of two float64 values is 2**-2148
_BLOCK = 1 << 20  # values whose parts are summed in float64 at a time
_SPLIT = float(2**27 + 1)  # Veltkamp's constant for 53 bits
_WORD = 8  # bytes of an int64


class ExactSum(msgspec.Struct, frozen=True):
    """An exact sum of float64 values, with IEEE 754's rules for infinities and nan.

    Attributes:
        units: The sum of the finite values, in units of 2**-UNIT_BITS.
        n_nan: Number of values that are nan.
        n_up: Number of values that are infinite.
        n_down: Number of values that are minus infinite.
    """

    units: int = 0
    n_nan: int = 0
    n_up: int = 0
    n_down: int = 0

    @classmethod
    def of(cls, values: Float64) -> ExactSum:
        """Return the sum of values, float64, shape (n,)."""
        return cls._of(values, _sum)

    @classmethod
    def of_squares(cls, values: Float64) -> ExactSum:
        """Return the sum of the exact squares of values, float64, shape (n,)."""
        found = cls._of(values, _sum_squares)
        return cls(found.units, found.n_nan, found.n_up + found.n_down, 0)

    @classmethod
    def _of(cls, values: Float64, total: Callable[[Float64], int]) -> ExactSum:
        finite = np.isfinite(values)
        units = sum(
            total(values[i : i + _BLOCK][finite[i : i + _BLOCK]])
            for i in range(0, len(values), _BLOCK)
        )
        if finite.all():
            return cls(units)
        return cls(
            units,
            int(np.isnan(values).sum()),
            int((values == np.inf).sum()),
            int((values == -np.inf).sum()),
        )

    def __add__(self, other: ExactSum) -> ExactSum:
        """Return the sum of all values of both."""
        return ExactSum(
            self.units + other.units,
            self.n_nan + other.n_nan,
            self.n_up + other.n_up,
            self.n_down + other.n_down,
        )

    def to_numbers(self) -> list[int]:
        """Return the attributes, for `pack`; `ExactSum(*numbers)` is this sum again."""
        return [self.units, self.n_nan, self.n_up, self.n_down]

    @property
    def finite(self) -> bool:
        """True if all values are finite."""
        return not (self.n_nan or self.n_up or self.n_down)

    def over(self, n: int) -> float:
        """Return the sum divided by n (1 or more), rounded once; nan and infinities as in float64."""
        if self.n_nan or (self.n_up and self.n_down):
            return float("nan")
        if self.n_up or self.n_down:
            return float("inf") if self.n_up else float("-inf")
        return ratio(self.units, n << UNIT_BITS)


def ratio(over: int, under: int) -> float:
    """Return over / under (not 0) correctly rounded to float64; infinite where it is too large for it."""
    try:
        return over / under
    except OverflowError:
        return float("inf") if (over > 0) == (under > 0) else float("-inf")


def _sum(values: Float64) -> int:
    """Return the sum of at most _BLOCK finite values in units."""
    return _scaled(values, np.zeros(len(values), np.int64))


def _sum_squares(values: Float64) -> int:
    """Return the sum of the squares of at most _BLOCK finite values in units."""
    fractions, exponents = np.frexp(values)
    # Dekker's product: `square + rest` is the exact square of a fraction, of which no part underflows.
    big = fractions * _SPLIT
    high = big - (big - fractions)
    low = fractions - high
    square = fractions * fractions
    rest = ((high * high - square) + 2 * high * low) + low * low
    doubled = 2 * exponents.astype(np.int64)
    return _scaled(square, doubled) + _scaled(rest, doubled)


def _scaled(values: Float64, exponents: Int64) -> int:
    """Return the sum of values * 2**exponents in units; at most _BLOCK finite values."""
    if not len(values):
        return 0
    fractions, own = np.frexp(values)
    places = own + exponents
    lowest = int(places.min())
    slots = places - lowest
    high = np.trunc(fractions * 2.0**26)
    low = (fractions * 2.0**26 - high) * 2.0**27
    highs, lows = np.bincount(slots, high), np.bincount(slots, low)
    total = 0
    for slot in np.flatnonzero((highs != 0) | (lows != 0)).tolist():
        mantissas = (int(highs[slot]) << 27) + int(lows[slot])
        total += mantissas << (UNIT_BITS + lowest + slot - 53)
    return total


def pack(numbers: list[int]) -> Int64:
    """Return whole numbers of any size as an int64 array: for each its length in words, then its words."""
    parts = []
    for number in numbers:
        n_words = number.bit_length() // (8 * _WORD) + 1
        words = np.frombuffer(number.to_bytes(n_words * _WORD, "little", signed=True), np.int64)
        parts += [np.array([n_words], np.int64), words]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def unpack(packed: Int64) -> list[int]:
    """Return the whole numbers that `pack` packed."""
    found, at = [], 0
    while at < len(packed):
        n_words = int(packed[at])
        words = packed[at + 1 : at + 1 + n_words]
        found.append(int.from_bytes(words.tobytes(), "little", signed=True))
        at += 1 + n_words
    return found
