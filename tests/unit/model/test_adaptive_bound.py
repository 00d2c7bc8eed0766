"""The bound of SSP("auto"): DSSP's choice against its definition in NumPy, and what a choice depends on."""

from __future__ import annotations

import numpy as np
import pytest

from mpips import ASP, SSP, DenseTable
from mpips.errors import ConfigError
from mpips.model.adaptive_bound import Interval, choose_bound, extra_clocks
from mpips.model.job_tables import check_tables
from mpips.model.table_config import from_config, to_config


def defined(fast_push: int, fast: int, slow_push: int, slow: int, most: int) -> int:
    """Return the result of DSSP's algorithm 2: the r of the least distance of any two simulated pushes."""
    numbers = np.arange(most + 1)
    of_fast = fast_push + numbers * fast
    of_slow = slow_push + (numbers + 1) * slow
    distances = np.abs(of_slow[np.newaxis] - of_fast[:, np.newaxis]).min(axis=1)
    return int(distances.argmin())  # the first of several


@pytest.mark.parametrize("seed", range(200))
def test_extra_clocks_are_those_of_the_definition(seed):
    draws = np.random.default_rng(seed)
    fast, slow = (int(n) for n in draws.integers(1, 40, 2))
    fast_push, slow_push = (int(n) for n in draws.integers(-50, 50, 2))
    most = int(draws.integers(0, 20))
    found = extra_clocks(fast_push, fast, slow_push, slow, most)
    assert found == defined(fast_push, fast, slow_push, slow, most)


@pytest.mark.parametrize(
    ("times", "bound"),
    [
        ([1.0, 1.0], 0),  # an even cluster is under BSP
        ([1.0, 1.2, 1.1], 0),
        ([1.0, 3.0, 1.5], 2),  # the fastest ends three clocks while the slowest ends one
        ([3.0, 1.0], 2),
        ([1.0, 4.0], 3),
        ([1.0, 1000.0], 8),
        ([0.0, 1.0], 8),
        ([0.0, 0.0], 0),
    ],
)
def test_the_bound_lets_the_fastest_worker_go_on_until_the_slowest_has_ended_its_clock(
    times, bound
):
    choice = choose_bound([Interval(w, s) for w, s in enumerate(times)], 8)
    assert choice.bound == bound
    assert f"worker {times.index(min(times))} needs {1e3 * min(times):.4g} ms" in choice.reason
    assert f"worker {times.index(max(times))} {1e3 * max(times):.4g} ms" in choice.reason


def test_a_small_gain_is_worth_no_greater_bound():
    assert extra_clocks(4, 4, 0, 5, 8) == 4  # 20 = 4 * 5
    assert extra_clocks(4, 4, 0, 5, 8, tolerance=0.25) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bound": "adaptive"}, "bound = 'adaptive': must be .*'auto'"),
        ({"bound": -1}, "bound = -1: must be from 0 to"),
        ({"bound": "auto", "max": 256}, "max = 256: must be from 1 to 255"),
        ({"bound": "auto", "max": 0}, "max = 0: must be from 1 to 255"),
        ({"bound": 2, "max": 5}, "max = 5 with bound = 2: applies only to bound = 'auto'"),
    ],
)
def test_ssp_refuses_what_is_no_bound(arguments, message):
    with pytest.raises(ConfigError, match=message):
        SSP(**arguments)


def test_a_job_has_one_greatest_bound():
    def tables(*bounds):
        return [
            DenseTable(f"t{i}", (2,), consistency=SSP("auto", max=b)) for i, b in enumerate(bounds)
        ]

    check_tables([*tables(4, 4), DenseTable("other", (2,), consistency=ASP())])
    with pytest.raises(ConfigError, match=r"different greatest bounds \[4, 5\]"):
        check_tables(tables(4, 5))


def test_a_table_of_another_process_has_the_same_bound():
    table = DenseTable("w", (2,), consistency=SSP("auto", max=3))
    assert from_config(to_config(table)).consistency == SSP("auto", max=3)
