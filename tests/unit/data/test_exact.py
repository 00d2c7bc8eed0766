"""Exact sums, compared with fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpips.data.exact import ExactSum, pack, ratio, unpack

finite = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(st.lists(finite, max_size=30), st.integers(1, 9))
def test_sum_and_squares_are_exact_for_any_split(values: list[float], n_parts: int) -> None:
    array = np.array(values, np.float64)
    parts = [array[i::n_parts] for i in range(n_parts)]
    total = sum((ExactSum.of(part) for part in parts), ExactSum())
    squares = sum((ExactSum.of_squares(part) for part in parts), ExactSum())
    assert Fraction(total.units, 2**2600) == sum(map(Fraction, values))
    assert Fraction(squares.units, 2**2600) == sum(Fraction(v) ** 2 for v in values)
    assert total == ExactSum.of(array)
    assert squares == ExactSum.of_squares(array)


def test_a_mean_is_correctly_rounded_over_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(0, 1, 5000) * 10.0 ** (np.arange(5000) % 30 - 15)
    whole = ExactSum.of(values).over(7)
    monkeypatch.setattr("mpips.data.exact._BLOCK", 64)
    assert ExactSum.of(values).over(7) == whole == float(sum(map(Fraction, values.tolist())) / 7)
    assert ExactSum.of(values).over(1) == math.fsum(values)


def test_a_block_of_the_largest_mantissas_is_exact() -> None:
    largest = np.nextafter(2.0, 0.0)
    values = np.full(1 << 20, largest)
    assert Fraction(ExactSum.of(values).units, 2**2600) == Fraction(largest) * (1 << 20)
    assert Fraction(ExactSum.of_squares(values).units, 2**2600) == Fraction(largest) ** 2 * (
        1 << 20
    )


@pytest.mark.parametrize(
    ("values", "total", "squares"),
    [
        ([1.0, math.nan], math.nan, math.nan),
        ([math.inf, 1.0], math.inf, math.inf),
        ([-math.inf, 1.0], -math.inf, math.inf),
        ([-math.inf, math.inf], math.nan, math.inf),
        ([1e308, 1e308], math.inf, math.inf),
        ([], 0.0, 0.0),
    ],
)
def test_infinities_and_nan_are_those_of_float64(
    values: list[float], total: float, squares: float
) -> None:
    array = np.array(values)
    assert ExactSum.of(array).over(1) == pytest.approx(total, nan_ok=True)
    assert ExactSum.of_squares(array).over(1) == pytest.approx(squares, nan_ok=True)
    assert ExactSum.of(array).finite == bool(np.isfinite(array).all())


@given(st.lists(st.integers(-(2**200), 2**200), max_size=8))
def test_whole_numbers_of_any_size_are_packed(numbers: list[int]) -> None:
    assert unpack(pack(numbers)) == numbers


def test_a_sum_of_any_number_of_samples_is_a_small_message() -> None:
    largest = ExactSum.of(np.array([np.finfo(np.float64).max])).units * 10**12
    assert pack([largest]).nbytes < 600
    assert ratio(-(10**400), 1) == -math.inf
