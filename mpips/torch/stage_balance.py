"""The cut of a sequence into contiguous stages at the least cost: exact dynamic programming.

A sequence of n items has n + 1 places between which a stage can lie. The cost of a stage is a matrix: entry
[a, b] is the cost of items a to b - 1, infinity if the stage cannot consist of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]


def least_maximum(costs: Sequence[Costs]) -> tuple[float, list[int]]:
    """Return the cut whose greatest cost of a stage is least; see `_least`."""
    return _least(costs, np.maximum)


def least_sum(costs: Sequence[Costs]) -> tuple[float, list[int]]:
    """Return the cut whose sum of the costs of all stages is least; see `_least`."""
    return _least(costs, np.add)


def _least(costs: Sequence[Costs], combine: np.ufunc) -> tuple[float, list[int]]:
    """Return the least cost, and the end of each stage; of equal cuts the one whose last stages begin first.

    Args:
        costs: For each stage, in order, float64, shape (n + 1, n + 1).
        combine: The cost of the stages so far and that of the next one, as one cost. It must not decrease
            with either.

    Returns:
        The cost, and the ends; infinity and no ends if there is no cut.
    """
    n = len(costs[0]) - 1
    least = np.full(n + 1, np.inf)
    least[0] = 0.0

    # For each place the least cost of the stages that end there, and where the last one of them begins.
    begins = []
    for cost in costs:
        found = combine(least[:, None], cost)
        begins.append(found.argmin(axis=0))
        least = found.min(axis=0)
    if not np.isfinite(least[n]):
        return float("inf"), []
    ends = [n]
    for begin in reversed(begins[1:]):
        ends.append(int(begin[ends[-1]]))
    return float(least[n]), ends[::-1]


def spans(values: Sequence[float] | Costs) -> Costs:
    """Return the sums of the values of items a to b - 1; infinity where no item is."""
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(values, np.float64))])
    found: Costs = sums[None, :] - sums[:, None]
    found[np.tri(len(sums), dtype=bool)] = np.inf
    return found
