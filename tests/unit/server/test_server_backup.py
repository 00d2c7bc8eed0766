"""Backup workers: a clock closes without the slowest, whose pushes are dropped and counted."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from harness import Rig, clock_of, dense, in_threads, rows

from mpips import _native
from mpips.model.consistency import BSP
from mpips.model.table import DenseTable
from mpips.worker.worker import connection_of

Outcome = _native.Outcome


def test_late_push_is_dropped_and_counted_on_both_sides():
    rig = Rig(dense(3, consistency=BSP("sum", backup=1)), n_workers=3, n_slots=8)
    early = clock_of(rig, 2, 0, [100.0], tick=False)  # consumed, but its clock is never complete
    rig.drain()
    clock_of(rig, 0, 0, [1.0])
    clock_of(rig, 1, 0, [2.0])
    rig.drain()
    assert rig.values().tolist() == [-3.0] * 3
    late = clock_of(rig, 2, 0, [200.0])
    rig.drain()
    assert rig.values().tolist() == [-3.0] * 3
    writer = rig.writers[2]
    assert writer.result(early[0])[0] == Outcome.ACCUMULATED
    assert writer.result(late[0])[0] == Outcome.LATE
    assert (writer.counters()["late"], writer.counters()["applied"]) == (2, 0)
    stats = rig.core.stats(0)
    assert (stats["pushed"], stats["applied"], stats["late"]) == (4, 2, 2)
    # In the next clock the worker counts again, and nothing of its dropped pushes is left.
    clock_of(rig, 2, 1, [10.0])
    clock_of(rig, 0, 1, [20.0])
    rig.drain()
    assert rig.values().tolist() == [-33.0] * 3


def push_segments(rig, worker, clock, value, done=0, whole=True):
    """Push 1000 values, dense or as rows, from `done` on; if not `whole`, as many as the ring holds."""
    writer, size = rig.writers[worker], 1000
    update = np.full(size, value, np.float32)
    while done < size:
        if isinstance(rig.tables[0], DenseTable):
            done = writer.push_dense(0, clock, update, None, done)
        else:
            done = writer.push_rows(0, clock, np.arange(size), update[:, None], None, done)
        rig.drain()
        if not whole:
            break
    return done


@pytest.mark.parametrize(
    "make", [lambda c: dense(1000, consistency=c), lambda c: rows(1, consistency=c)]
)
def test_part_of_a_push_whose_clock_closed_is_dropped(make):
    rig = Rig(make(BSP("sum", backup=1)), n_workers=2, n_slots=2)
    done = push_segments(rig, 1, 0, 64.0, whole=False)
    assert 0 < done < 1000
    push_segments(rig, 0, 0, 1.0)
    rig.writers[0].tick(0)
    rig.drain()
    assert rig.core.version(0) == 1
    push_segments(rig, 1, 0, 64.0, done)
    rig.writers[1].tick(0)
    rig.drain()
    assert rig.core.stats(0)["late"] == rig.writers[1].counters()["late"] == 1
    push_segments(rig, 1, 1, 2.0)
    rig.writers[1].tick(1)
    rig.drain()
    values = (
        rig.values().tolist()
        if isinstance(rig.tables[0], DenseTable)
        else [row[0] for row in rig.table_rows().values()]
    )
    assert set(values) == {-3.0}


def test_workers_skip_clocks_that_closed_without_them_and_nobody_hangs():
    n, clocks = 4, 30
    rig = Rig(dense(300, consistency=BSP("sum", backup=2)), n_workers=n)

    def work(worker):
        rng = np.random.default_rng(worker.index)
        handle, pushes = worker.table("w"), 0
        while worker.now < clocks:
            before = worker.now
            if rng.random() < 0.3:
                threading.Event().wait(0.002)
            handle.push(np.ones(300, np.float32))
            pushes += 1
            worker.clock()
            assert worker.now > before
            handle.pull()
        connection_of(worker).finish()
        return pushes

    with rig.serving():
        workers = [rig.worker(w, local=False) for w in range(n)]
        pushes = in_threads([lambda w=w: work(w) for w in workers])
    stats = rig.core.stats(0)
    counters = [worker.counters() for worker in workers]
    assert stats["pushed"] == sum(pushes) == sum(c["pushed"] for c in counters)
    assert stats["applied"] == sum(c["applied"] for c in counters)
    assert stats["late"] == sum(c["late"] for c in counters) == sum(pushes) - stats["applied"]
    assert (rig.values() == -float(stats["applied"])).all()
    assert rig.core.version(0) >= clocks


def test_worker_left_behind_jumps_to_the_clock_that_is_open():
    rig = Rig(dense(3, consistency=BSP("sum", backup=1)), n_workers=2, n_slots=64)
    slow = rig.worker(1)
    for clock in range(5):
        clock_of(rig, 0, clock, [1.0])
    rig.drain()
    slow.table("w").push(np.ones(3, np.float32))
    slow.clock()
    assert slow.now == 5
    assert slow.counters()["late"] == 1
    result = slow.table("w").push(np.ones(3, np.float32)).wait()
    assert (result.applied, result.late) == (1, 0)


def test_pace_is_that_of_closed_clocks_also_for_workers_that_have_skipped_some():
    rig = Rig(dense(3, consistency=BSP("sum", backup=2)), n_workers=3, n_slots=64)
    for clock in range(5):
        clock_of(rig, 0, clock, [1.0])
    rig.drain()
    late = [rig.worker(w) for w in (1, 2)]
    for worker in late:
        worker.clock()
    rig.drain()
    # Servers have both at clock 1: they learn of the skipped clocks only from the next records.
    assert [worker.now for worker in late] == [5, 5]
    assert [rig.core.clock(w) for w in range(3)] == [5, 1, 1]
    for worker in late:
        worker.keep_pace(0)
    clock_of(rig, 0, 5, [1.0])
    rig.drain()
    late[0].clock()
    assert late[0].now == 6
    late[0].keep_pace(0)
