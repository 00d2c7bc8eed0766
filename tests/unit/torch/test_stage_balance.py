"""The cut of least cost is that of a search through all cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise

import numpy as np
import pytest

from mpips.torch.stage_balance import Costs, least_maximum, least_sum, spans


def cuts(n: int, n_stages: int) -> Iterator[list[int]]:
    """Yield the ends of the stages of all cuts."""
    for inner in combinations(range(1, n), n_stages - 1):
        yield [*inner, n]


def costs_of(ends: Sequence[int], costs: Sequence[Costs]) -> list[float]:
    return [float(costs[stage][a, b]) for stage, (a, b) in enumerate(pairwise([0, *ends]))]


@pytest.mark.parametrize("seed", range(30))
def test_the_cut_is_the_least_of_all(seed: int) -> None:
    random = np.random.default_rng(seed)
    n, n_stages = int(random.integers(1, 8)), int(random.integers(1, 6))
    costs = [random.integers(1, 20, (n + 1, n + 1)).astype(float) for _ in range(n_stages)]
    for cost in costs:
        cost[np.tri(n + 1, dtype=bool)] = np.inf
        cost[random.random((n + 1, n + 1)) < 0.2] = np.inf
    rules: list[tuple[Callable[..., tuple[float, list[int]]], Callable[[list[float]], float]]]
    rules = [(least_maximum, max), (least_sum, sum)]
    for rule, combined in rules:
        least, ends = rule(costs)
        all_costs = [combined(costs_of(one, costs)) for one in cuts(n, n_stages)]
        expected = min(all_costs, default=float("inf"))
        assert least == expected
        assert bool(ends) == np.isfinite(expected)
        assert not ends or combined(costs_of(ends, costs)) == expected


def test_sums_of_items_are_those_between_two_places() -> None:
    found = spans([3, 0, 4])
    assert found[0].tolist() == [np.inf, 3, 3, 7]
    assert found[1].tolist() == [np.inf, np.inf, 0, 4]
    assert np.isinf(found[3]).all()
