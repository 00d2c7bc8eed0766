"""The time that a worker spends: waits, pushes and pulls add up, and waits count once."""

from __future__ import annotations

import time

import numpy as np
import pytest
from harness import Rig

from mpips import DenseTable, EmbeddingTable, _native
from mpips.model.codec import Bf16
from mpips.mpi.messages import Figures
from mpips.worker.connection import Connection
from mpips.worker.spent import TimeSpent


def figures_of(spent: TimeSpent) -> Figures:
    found = Figures()
    spent.add_to(found)
    return found


def test_a_wait_within_a_push_counts_as_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    spent = TimeSpent(_native.WorkerClock())
    mark = spent.mark()
    now += 3.0
    spent.waited(2.0)
    spent.pushed(mark)
    mark = spent.mark()
    now += 4.0
    spent.pulled(mark)
    spent.fetched(0.5)
    began, wait_s = now, 2.0
    now += 5.0
    spent.waited(5.0)
    spent.cut(began, wait_s)
    f = figures_of(spent)
    assert (f.elapsed_s, f.wait_s, f.push_s, f.pull_s, f.snapshot_s) == (12.0, 2.0, 1.0, 4.5, 5.0)


def test_wait_until_counts_the_time_of_its_condition() -> None:
    rig = Rig(DenseTable("w", (4,)))
    connection: Connection = rig.worker()._connection
    calls = iter((False, False, True))

    def done() -> bool:
        time.sleep(0.01)
        return next(calls)

    connection.wait_until(done, lambda: "late")
    f = connection.figures()
    assert 0.03 <= f.wait_s <= f.elapsed_s


@pytest.mark.parametrize("local", [True, False])
def test_direct_and_general_calls_take_time_and_it_adds_up(local: bool) -> None:
    rig = Rig(DenseTable("w", (64,)), EmbeddingTable("e", dim=4), slot_bytes=4096)
    worker = rig.worker(local=local)
    dense, rows = worker.table("w"), worker.table("e")
    keys = np.arange(8)
    with rig.serving():
        for _ in range(40):
            dense.pull()
            dense.push(np.ones(64, np.float32)).wait()
            rows.pull(keys)
            rows.push(keys, np.ones((8, 4), np.float32)).wait()
            worker.clock()
        f = worker._connection.figures()
    assert f.push_s > 0
    assert f.pull_s > 0
    assert f.heap_bytes > 0
    assert f.push_s + f.pull_s + f.wait_s + f.snapshot_s <= f.elapsed_s * 1.5
    assert f.links == [(f.pushed_bytes, f.pulled_bytes)]


def test_bytes_that_a_codec_saves_are_those_of_the_values_without_it() -> None:
    rig = Rig(
        DenseTable("w", (64,), compression=Bf16()),
        EmbeddingTable("e", dim=16, compression=Bf16(), pull_compression=Bf16()),
        slot_bytes=8192,
    )
    worker = rig.worker()
    keys = np.arange(10)
    worker.table("w").push(np.ones(64, np.float32)).wait()
    worker.table("e").push(keys, np.ones((10, 16), np.float32)).wait()
    worker.table("e").pull(keys)
    f = worker._connection.figures()
    # Half of each value; keys travel as they are.
    assert f.push_saved_bytes == 2 * 64 + 2 * 160
    assert f.pushed_bytes + f.push_saved_bytes == 4 * 64 + 4 * 160 + 8 * 10
    assert (f.pulled_bytes, f.pull_saved_bytes) == (2 * 160, 2 * 160)


def test_without_a_codec_nothing_is_saved() -> None:
    rig = Rig(DenseTable("w", (64,)), EmbeddingTable("e", dim=16), slot_bytes=8192)
    worker = rig.worker()
    keys = np.arange(10)
    worker.table("w").push(np.ones(64, np.float32)).wait()
    worker.table("e").push(keys, np.ones((10, 16), np.float32)).wait()
    worker.table("e").pull(keys)
    f = worker._connection.figures()
    assert (f.push_saved_bytes, f.pull_saved_bytes) == (0, 0)
