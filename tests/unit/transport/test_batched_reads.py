"""Small tables that are read together: exact values over a bad network, in few round trips."""

from __future__ import annotations

import numpy as np
import pytest
from fake_network import KINDS, remote
from harness import Rig, dense, floats

from mpips import _native
from mpips.model.consistency import ASP, BSP
from mpips.transport.batched_reads import BATCH_BYTES, TABLE_BYTES, BatchedReads
from mpips.worker.worker import connection_of

LENGTHS = (1, 7, 300, 2000, 5, 64, 16384, 900, TABLE_BYTES // 4 + 1)  # the last one is too long


def tables_of(model=None):
    return [dense(n, name=f"t{i}", consistency=model or BSP("sum")) for i, n in enumerate(LENGTHS)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_pulls_in_any_order_have_the_values_of_the_clock(seed, kind):
    rng = np.random.default_rng(seed)
    rig = Rig(*tables_of(), dense(9, name="asp", consistency=ASP()), n_workers=2, n_slots=8)
    worker = rig.worker(channel=remote(rig, seed=seed, kind=kind)[1])
    other = rig.worker(1, channel=remote(rig, 1, seed=seed + 100, kind=kind)[1])
    totals = [np.zeros(n, np.float32) for n in LENGTHS]
    for clock in range(5):
        pushed = [np.zeros(n, np.float32) for n in LENGTHS]
        for w, one in enumerate((worker, other)):
            for i in rng.permutation(len(LENGTHS)):
                if rng.random() < 0.3:
                    continue
                update = floats(LENGTHS[i], [clock, w, i])
                pushed[i] -= update
                one.table(f"t{i}").push(update, closes=bool(rng.random() < 0.5))
            one.table("asp").push(np.ones(9, np.float32))
            one.clock()
        totals = [a + b for a, b in zip(totals, pushed, strict=True)]
        for i in rng.integers(0, len(LENGTHS), 2 * len(LENGTHS)):
            assert (worker.table(f"t{i}").pull() == totals[i]).all()
            if rng.random() < 0.1:
                # The other worker ends the next clock; no value of this one changes by that.
                worker.table("asp").push(np.ones(9, np.float32)).wait()
        # Under ASP a pull has the worker's own pushes of the clock.
        before = worker.table("asp").pull()
        worker.table("asp").push(np.ones(9, np.float32))
        assert (worker.table("asp").pull() <= before - 1).all()
    connection_of(other).finish()
    connection_of(worker).finish()
    assert all((rig.values(i) == total).all() for i, total in enumerate(totals))


def test_a_worker_that_closes_tables_early_changes_no_value_of_a_slower_one():
    rig = Rig(*tables_of(), n_workers=2, n_slots=8)
    worker, other = rig.worker(1, channel=remote(rig, 1)[1]), rig.worker(0)
    for clock in range(4):
        for i, n in enumerate(LENGTHS):
            assert (worker.table(f"t{i}").pull() == -2.0 * clock).all()
            # Later tables of this clock are here by now, and the other worker closes them.
            other.table(f"t{i}").push(np.ones(n, np.float32), closes=True)
        for i, n in enumerate(LENGTHS):
            worker.table(f"t{i}").push(np.ones(n, np.float32), closes=True)
            rig.drain()
        for one in (worker, other):
            one.clock()
        connection_of(worker).flush()


def test_the_tables_of_a_model_take_a_few_round_trips():
    n_tables = 50
    rig = Rig(
        *(dense(20, name=f"t{i}", consistency=BSP()) for i in range(n_tables)),
        n_slots=64,
    )
    network, channel = remote(rig)
    worker = rig.worker(channel=channel)
    flushes = []
    for clock in range(4):
        before = network.flushes
        for i in reversed(range(n_tables)):
            assert (worker.table(f"t{i}").pull() == -clock).all()
            assert channel.writer.base_version(i) == clock
        flushes.append(network.flushes - before)
        # Each table is read once.
        assert channel.writer.counters()["pulled_bytes"] == (clock + 1) * n_tables * 20 * 4
        for i in range(n_tables):
            worker.table(f"t{i}").push(np.ones(20, np.float32))
        worker.clock()
        connection_of(worker).flush()
    assert flushes[0] >= 3 * n_tables
    assert max(flushes[1:]) <= 6


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", KINDS)
def test_values_that_change_during_the_read_are_left_out(seed, kind):
    rng = np.random.default_rng(seed)
    # Under ASP values change at any time. Each push changes all values of a table by the same number.
    rig = Rig(*tables_of(ASP()), n_workers=2, n_slots=8)
    network, channel = remote(rig, seed=seed, kind=kind)
    other = rig.worker(1)
    n_read = n_left_out = 0

    # A value moves at once, so tables of a few values are rarely torn.
    torn = [i for i, n in enumerate(LENGTHS[:-1]) if n > 100]

    def push():
        i = int(rng.choice(torn))
        if rng.random() < 0.1:
            other.table(f"t{i}").push(np.full(LENGTHS[i], 1.0, np.float32)).wait()

    network.on_piece = push
    for clock in range(12):
        for i in rng.permutation(len(LENGTHS) - 1):
            out = np.full(LENGTHS[i], np.nan, np.float32)
            there = channel.take_dense(i, clock, out) or channel.fetch_dense(i, clock, out)
            n_read, n_left_out = n_read + there, n_left_out + (not there)
            assert not there or (out == out[0]).all()
            assert there or np.isnan(out).all()
    assert n_read > 0
    if seed == 0:
        assert n_left_out > 0


def test_long_tables_are_read_at_each_pull():
    rig = Rig(*tables_of(), n_slots=8)
    _, channel = remote(rig)
    worker, n_bytes = rig.worker(channel=channel), []
    for i in [*range(len(LENGTHS)), *range(len(LENGTHS))]:
        worker.table(f"t{i}").pull()
        n_bytes.append(channel.writer.counters()["pulled_bytes"])
    assert n_bytes[-2] == n_bytes[len(LENGTHS) - 1] == 4 * sum(LENGTHS)
    assert n_bytes[-1] == n_bytes[-2] + 4 * LENGTHS[-1]


def test_what_lies_between_small_tables_is_not_read():
    n_long = 100 * _native.BLOCK_FLOATS  # its versions take 1600 bytes
    rig = Rig(*(dense(n, name=f"t{n}", consistency=BSP()) for n in (5, n_long, 6)))
    network, channel = remote(rig)
    found, get = [], network.get

    def counted(offset, out):
        found.append(len(out))
        get(offset, out)

    network.get = counted
    out = {0: np.ones(5, np.float32), 2: np.ones(6, np.float32)}
    assert channel._reads.dense_together(out, 0) == {0: 0, 2: 0}
    assert not out[0].any()
    assert not out[2].any()
    # Heads of 64 bytes and the one between them; pairs of words of 16 bytes, twice; the values.
    assert sorted(found) == [16, 16, 16, 16, 20, 24, 192]


def test_with_backup_workers_a_pull_has_what_was_applied_meanwhile():
    rig = Rig(
        *(dense(n, name=f"t{n}", consistency=BSP("sum", backup=1)) for n in (5, 6)), n_workers=2
    )
    _, channel = remote(rig)
    late, fast = rig.worker(channel=channel), rig.worker(1)
    for clock in range(4):
        for n in (5, 6):
            assert (late.table(f"t{n}").pull() == -clock).all()
            fast.table(f"t{n}").push(np.ones(n, np.float32))
        fast.clock()
        rig.drain()


def test_values_of_a_clock_are_used_in_that_clock_only():
    asked = []

    def read(wanted, version):
        asked.append((list(wanted), version))
        for table, out in wanted.items():
            out[...] = 100 * version + table
        return dict.fromkeys(wanted, version)

    reads, out = BatchedReads(read), np.empty(3, np.float32)

    def pull(table, clock):
        found = reads.take(table, clock, out)
        if found is None:
            found = reads.fetch(table, clock, out)
        assert found == clock
        assert (out == 100 * clock + table).all()

    for table in (4, 1, 2):
        pull(table, 0)
    for table in (4, 2, 1, 4):
        pull(table, 1)
    for table in (2, 1):
        pull(table, 2)
    pull(1, 4)
    assert asked == [
        ([4], 0),
        ([1], 0),
        ([2], 0),
        ([4, 1, 2], 1),
        ([2, 1], 2),
        ([1], 4),
    ]


def test_a_batch_is_bounded():
    sizes = []

    def read(wanted, version):
        sizes.append(sum(out.nbytes for out in wanted.values()))
        return dict.fromkeys(wanted, version)

    reads, out = BatchedReads(read), np.empty(TABLE_BYTES // 4, np.float32)
    n_tables = 3 * BATCH_BYTES // TABLE_BYTES
    for clock in range(2):
        sizes.clear()
        for table in range(n_tables):
            if reads.take(table, clock, out) is None:
                reads.fetch(table, clock, out)
    assert sizes == [BATCH_BYTES] * 3
