"""A ring over a network that delays, reorders and tears data: updates count exactly once."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from fake_network import KINDS, remote
from harness import Rig, dense, floats, make_writer, rows

from mpips.errors import StallError
from mpips.model.consistency import ASP, BSP, SSP, Scale
from mpips.worker.worker import connection_of


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", [ASP(), SSP(bound=1), BSP("sum")], ids=["asp", "ssp", "bsp"])
def test_pushes_and_pulls_over_a_bad_network_are_exact(seed, kind, model):
    rng = np.random.default_rng(seed)
    n, dim = int(rng.integers(1, 3000)), int(rng.integers(1, 40))
    rig = Rig(dense(n, consistency=model), rows(dim, consistency=model), n_slots=3)
    worker = rig.worker(channel=remote(rig, seed=seed, kind=kind)[1])
    total, expected = np.zeros(n, np.float32), {}
    for step in range(8):
        update = floats(n, step)
        worker.table("w").push(update)
        total -= update
        keys = rng.integers(0, 30, 25)
        values = floats(25 * dim, step).reshape(25, dim)
        worker.table("e").push(keys, values)
        for key, value in zip(keys.tolist(), values, strict=True):
            expected[key] = expected.get(key, 0) - value
        worker.clock()
        assert (worker.table("w").pull() == total).all()
        wanted = np.arange(30)
        found = worker.table("e").pull(wanted)
        assert all((found[k] == expected.get(k, 0)).all() for k in range(30))
    connection_of(worker).finish()
    assert (rig.values() == total).all()
    assert rig.core.stats(0)["pushed"] == 8
    assert rig.core.counters()["records"] == connection_of(worker).channels[0].writer.next_sequence


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_results_arrive_as_the_server_gave_them(seed, kind):
    rig = Rig(dense(3, consistency=ASP(policy=Scale())), n_workers=2)
    worker, other = rig.worker(channel=remote(rig, seed=seed, kind=kind)[1]), rig.worker(1)
    missed = 0
    for step in range(20):
        if step % 3 == 2:
            other.table("w").push(np.zeros(3, np.float32)).wait()
            missed += 1
        if step % 5 == 4:
            worker.table("w").pull()
            missed = 0
        result = worker.table("w").push(np.zeros(3, np.float32)).wait()
        assert (result.applied, result.staleness, result.scaled) == (1, missed, int(missed > 0))
        missed += 1


def test_neighbouring_records_and_stamps_travel_in_one_put_and_flush():
    rig = Rig(dense(2000), n_slots=8)
    network, channel = remote(rig, drain=False)
    flushes = []
    flush = network.flush

    def watch():
        flushes.append(len(network.puts))
        network.puts.clear()
        flush()

    network.flush = watch
    assert 0 < channel.writer.push_dense(0, 0, np.ones(2000, np.float32), None, 0) < 2000
    channel.publish()
    channel.publish()
    assert flushes == [1]
    assert rig.drain() == 8


def test_nothing_leaves_before_publish_and_all_that_has_left_arrives():
    rig = Rig(dense(3))
    network, channel = remote(rig)
    channel.writer.push_dense(0, 0, np.ones(3, np.float32), None, 0)
    network.arrive()
    assert rig.drain() == 0
    channel.publish()
    network.arrive()
    rig.drain()
    assert rig.values().tolist() == [-1.0] * 3


def test_repeated_publish_of_a_record_is_applied_once():
    rig = Rig(dense(3))
    _, channel = remote(rig)
    for step in range(10):
        channel.writer.push_dense(0, 0, np.ones(3, np.float32), None, 0)
        for _ in range(3):
            channel.writer.published = step
            channel.publish()
            rig.drain()
        assert channel.wait_applied(step + 1, 1.0)
    assert rig.values().tolist() == [-10.0] * 3


def test_remote_memory_cannot_be_viewed_and_blame_is_read_through_it():
    rig = Rig(dense(3, consistency=BSP("sum")), n_workers=3)
    _, channel = remote(rig, w=2)
    rig.writers[0].tick(0)
    rig.drain()
    worker = rig.worker(2, channel=channel, timeout_s=0.02)
    assert channel.view(0) is None
    assert (channel.clocks(), channel.awaited_worker()) == ([1, 0, 0], 1)
    worker.clock()
    with pytest.raises(StallError, match="waits for worker 1 at clock 0"):
        worker.table("w").pull()


def test_a_late_group_is_named_with_all_its_workers():
    rig = Rig(dense(3, consistency=BSP("sum")), n_workers=4)
    worker = rig.worker(0, timeout_s=0.02, groups=((1, 3),))
    worker.clock()
    with pytest.raises(
        StallError,
        match=r"waits for worker 1, or a worker whose updates that one sums \(worker 3\), at clock 0, this",
    ):
        worker.table("w").pull()


def test_a_late_group_whose_first_worker_has_finished_is_named_with_the_others():
    rig = Rig(dense(3, consistency=BSP("sum")), n_workers=4)
    rig.writers[1].finish(0)
    worker = rig.worker(0, timeout_s=0.02, groups=((1, 2, 3),))
    worker.clock()
    with pytest.raises(
        StallError,
        match=r"waits for worker 2, or a worker whose updates that one sums \(worker 3\), at clock 0, this",
    ):
        worker.table("w").pull()


def test_workers_over_memory_and_over_a_network_share_a_table():
    rig = Rig(dense(700), n_workers=3)
    channels = [remote(rig, 0, 1)[1], rig.channel(1, True), remote(rig, 2, 2)[1]]
    workers = [rig.worker(w, channel=channel) for w, channel in enumerate(channels)]
    for step in range(10):
        for worker in workers:
            worker.table("w").push(floats(700, step))
    for worker in workers:
        connection_of(worker).finish()
    assert (rig.values() == -3 * sum(floats(700, step) for step in range(10))).all()
    assert make_writer(rig.region, rig.layout, 0, 1).next_sequence == 0


def asked(channel):
    """Return the list of questions from now on: ("alone" or "with a put", count)."""
    seen = []
    ask, put_asking = channel._question.ask, channel._remote.put_asking

    def note_ask(count):
        seen.append(("alone", count))
        ask(count)

    def note_put(offset, data, count):
        if count:
            seen.append(("with a put", count))
        put_asking(offset, data, count)

    channel._question.ask, channel._remote.put_asking = note_ask, note_put
    return seen


def test_a_worker_that_waits_for_each_push_asks_with_the_push():
    rig = Rig(dense(3, consistency=ASP()), n_slots=4)
    network, channel = remote(rig, drain=False)
    network.drains = True
    worker, seen = rig.worker(channel=channel), asked(channel)
    for _ in range(4):
        assert worker.table("w").push(np.ones(3, np.float32)).wait().applied == 1
    assert seen == [("alone", 1), ("with a put", 2), ("with a put", 3), ("with a put", 4)]


def test_a_worker_that_does_not_wait_asks_nothing():
    rig = Rig(dense(3, consistency=ASP()), n_slots=8)
    _, channel = remote(rig)
    worker, seen = rig.worker(channel=channel), asked(channel)
    table = worker.table("w")
    table.push(np.ones(3, np.float32)).wait()
    for _ in range(4):
        last = table.push(np.ones(3, np.float32))
    # After a question that no wait needed, the channel sends no more of them.
    assert seen == [("alone", 1), ("with a put", 2)]
    assert last.wait().applied == 1
    assert rig.values().tolist() == [-5.0] * 3


def test_a_wait_for_an_older_push_ends_while_a_newer_question_is_open():
    rig = Rig(dense(3, consistency=ASP()), n_slots=8)
    network, channel = remote(rig, drain=False)
    worker = rig.worker(channel=channel)
    first = worker.table("w").push(np.ones(3, np.float32))
    second = worker.table("w").push(np.ones(3, np.float32))
    network.drains = False
    assert not second.test()  # the question is about both records
    stamp = rig.region.view(
        rig.layout.mailbox_offset(0)
        + rig.layout.geometry.stamps_offset
        + rig.layout.geometry.record_stride,
        8,
        True,
    )
    held, stamp[:] = stamp.copy(), 0
    assert rig.drain() == 1  # the second record has not arrived
    assert first.test()
    assert not second.test()
    stamp[:] = held
    rig.drain()
    assert second.test()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_the_mirror_is_not_written_while_a_put_from_it_is_under_way(seed, kind):
    rng = np.random.default_rng(seed)
    rig = Rig(dense(700, consistency=ASP()), rows(3, consistency=ASP()), n_slots=3)
    network, channel = remote(rig, seed=seed, kind=kind)
    worker = rig.worker(channel=channel)
    put, flush, under_way = network.put, network.flush, []

    def note(offset, data):
        under_way.append((data, data.copy()))
        put(offset, data)

    def check():
        assert all((data == before).all() for data, before in under_way)
        under_way.clear()
        flush()

    network.put, network.flush = note, check
    last = None
    for step in range(40):
        kind = rng.integers(0, 4)
        if kind == 0:
            last = worker.table("w").push(floats(700, step))
        elif kind == 1:
            last = worker.table("e").push(np.arange(5), np.ones((5, 3), np.float32))
        elif kind == 2 and last is not None:
            last.wait()
        else:
            worker.table("e").pull(np.arange(4))
    connection_of(worker).finish()
    assert rig.core.counters()["records"] == channel.writer.next_sequence


@pytest.mark.parametrize(("most", "n_parts"), [(1, 6), (3 << 10, 3), (1 << 20, 1)])
def test_a_part_of_several_records_has_at_most_so_many_bytes(most, n_parts):
    """What is sent as several messages has one record, so no message with unused bytes comes behind it."""
    rig = Rig(dense(200, consistency=ASP()), n_slots=8)
    channel = remote(rig, drain=False)[1]
    for _ in range(6):
        assert channel.writer.push_dense(0, 0, floats(200), None, 0) == 200
    places = channel._places
    records, parts = list(places.new_records(1)), list(places.new_records(most))
    assert len(records) == 6
    assert len(parts) == n_parts
    assert all(end - start <= most or (start, end) in records for start, end in parts)
    assert (parts[0][0], parts[-1][1]) == (records[0][0], records[-1][1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 99, 199])
@pytest.mark.parametrize("is_staged", [False, True])
def test_a_small_update_that_is_not_finite_is_not_sent(bad, at, is_staged):
    """The native call that writes the record finds the value when it has copied a part of the update."""
    rig = Rig(dense(200, consistency=ASP()), n_slots=2)
    network, channel = remote(rig)
    worker = rig.worker(channel=channel)
    table = worker.table("w")
    assert table.paths == ["ring"]
    update = worker.allocate(200) if is_staged else np.empty(200, np.float32)
    for step in range(3):
        update[:] = floats(200, step)
        update[at] = bad
        n_puts = len(network.puts)
        with pytest.raises(ValueError, match=f"contains {bad} at position {at} of 200"):
            table.push(update)
        assert len(network.puts) == n_puts
        assert connection_of(worker).control.state == "computing"
        update[at] = 1
        assert table.push(update).wait().applied == 1
    assert rig.core.counters()["records"] == 3
    assert rig.values()[at] == -3


def test_a_small_update_needs_room_for_one_record():
    rig = Rig(dense(8), n_slots=2)
    writer, update = rig.writers[0], np.ones(8, np.float32)
    assert writer.push_whole(0, 0, update, True) is True
    assert writer.push_whole(0, 0, update * np.nan, True) is False
    assert writer.push_whole(0, 0, update, False) is True
    assert writer.push_whole(0, 0, update, True) is None
    with pytest.raises(ValueError, match="300 values does not fit into one record"):
        rig.writers[0].push_whole(0, 0, np.ones(300, np.float32), True)
    assert rig.drain() == 2
    assert (rig.values() == -2).all()


@pytest.mark.parametrize("n_taken", [3, 200])
def test_a_small_update_that_is_not_checked_is_sent_as_it_is(n_taken):
    rig = Rig(dense(3, consistency=ASP(), check_finite=False), n_slots=4)
    table = rig.worker(channel=remote(rig)[1]).table("w")
    for _ in range(n_taken):
        table.push(np.array([1, 2, np.inf], np.float32))
    table.push(np.zeros(3, np.float32)).wait()
    assert rig.values()[:2].tolist() == [-n_taken, -2 * n_taken]
    assert not np.isfinite(rig.values()[2])


def test_a_channel_is_free_as_soon_as_nobody_uses_it():
    """Its copy of the mailbox has megabytes; a cycle of references would hold it until it is collected."""
    rig = Rig(dense(3))
    gc.disable()
    try:
        channel = remote(rig)[1]
        left = weakref.ref(channel)
        del channel
        assert left() is None
    finally:
        gc.enable()
