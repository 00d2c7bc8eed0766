"""The short way to a dense table on the same node: same values, same results, nothing skipped."""

from __future__ import annotations

import time

import numpy as np
import pytest
from harness import Rig, dense, floats

from mpips import _native
from mpips.errors import RegionError, StallError
from mpips.model.consistency import ASP, BSP, SSP, Compensate, Reject
from mpips.model.optimizer import SGD
from mpips.worker.paths import path_names
from mpips.worker.requests import PushResult
from mpips.worker.worker import connection_of


def port_of(worker):
    return worker.table("w")._direct.port


def paths_of(rig, local):
    """Paths of the handle of "w", which are those that the job shows."""
    worker = rig.worker(local=local)
    found = worker.table("w").paths
    assert path_names(connection_of(worker).channels, rig.tables, rig.placement) == found
    return found


def test_pushes_of_the_node_go_the_short_way():
    rig = Rig(dense(8))
    worker = rig.worker(local=False)
    request = worker.table("w").push(np.arange(8, dtype=np.float32))
    assert isinstance(request, _native.PushRequest)
    assert not request.test()
    rig.drain()
    assert request.test()
    assert request.wait() == PushResult(applied=1)
    assert request.wait() is request.wait()
    assert rig.values().tolist() == [-float(i) for i in range(8)]


def test_result_tells_of_staleness_and_rejection():
    rig = Rig(dense(4, consistency=ASP(Reject(max_staleness=1))))
    handle = rig.worker(local=False).table("w")
    requests = [handle.push(np.ones(4, np.float32)) for _ in range(3)]
    rig.drain()
    assert [r.wait() for r in requests] == [
        PushResult(applied=1),
        PushResult(applied=1, staleness=1),
        PushResult(rejected=1, staleness=2),
    ]
    assert handle.pull().tolist() == [-2.0] * 4


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("n", [8, 5000])
def test_nothing_is_sent_of_what_is_not_finite(bad, n):
    rig = Rig(dense(n))
    worker = rig.worker(local=False)
    update = np.ones(n, np.float32)
    update[-1] = bad
    with pytest.raises(ValueError, match=f"position {n - 1} of {n}; nothing was sent"):
        worker.table("w").push(update)
    assert rig.drain() == 0
    assert worker.counters()["pushed"] == 0
    with rig.serving():
        assert worker.table("w").push(np.ones(n, np.float32)).wait().applied == 1
    assert (rig.values() == -1.0).all()


def test_unchecked_table_takes_what_is_not_finite():
    rig = Rig(dense(4, check_finite=False))
    rig.worker(local=False).table("w").push(np.full(4, np.inf, np.float32))
    rig.drain()
    assert (rig.values() == -np.inf).all()


def test_what_needs_a_conversion_goes_the_general_way():
    rig = Rig(dense(4))
    handle = rig.worker(local=False).table("w")
    handle.push([1.0, 2.0, 3.0, 4.0])
    handle.push(np.ones(8)[::2])
    rig.drain()
    assert rig.values().tolist() == [-2.0, -3.0, -4.0, -5.0]
    for wrong in (np.ones(3, np.float32), np.ones((2, 2), np.float32)):
        with pytest.raises(ValueError, match="expected"):
            handle.push(wrong)
    with pytest.raises(ValueError, match="float32"):
        handle.pull(np.zeros(4))
    frozen = np.zeros(4, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="must be a writable"):
        handle.pull(frozen)


def test_each_table_has_one_path_and_names_it():
    for options in ({"clip_norm": 1.0}, {"consistency": ASP(Compensate())}):
        assert paths_of(Rig(dense(4, **options)), local=False) == ["shared"]
    assert paths_of(Rig(dense(4)), local=False) == ["direct"]
    assert paths_of(Rig(dense(4)), local=True) == ["shared"]


