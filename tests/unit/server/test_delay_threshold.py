"""Reject("auto"): the estimate against Ringmaster ASGD's definition, and what servers do with it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from harness import Rig, dense, rows

from mpips import _native
from mpips.errors import ConfigError
from mpips.model.consistency import ASP, BSP, Reject
from mpips.model.job_tables import check_tables
from mpips.server.threshold_control import ThresholdControl, thresholds_in_memory

EVERY, PAIRS = _native.DelayThreshold.EVERY, _native.DelayThreshold.PAIRS
AUTO = ASP(Reject("auto"))


def pushes_of(seed: int, n: int, noise: int, n_workers: int) -> list[tuple[int, np.ndarray]]:
    """Return as many pushes as an estimate needs: a gradient of ones, and noise of whole numbers."""
    draws = np.random.default_rng(seed)
    found = []
    for i in range((EVERY + 1) * PAIRS):
        update = 1 + draws.integers(-noise, noise + 1, n)
        found.append((i % n_workers, update.astype(np.float32)))
    return found


def ringmaster(pushes: list[tuple[int, np.ndarray]], least: int) -> tuple[int, float, float]:
    """Return R, epsilon and sigma^2 in NumPy: one pair of workers that follow each other in each stretch."""
    inner, squares, n, i = 0.0, 0.0, 0, 0
    while n < PAIRS:
        i += EVERY - 1
        first = i
        i += 1
        while pushes[i][0] == pushes[first][0]:
            i += 1
        a, b = pushes[first][1].astype(np.float64), pushes[i][1].astype(np.float64)
        inner += float(a @ b)
        squares += float(a @ a + b @ b) / 2
        n, i = n + 1, i + 1
    epsilon = inner / n
    variance = max(0.0, squares / n - epsilon)
    r = math.ceil(variance / epsilon) if epsilon > 0 else _native.DelayThreshold.MOST
    return max(r, least), epsilon, variance


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("noise", [0, 1, 5, 20])
def test_an_estimate_is_that_of_the_definition(seed, noise):
    pushes = pushes_of(seed, 32, noise, 2 + seed % 3)
    log = _native.DelayThreshold(2)
    assert not log.rejects(10**6)
    made = [log.note(worker, update) for worker, update in pushes]
    assert made.count(True) == 1
    assert (log.threshold, log.signal, log.noise) == ringmaster(pushes, 2)


def test_the_variance_of_the_gradient_is_found():
    """With noise of variance v in each element, beside a gradient of ones, R is about v."""
    noise = 6
    variance = noise * (noise + 1) / 3
    log = _native.DelayThreshold(1)
    for seed in range(8):
        for worker, update in pushes_of(seed, 4096, noise, 2):
            log.note(worker, update)
    assert abs(log.threshold - variance) < 0.1 * variance


def test_an_even_job_loses_no_push():
    """With the same gradient on all workers R would be 1; the number of workers is the least."""
    n = 4
    rig = Rig(dense(2, consistency=AUTO), n_workers=n, n_slots=64)
    workers = [rig.worker(w) for w in range(n)]
    for _ in range((EVERY + n) * PAIRS // n + 2):
        for worker in workers:
            worker.table("w").pull()
        for worker in workers:
            worker.table("w").push(np.ones(2, np.float32))
        rig.drain()
    assert rig.core.delay_threshold(0) == (n, 2.0, 0.0)
    assert rig.core.stats(0)["rejected"] == 0


def test_updates_are_dropped_from_the_threshold_on():
    rig = Rig(dense(2, consistency=AUTO), n_workers=2, n_slots=64)
    rig.core.set_delay_threshold(0, 3)
    fast, slow = rig.worker(0), rig.worker(1)
    one = np.ones(2, np.float32)
    for staleness in range(5):
        base = slow.table("w").pull()
        for _ in range(staleness):
            fast.table("w").push(one)
            rig.drain()
            fast.table("w").pull()
        result = slow.table("w").push(one, base=base).wait()
        assert (result.applied, result.rejected) == ((1, 0) if staleness < 3 else (0, 1))
        assert result.staleness == staleness


def test_changes_are_reported_and_a_later_launch_begins_with_them():
    rig = Rig(dense(2, consistency=AUTO), n_workers=2, n_slots=64)
    control = rig.server.threshold_control
    assert control is not None
    assert control.poll() == []
    assert thresholds_in_memory(rig.region, rig.layout, rig.tables) == {}
    workers = [rig.worker(w) for w in range(2)]
    for i in range((EVERY + 1) * PAIRS):
        workers[i % 2].table("w").pull()
        # Two parts of the gradient: a common 1, and +2 or -2 by turns.
        update = np.array([1.0, 2.0 - 4.0 * (i // 2 % 2)], np.float32)
        workers[i % 2].table("w").push(update)
        rig.drain()
    # A checkpoint has the threshold of its cut, whether it was reported yet or not, and no later one.
    before, cut = control.thresholds["w"], control.now()
    assert cut["w"] < before == control.thresholds["w"]
    lines = control.poll()
    assert control.poll() == []
    threshold = control.thresholds["w"]
    assert cut == {"w": threshold}
    assert cut is not control.thresholds
    assert lines[0].startswith(
        f"table 'w': updates of staleness {threshold} or more are dropped, before it none: the variance"
    )
    assert thresholds_in_memory(rig.region, rig.layout, rig.tables) == {"w": threshold}
    later = Rig(dense(2, consistency=AUTO), n_workers=2)
    begun = ThresholdControl(later.core, later.tables, {"w": 7, "other": 3})
    assert begun.thresholds == {"w": 7}


def test_only_a_dense_table_takes_an_estimated_threshold():
    check_tables([dense(2, consistency=AUTO), rows(1, consistency=ASP(Reject(3)))])
    with pytest.raises(ConfigError, match="'e': max_staleness = 'auto' applies only to dense"):
        check_tables([dense(2, consistency=BSP()), rows(1, consistency=AUTO)])
    with pytest.raises(ConfigError, match=r"max_staleness = 'often': must be .*'auto'"):
        Reject("often")
