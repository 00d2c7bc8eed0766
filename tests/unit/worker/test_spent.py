"""The time that a worker spends: waits, pushes and pulls add up, and waits count once."""

from __future__ import annotations

import time
from contextlib import nullcontext

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


def test_a_wait_within_a_push_counts_as_a_wait() -> None:
    clock = _native.WorkerClock()
    spent = TimeSpent(clock)
    clock.begin()
    time.sleep(0.03)
    spent.waited(0.02)
    clock.end_push()
    clock.begin()
    time.sleep(0.01)
    clock.end_pull()
    spent.fetched(0.5)
    with spent.cut():
        time.sleep(0.01)
        spent.waited(5.0)
    f = figures_of(spent)
    assert f.wait_s == 0.02, "the waits of a cut are part of the cut"
    assert 0.01 <= f.push_s <= f.elapsed_s - 0.04
    assert 0.51 <= f.pull_s <= 0.5 + f.elapsed_s - 0.04
    assert 0.01 <= f.snapshot_s <= f.elapsed_s - 0.04


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
def test_direct_and_general_calls_take_time(local: bool) -> None:
    rig = Rig(DenseTable("w", (64,)), EmbeddingTable("e", dim=4), slot_bytes=4096)
    worker = rig.worker(local=local)
    dense, rows = worker.table("w"), worker.table("e")
    keys = np.arange(8)
    # A worker with a local channel drains while it waits.
    with nullcontext() if local else rig.serving():
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
