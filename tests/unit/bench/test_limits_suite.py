"""The suite `limits`: it reports all ratios, and its exact caches are those that it compares with."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from mpips.bench import row_limits
from mpips.bench.measure import BARS
from mpips.cli import cli

COSTS = {"admit_cost", "evict_cost_idle", "evict_cost_lru", "evict_cost_lfu"}
SERVING = {"serve_slowdown"}
STORAGE = {"storage_vs_memory", "storage_uniform_vs_memory"}
OTHERS = {"memory_growth", "evict_hit_rate_lru", "evict_hit_rate_lfu"}


def test_every_ratio_of_limits_is_measured() -> None:
    done = CliRunner().invoke(
        cli, ["bench", "limits", "--quick", "--repetitions", "2", "--json"], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.output.splitlines()[-1])
    heavy = {f"{name}_heavy" for name in COSTS}
    assert set(found["ratios"]) == COSTS | SERVING | STORAGE | OTHERS | heavy
    assert BARS.keys() >= COSTS | SERVING | OTHERS | {"storage_vs_memory"}
    for name in STORAGE:
        assert re.search(r"25% in memory; [1-9]\d* were read", found["comparisons"][name]["what"])
    for name, comparison in found["comparisons"].items():
        n = 1 if name in OTHERS else 2
        assert len(comparison["ours"]) == len(comparison["baseline"]) == n
        assert all(value > 0 for value in comparison["ours"] + comparison["baseline"])
    for name in ("evict_cost_idle_heavy", "evict_cost_lru_heavy", "evict_cost_lfu_heavy"):
        assert " leave" in found["comparisons"][name]["what"]
    served = found["comparisons"]["serve_slowdown"]["what"]
    assert re.search(r"10,000 rows per second are looked up, [1-9]\d* requests", served)
    for by in ("lru", "lfu"):
        (rate,) = found["comparisons"][f"evict_hit_rate_{by}"]["ours"]
        (exact,) = found["comparisons"][f"evict_hit_rate_{by}"]["baseline"]
        assert 0.3 < exact < 0.9
        assert rate == pytest.approx(exact, abs=0.03)


def missed(clocks: list[np.ndarray], most: int, skip: int, by: str) -> int:
    """Return the misses of a cache whose keys are sorted at the end of each clock."""
    uses: dict[int, tuple[int, int]] = {}
    found = 0
    for clock, keys in enumerate(clocks):
        for key in keys.tolist():
            found += key not in uses and clock >= skip
            uses[key] = uses.get(key, (0, 0))[0] + 1, clock
        order = sorted(
            uses,
            key=lambda key: (uses[key][1] == clock, uses[key][0] * (by == "lfu"), uses[key][1]),
        )
        for key in order[: max(0, len(order) - most)]:
            del uses[key]
    return found


@pytest.mark.parametrize("seed", range(5))
def test_the_exact_caches_miss_what_a_sorted_one_misses(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clocks = [np.unique((rng.random(30) ** 3 * 200).astype(np.int64)) for _ in range(60)]
    # Which of equal keys leave changes the number of misses a little.
    for by, exact in (("lru", row_limits.exact_lru), ("lfu", row_limits.exact_lfu)):
        expected = missed(clocks, 50, 20, by)
        assert expected > 50
        assert abs(exact(clocks, 50, 20) - expected) <= expected // 10, by


def test_keys_of_a_clock_are_live_ones_of_which_some_are_new() -> None:
    sizes = row_limits.LimitSizes(n_live=100, keys=25)
    keys = row_limits._LiveKeys(sizes)
    first = [keys.take(0) for _ in range(4)]
    assert np.unique(np.concatenate(first)).size == 100
    second = [keys.take(3) for _ in range(4)]
    both = np.unique(np.concatenate([*first, *second]))
    assert both.size == 100 + 4 * 3