def test_updates_larger_than_a_record_are_copied_and_read_in_place(monkeypatch):
    n = 100_000
    rig = Rig(dense(n), staging_bytes=4 << 20)
    monkeypatch.setattr("mpips.worker.paths.direct.BOUNCE_BYTES", 1024)
    worker = rig.worker(local=False)
    handle = worker.table("w")
    expected, update = np.zeros(n, np.float32), np.empty(n, np.float32)
    with rig.serving():
        for seed in range(20):
            # The caller's array is free again at once.
            update[:] = floats(n, seed)
            expected -= update
            last = handle.push(update)
            update[:] = 1e30
        assert last.wait().applied == 1
        assert (handle.pull() == expected).all()
    assert port_of(worker).has_bounce
    assert worker.counters()["pushed"] == 20


def test_a_bounce_buffer_is_not_written_while_the_server_may_read_it(monkeypatch):
    n = 2000
    rig = Rig(dense(n), n_slots=8, staging_bytes=1 << 20)
    monkeypatch.setattr("mpips.worker.paths.direct.BOUNCE_BYTES", 1024)
    worker = rig.worker(local=False, timeout_s=0.05)
    handle = worker.table("w")
    for value in (1.0, 2.0):
        handle.push(np.full(n, value, np.float32))
    # Both buffers are in the ring; nobody reads them.
    with pytest.raises(StallError, match=r"server 0 has not taken the push .* before the last"):
        handle.push(np.full(n, 4.0, np.float32))
    rig.drain()
    assert (rig.values() == -3.0).all()
    handle.push(np.full(n, 4.0, np.float32))
    rig.drain()
    assert (rig.values() == -7.0).all()


def test_without_room_for_a_bounce_buffer_the_ring_is_used(monkeypatch):
    n = 5000
    rig = Rig(dense(n), staging_bytes=20_000)
    monkeypatch.setattr("mpips.worker.paths.direct.BOUNCE_BYTES", 1024)
    worker = rig.worker(local=False)
    with rig.serving():
        assert worker.table("w").push(floats(n)).wait().applied == 1
    assert not port_of(worker).has_bounce
    assert (rig.values() == -floats(n)).all()


def test_without_memory_for_a_bounce_buffer_the_ring_is_used(monkeypatch):
    n = 5000
    rig = Rig(dense(n))
    monkeypatch.setattr("mpips.worker.paths.direct.BOUNCE_BYTES", 1024)
    worker = rig.worker(local=False)

    def full(n_bytes, share):
        raise RegionError("/dev/shm is too small")

    monkeypatch.setattr(connection_of(worker).staging, "reserve", full)
    with rig.serving():
        for _ in range(2):
            assert worker.table("w").push(floats(n)).wait().applied == 1
    assert (rig.values() == -2 * floats(n)).all()


def test_staged_updates_are_read_in_place_and_checked():
    rig = Rig(dense(5000))
    worker = rig.worker(local=False)
    staged = worker.allocate(5000)
    staged[:] = 1.0
    request = worker.table("w").push(staged)
    staged[:] = 2.0  # the server has not looked yet
    rig.drain()
    assert request.wait().applied == 1
    assert (rig.values() == -2.0).all()
    staged[17] = np.nan
    with pytest.raises(ValueError, match="position 17"):
        worker.table("w").push(staged)
    assert rig.drain() == 0


def test_a_full_ring_is_waited_for():
    rig = Rig(dense(4), n_slots=2)
    worker = rig.worker(local=False)
    with rig.serving():
        for _ in range(500):
            worker.table("w").push(np.ones(4, np.float32))
        worker.flush()
    assert rig.values().tolist() == [-500.0] * 4


def test_pull_sees_own_pushes_and_waits_for_them():
    rig = Rig(dense(4, consistency=SSP(bound=1)))
    worker = rig.worker(local=False, timeout_s=0.02)
    worker.table("w").push(np.ones(4, np.float32))
    with pytest.raises(StallError, match="'w' to clock 0"):
        worker.table("w").pull()
    rig.drain()
    assert worker.table("w").pull().tolist() == [-1.0] * 4


