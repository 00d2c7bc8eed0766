"""Nothing that one rank does or stores grows with the square of the job's size."""

from __future__ import annotations

import pytest

from tests.bench.scale import CONSTANT, FIGURES, LINEAR, exponent, measure

SMALL, LARGE = (10, 2), (1000, 200)
# Bytes are the same in every run. Processor time is not: work that grows with the square has exponent 2.
TIMED_BAR = 1.6


@pytest.fixture(scope="module")
def found() -> list[dict[str, float]]:
    return [measure(*size, seconds=1.0) for size in (SMALL, LARGE)]


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_grows_faster_than_the_job(found: list[dict[str, float]], name: str) -> None:
    unit, bar, _ = FIGURES[name]
    grown = exponent([SMALL[0], LARGE[0]], [figures[name] for figures in found])
    assert grown <= (bar if unit.startswith("bytes") else TIMED_BAR), found


def test_exponents_are_those_of_powers() -> None:
    sizes = [10, 1000]
    assert exponent(sizes, [3.0, 3.0e4]) == pytest.approx(2.0)
    assert exponent(sizes, [3.0, 3.0e2]) == pytest.approx(1.0)
    assert exponent(sizes, [7.0, 7.0]) == exponent(sizes, [7.0, 1.0]) == 0.0
    assert CONSTANT < 1.0 < LINEAR < 2.0
