"""Distinct values, compared with numpy.unique."""

from __future__ import annotations

import numpy as np
import pytest

from mpips.model.distinct import distinct, distinct_counts, distinct_places

CASES = [
    np.array([], np.int64),
    np.array([7], np.uint64),
    np.array([3, 1, 3, 3, -(2**63), 1], np.int64),
    np.array([0.0, -0.0, 1.5, np.inf, 1.5, -np.inf]),
    np.random.default_rng(1).integers(0, 50, 1000),
    np.random.default_rng(2).integers(0, 2**63, 1000)[::2],
]


@pytest.mark.parametrize("values", CASES, ids=range(len(CASES)))
def test_the_values_counts_and_places_are_those_of_numpy(values: np.ndarray) -> None:
    unique, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    for found in (distinct(values), distinct_counts(values)[0], distinct_places(values)[0]):
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(found, unique)
    np.testing.assert_array_equal(distinct_counts(values)[1], counts)
    np.testing.assert_array_equal(distinct_places(values)[1], places)