def test_bsp_pull_waits_for_the_clock_of_all():
    rig = Rig(dense(4, consistency=BSP()), n_workers=2)
    first, second = (rig.worker(w, local=False, timeout_s=0.02) for w in range(2))
    for worker, value in ((first, 2.0), (second, 4.0)):
        worker.table("w").push(np.full(4, value, np.float32))
    first.clock()
    rig.drain()
    with pytest.raises(StallError, match="worker 1 at clock 0"):
        first.table("w").pull()
    second.clock()
    rig.drain()
    assert first.table("w").pull().tolist() == [-3.0] * 4
    assert second.table("w").pull().tolist() == [-3.0] * 4


def test_a_job_that_only_pushes_looks_at_signals_and_scheduler():
    rig = Rig(dense(4))
    worker = rig.worker(local=False)
    polls = []
    connection_of(worker).control.poll = lambda: polls.append(1)
    with rig.serving():
        deadline = time.monotonic() + 30.0
        while len(polls) < 2 and time.monotonic() < deadline:
            worker.table("w").push(np.ones(4, np.float32)).wait()
    assert len(polls) >= 2


def test_many_servers_each_get_their_part():
    # Two rigs of one table each stand for two servers: parts are checked against their shards.
    rig = Rig(dense(8))
    worker = rig.worker(local=False)
    with pytest.raises(ValueError, match="has 4 elements, its shard has 8"):
        _native.DensePort(
            connection_of(worker).clock_state,
            0,
            [8],
            [(rig.region, rig.layout, rig.writers[0], 0, 4)],
            0,
            -1,
            True,
            True,
            None,
            PushResult,
        )


def test_first_push_of_a_clock_is_copied_and_later_ones_added():
    # Segments of 1 KiB records: the copy grows, then the second push is added from its start.
    n = 1000
    rig = Rig(dense(n, consistency=BSP(), optimizer=SGD(lr=1.0)), n_workers=1, staging_bytes=64)
    worker = rig.worker(local=False)
    with rig.serving():
        for clock in range(3):
            worker.table("w").push(floats(n, clock))
            worker.table("w").push(floats(n, clock + 10))
            worker.clock()
        got = worker.table("w").pull()
    assert (got == -sum(floats(n, s) for s in (0, 1, 2, 10, 11, 12))).all()


def hint_of(rig, sequence):
    """The 64-bit word beside the stamp of a record, as a writable array."""
    geometry = rig.layout.geometry
    slot = sequence % geometry.n_slots
    start = rig.layout.mailbox_offset(0) + geometry.stamps_offset + slot * 64 + 8
    return rig.region.view(start, 8, True).view(np.uint64)


def test_a_long_record_is_announced_while_it_is_written():
    n = 5000
    rig = Rig(dense(n), slot_bytes=32 * 1024)
    rig.worker(local=False).table("w").push(np.ones(n, np.float32))
    assert int(hint_of(rig, 0)[0]) == (1 << 32) | 4 * 4096
    rig.drain()
    assert (rig.values() == -1.0).all()


@pytest.mark.parametrize(
    "word", [(1 << 32) | 64, (1 << 32) | 0xFFFFFFFF, (2 << 32) | 64, 2**64 - 1]
)
def test_a_hint_moves_nothing(word):
    rig = Rig(dense(4))
    hint_of(rig, 0)[0] = word
    assert rig.drain() == 0
    assert rig.values().tolist() == [0.0] * 4
    rig.worker(local=False).table("w").push(np.ones(4, np.float32))
    assert rig.drain() == 1
    assert rig.values().tolist() == [-1.0] * 4


def test_a_record_given_up_half_way_leaves_only_a_hint():
    n = 5000
    rig = Rig(dense(n), slot_bytes=32 * 1024)
    worker = rig.worker(local=False)
    update = np.ones(n, np.float32)
    update[-1] = np.nan
    with pytest.raises(ValueError, match="nothing was sent"):
        worker.table("w").push(update)
    assert int(hint_of(rig, 0)[0]) != 0
    assert rig.drain() == 0
    worker.table("w").push(np.full(n, 3.0, np.float32))
    assert rig.drain() == 1
    assert (rig.values() == -3.0).all()
