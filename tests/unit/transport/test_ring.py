"""The ring delivers every record once, in order, of any size, whatever the timing and after a kill."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import random
import signal

import numpy as np
import pytest
from harness import Rig, dense, floats, in_threads, push_all, rows
from long_runs import by_day
from ring_processes import KEYS, N_SLOTS, SLOT_BYTES, TABLES, pushes_of, read_blocks, worker_process

from mpips import _native
from mpips.model.consistency import SSP

Outcome = _native.Outcome
SPAWN = multiprocessing.get_context("forkserver")
SPAWN.set_forkserver_preload(["pytest", "mpips.session.job", "ring_processes"])


@pytest.fixture(scope="module", autouse=True)
def _end_of_forkserver():
    """End the fork server here; by itself it would end a little later than this process."""
    yield
    multiprocessing.forkserver._forkserver._stop()


def drain_result(rig, writer):
    sequence = writer.next_sequence - 1
    assert rig.drain() == 1
    return writer.result(sequence)


@pytest.mark.parametrize("checksums", [True, False])
def test_every_kind_of_record_is_consumed_and_answered(checksums):
    rig = Rig(dense(8), rows(2, consistency=SSP()), checksums=checksums)
    writer = rig.writers[0]
    one, row = np.ones(8, np.float32), np.full((1, 2), 3, np.float32)
    out = np.empty((2, 2), np.float32)
    for round_ in range(3 * N_SLOTS):
        assert writer.push_dense(0, round_, one, None, 0) == 8
        assert drain_result(rig, writer) == (Outcome.APPLIED, round_)
        rig.staging[0].view(128, 32, True).view(np.float32)[:] = one
        assert writer.push_staged(0, round_, 128, None, 8)
        assert drain_result(rig, writer)[0] == Outcome.APPLIED
        writer.set_base_version(0, rig.core.version(0))
        assert writer.push_rows(1, round_, np.array([6]), row, None, 0) == 1
        assert drain_result(rig, writer)[0] == Outcome.APPLIED
        assert writer.pull_rows(1, round_, np.array([6, 7]), out, 0) == 2
        assert drain_result(rig, writer)[0] == Outcome.ANSWERED
        assert writer.collect() == 0
        assert out.tolist() == [[-3.0 * (round_ + 1)] * 2, [0.0, 0.0]]
        assert writer.tick(round_)
        assert drain_result(rig, writer)[0] == Outcome.ANSWERED
        assert rig.core.clock(0) == round_ + 1
        writer.set_base_version(0, rig.core.version(0) - round_ - 1)
    assert writer.finish(round_ + 1)
    assert drain_result(rig, writer)[0] == Outcome.ANSWERED
    assert rig.core.finished(0)
    assert rig.values().tolist() == [-6.0 * N_SLOTS] * 8
    assert writer.applied == writer.next_sequence == 15 * N_SLOTS + 1


@pytest.mark.parametrize("n_slots", [2, 3, 7])
def test_ring_has_a_credit_per_slot_and_returns_it_with_the_acknowledgement(n_slots):
    rig = Rig(dense(4), n_slots=n_slots)
    writer, one = rig.writers[0], np.ones(4, np.float32)
    for round_ in range(5):
        for used in range(n_slots):
            assert writer.credits == n_slots - used
            assert writer.push_dense(0, 0, one, None, 0) == 4
        assert writer.push_dense(0, 0, one, None, 0) == 0
        assert not writer.tick(0)
        assert not writer.wait_credit(0.0, True)
        assert rig.drain() == n_slots
        assert writer.wait_credit(0.0, True)
        assert writer.wait_applied((round_ + 1) * n_slots, 0.0, True)
        assert not writer.wait_applied((round_ + 1) * n_slots + 1, 0.0, True)
    assert rig.values().tolist() == [-5.0 * n_slots] * 4


def test_slot_of_an_answered_pull_is_not_free_before_its_reply_is_collected():
    rig = Rig(rows(1), n_slots=2)
    writer, out = rig.writers[0], np.empty((1, 1), np.float32)
    assert writer.pull_rows(0, 0, np.array([1]), out, 0) == 1
    assert writer.tick(0)
    rig.drain()
    assert writer.applied == 2
    assert writer.credits == 0
    assert writer.collected_before() == 0
    assert writer.collect() == 0
    assert (writer.credits, writer.collected_before()) == (2, 2)


def test_results_are_remembered_for_4096_records_and_then_none():
    rig = Rig(dense(1))
    writer = rig.writers[0]
    assert writer.result(0)[0] == Outcome.NONE
    for sequence in range(4100):
        assert writer.push_dense(0, 0, np.zeros(1, np.float32), None, 0)
        if sequence % N_SLOTS == N_SLOTS - 1:
            rig.drain()
            assert writer.applied == sequence + 1
    assert [writer.result(q) for q in (4, 777, 4099)] == [
        (Outcome.APPLIED, q) for q in (4, 777, 4099)
    ]
    assert [writer.result(q)[0] for q in (0, 3, 4100)] == [Outcome.NONE] * 3


@pytest.mark.parametrize("seed", range(10))
def test_pushes_of_any_size_arrive_whole_while_another_thread_drains(seed):
    rng = np.random.default_rng(seed)
    n, n_rows, dim = (
        int(rng.integers(1, 40_000)),
        int(rng.integers(1, 3000)),
        int(rng.integers(1, 99)),
    )
    tables = (dense(n), rows(dim))
    slots, slot_bytes = int(rng.integers(2, 9)), 64 * int(rng.integers(16, 40))
    rig = Rig(*tables, n_workers=2, n_slots=slots, slot_bytes=slot_bytes)
    keys = np.arange(n_rows)

    def work(worker):
        for step in range(3):
            worker.table("w").push(floats(n, step))
            worker.table("e").push(keys, floats(n_rows * dim, step).reshape(n_rows, dim))
        return worker.table("e").pull(keys)

    with rig.serving():
        in_threads([lambda w=w: work(rig.worker(w, local=False)) for w in range(2)])
    expected = -2 * sum(floats(n, step) for step in range(3))
    assert (rig.values() == expected).all()
    expected = -2 * sum(floats(n_rows * dim, step) for step in range(3)).reshape(n_rows, dim)
    assert rig.table_rows(1) == dict(zip(keys.tolist(), expected.tolist(), strict=True))


def shared_rig(n_workers):
    return Rig(*TABLES, n_workers=n_workers, n_slots=N_SLOTS, slot_bytes=SLOT_BYTES, shared=True)


def contents(rig):
    found = np.zeros((KEYS, 3), np.float32)
    for key, row in rig.table_rows(2).items():
        found[key] = row
    return [rig.values(0), rig.values(1), found.reshape(-1)]


def sums(pushes):
    total = [np.zeros(n, np.float32) for n in (3000, 40, 3 * KEYS)]
    for table, update in pushes:
        total[table] -= update
    return total


def assert_same(found, expected):
    assert all((f == e).all() for f, e in zip(found, expected, strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_sums_over_processes_are_exact(seed):
    n, count = 3, 120
    rig = shared_rig(n)
    children = [
        SPAWN.Process(target=worker_process, args=(rig.regions.token, n, w, seed, count, None))
        for w in range(n)
    ]
    for child in children:
        child.start()
    try:
        while not all(rig.core.finished(w) for w in range(n)):
            rig.core.drain(0.01, 200)
            assert all(child.exitcode in (None, 0) for child in children)
    finally:
        for child in children:
            child.join()
    pushes = [push for w in range(n) for push in pushes_of(w, seed, count)]
    assert_same(contents(rig), sums(pushes))
    assert sum(rig.core.stats(t)["pushed"] for t in range(3)) == n * count


@pytest.mark.sampled
@pytest.mark.timeout(300)
def test_killed_worker_leaves_exactly_its_complete_pushes():
    for seed in by_day(range(80), 8):
        rng = random.Random(seed)
        rig = shared_rig(1)
        ours, theirs = SPAWN.Pipe()
        arguments = (rig.regions.token, 1, 0, seed, None, theirs)
        child = SPAWN.Process(target=worker_process, args=arguments)
        child.start()
        ours.recv()
        # Kill at a random record, at a random moment within it.
        wanted, consumed = rng.randrange(400), 0
        while consumed < wanted:
            consumed += rig.core.drain(1e-5, 1)
        for _ in range(rng.randrange(2000)):
            pass
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        rig.drain()
        complete = sum(rig.core.stats(t)["pushed"] for t in range(3))
        assert_same(contents(rig), sums(pushes_of(0, seed, complete)))


@pytest.mark.parametrize("codec", [None, "int8"])
def test_reader_in_another_process_never_sees_half_an_update_of_a_block(codec):
    blocks = 24
    n = blocks * _native.BLOCK_FLOATS
    table = dense(n, pull_compression=codec)
    rig = Rig(table, n_slots=N_SLOTS, slot_bytes=SLOT_BYTES, shared=True, staging_bytes=4 * n)
    rig.staging[0].commit(0, 4 * n)
    rig.staging[0].view(0, 4 * n, True).view(np.float32)[:] = 1.0
    ours, theirs = SPAWN.Pipe()
    stop = SPAWN.Event()
    child = SPAWN.Process(target=read_blocks, args=(rig.regions.token, blocks, codec, theirs, stop))
    child.start()
    assert ours.recv() == "ready"
    updates = 0
    while not ours.poll():
        rig.writers[0].push_staged(0, 0, 0, None, n)
        updates += rig.drain()
        if updates == 1500:
            stop.set()
    result = ours.recv()
    child.join()
    assert result != "torn"
    copies, changed = result
    assert copies >= changed > 0
    assert (rig.values() == -float(updates)).all()


def test_push_all_of_the_harness_reports_its_last_record():
    rig = Rig(dense(1000))
    last = push_all(rig.writers[0], 0, np.ones(1000, np.float32), rig.drain)
    rig.drain()
    assert rig.writers[0].result(last)[0] == Outcome.APPLIED
