"""BSP: one update per clock, summed in the order of workers, independent of timing."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from harness import Rig, clock_of, dense, floats, in_threads, rows

from mpips import _native
from mpips.model.consistency import BSP
from mpips.worker.worker import connection_of

Outcome = _native.Outcome
# (2^24 + 1) + 1 is 2^24 in float32, 1 + 1 + 2^24 is 2^24 + 2: the order shows in the sum.
ORDERED = [2.0**24, 1.0, 1.0, -(2.0**24)]


def in_worker_order(values):
    total = np.float32(0)
    for value in values:
        total = np.float32(total + np.float32(value))
    return -total


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_sum_is_formed_in_worker_order_whatever_the_arrival(order):
    rig = Rig(dense(5, consistency=BSP("sum")), rows(1, consistency=BSP("sum")), n_workers=4)
    for worker in order:
        writer = rig.writers[worker]
        keys = np.array([7, worker], np.int64)
        update = np.full((2, 1), ORDERED[worker], np.float32)
        assert writer.push_rows(1, 0, keys, update, None, 0) == 2
        clock_of(rig, worker, 0, [ORDERED[worker]])
        rig.drain()
    expected = in_worker_order(ORDERED)
    assert expected != in_worker_order(ORDERED[::-1])
    assert rig.values().tolist() == [expected] * 5
    table = rig.table_rows(1)
    assert table.pop(7) == [expected]
    assert table == {w: [-ORDERED[w]] for w in range(4)}


@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("seed", range(8))
def test_clocks_of_threads_are_bitwise_those_of_one_thread(reduce, seed):
    n, clocks, size = 3, 6, 700
    model = BSP(reduce)
    tables = (dense(size, consistency=model), rows(2, consistency=model))
    rng = np.random.default_rng(seed)
    updates = rng.normal(size=(clocks, n, size)).astype(np.float32)
    delays = rng.integers(0, 3, (n, clocks))

    def work(worker, pause):
        for clock in range(clocks):
            for _ in range(pause[clock]):
                threading.Event().wait(0.0005)
            worker.table("w").push(updates[clock, worker.index])
            keys = np.array([clock % 2, 9 + worker.index])
            worker.table("e").push(keys, updates[clock, worker.index, :4].reshape(2, 2))
            worker.clock()
            worker.table("w").pull()
        connection_of(worker).finish()

    rig = Rig(*tables, n_workers=n)
    with rig.serving():
        workers = [rig.worker(w, local=False) for w in range(n)]
        in_threads([lambda w=w: work(w, delays[w.index]) for w in workers])
    plain = np.zeros(size, np.float32)
    for clock in range(clocks):
        total = np.zeros(size, np.float32)
        for worker in range(n):
            total += updates[clock, worker]
        plain -= total * np.float32(1 / n if reduce == "mean" else 1)
    assert rig.values().tobytes() == plain.tobytes()
    assert rig.core.version(0) == rig.core.version(1) == clocks
    stats = rig.core.stats(0)
    assert (stats["pushed"], stats["applied"], stats["updates"]) == (n * clocks, n * clocks, clocks)


def test_mean_divides_by_the_workers_of_the_clock_not_by_pushes():
    rig = Rig(dense(2), dense(2, "m", consistency=BSP("mean")), n_workers=3)
    clock_of(rig, 0, 0, [4.0, 2.0], table=1)
    clock_of(rig, 1, 0, [], table=1)
    clock_of(rig, 2, 0, [6.0], table=1)
    rig.drain()
    assert rig.values(1).tolist() == [-4.0, -4.0]
    assert rig.core.stats(1)["applied"] == 3
    assert rig.core.stats(1)["staleness"][0] == 3


def test_several_pushes_of_a_clock_make_one_update_and_are_told_so():
    rig = Rig(dense(3, consistency=BSP("sum")), n_workers=2)
    pushes = clock_of(rig, 0, 0, [1.0, 2.0])
    clock_of(rig, 1, 0, [4.0])
    rig.drain()
    assert rig.values().tolist() == [-7.0] * 3
    assert rig.core.stats(0)["updates"] == 1
    assert [rig.writers[0].result(q) for q in pushes] == [(Outcome.ACCUMULATED, 0)] * 2


def test_push_ahead_of_its_clock_waits_in_the_ring():
    rig = Rig(dense(3, consistency=BSP("sum")), n_workers=2)
    clock_of(rig, 0, 0, [1.0])
    clock_of(rig, 0, 1, [10.0])
    rig.drain()
    assert rig.writers[0].applied == 2
    assert not rig.values().any()
    clock_of(rig, 1, 0, [2.0])
    rig.drain()
    assert rig.values().tolist() == [-3.0] * 3
    clock_of(rig, 1, 1, [20.0])
    rig.drain()
    assert rig.values().tolist() == [-33.0] * 3


def test_clock_without_pushes_still_closes():
    rig = Rig(dense(3, consistency=BSP("sum")), n_workers=2)
    for worker in (1, 0):
        clock_of(rig, worker, 0, [])
    rig.drain()
    assert rig.core.version(0) == 1
    assert rig.core.stats(0)["updates"] == 0


@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_nobody_waits_for_a_finished_worker(leaver):
    rig = Rig(dense(3, consistency=BSP("mean")), n_workers=3)
    for worker in range(3):
        clock_of(rig, worker, 0, [3.0])
    rig.writers[leaver].finish(1)
    rig.drain()
    others = [w for w in range(3) if w != leaver]
    for worker in others[::-1]:
        clock_of(rig, worker, 1, [1.0])
    rig.drain()
    assert rig.values().tolist() == [-4.0] * 3
    assert rig.core.finished(leaver)
    for worker in others:
        rig.writers[worker].finish(2)
    rig.drain()
    assert rig.core.version(0) == 2


def test_bsp_push_larger_than_the_ring_waits_for_its_turn_and_is_whole():
    rig = Rig(dense(5000, consistency=BSP("sum")), n_workers=2)
    updates = [floats(5000, w) for w in range(2)]

    def work(worker):
        for _ in range(3):
            worker.table("w").push_pull(updates[worker.index])

    with rig.serving():
        workers = [rig.worker(w, local=False) for w in range(2)]
        in_threads([lambda w=w: work(w) for w in reversed(workers)])
    assert (rig.values() == -3 * (updates[0] + updates[1])).all()
