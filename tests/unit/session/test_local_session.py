"""What a worker's code sees: handles, requests, staging, in a job of one process."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from harness import Rig, dense, floats, rows
from local_job import run_local

from mpips import _native
from mpips.config.options import SessionOptions
from mpips.errors import ConfigError, ProtocolError, StallError
from mpips.model.consistency import ASP, BSP, SSP, Compensate
from mpips.model.table import DenseTable
from mpips.worker.worker import Worker, connection_of

ALL = [BSP("sum"), SSP(), SSP(bound=0)]


@pytest.mark.parametrize("consistency", ALL, ids=["bsp", "ssp", "ssp0"])
def test_a_job_of_one_process_pushes_pulls_and_counts(consistency):
    tables = [dense(1000, consistency=consistency), rows(3, consistency=consistency)]

    def main(worker):
        w, e = worker.table("w"), worker.table("e")
        for step in range(5):
            w.push(floats(1000, step))
            e.push(np.array([5, 2, 5]), np.ones((3, 3), np.float32))
            worker.clock()
        return w.pull(), e.pull(np.array([2, 9, 5, 2])), worker.gather("end", b"x")

    (values, found, parts), stats = run_local(main, tables, SessionOptions(slot_kib=1))
    assert (values == -sum(floats(1000, step) for step in range(5))).all()
    assert found.tolist() == [[-5.0] * 3, [0.0] * 3, [-10.0] * 3, [-5.0] * 3]
    assert parts == [b"x"]
    server = stats["servers"][0]["tables"]
    assert server["w"]["pushed"] == server["w"]["applied"] == 5
    assert server["e"]["rows"] == 2
    assert server["w"]["staleness"][0] == 5 if consistency.name == "bsp" else True
    assert stats["workers"][0]["pushes"]["pushed"] == 10


def test_bytes_and_queue_are_counted_as_they_travel():
    rig = Rig(dense(100, consistency=ASP()), rows(3, consistency=ASP()))
    worker = rig.worker(local=False)
    w, e = worker.table("w"), worker.table("e")
    w.push(floats(100, 1))
    e.push(np.array([5, 2]), np.ones((2, 3), np.float32))
    assert (connection_of(worker).figures().queue, rig.core.queue()) == (2, 2)
    before = connection_of(worker).figures()
    assert (before.pushed_bytes, before.judged, before.records) == (400 + 2 * (8 + 12), 0, 2)
    rig.drain()
    worker.flush()
    w.pull()
    request = e.prefetch(np.array([2, 7, 5]))
    rig.drain()
    request.wait()
    after = connection_of(worker).figures()
    assert (after.queue, rig.core.queue()) == (0, 0)
    assert (after.pulled_bytes, after.judged, after.records) == (400 + 3 * 12, 2, 3)
    counters = rig.core.counters()
    assert counters["bytes_in"] == 400 + 2 * (8 + 12) + 3 * 8
    assert counters["bytes_out"] == 3 * 12


def test_bytes_of_staged_updates_are_those_of_the_update():
    rig = Rig(dense(1000, consistency=ASP()))
    worker = rig.worker(local=False)
    update = worker.allocate(1000)
    update[:] = 1.0
    worker.table("w").push(update)
    assert connection_of(worker).figures().pushed_bytes == 4000
    rig.drain()
    assert rig.core.counters()["bytes_in"] == 4000


def test_staleness_is_summed_over_what_is_judged():
    rig = Rig(dense(4, consistency=ASP()))
    handle = rig.worker(local=False).table("w")
    for _ in range(3):
        handle.push(np.ones(4, np.float32))
    rig.drain()
    handle.pull()
    figures = handle._connection.figures()
    assert (figures.judged, figures.staleness_sum, figures.max_staleness) == (3, 0 + 1 + 2, 2)


def test_scalar_table_can_be_pushed_and_pulled():
    worker = Rig(DenseTable("s", (), optimizer=dense().optimizer, consistency=SSP())).worker()
    worker.table("s").push(np.float32(2.0)).wait()
    assert worker.table("s").pull() == -2.0
    assert worker.table("s").pull().shape == worker.table("s").view().shape == ()


@pytest.mark.parametrize("keys", [[9, 3, 7], [3, 3, 9, 7], [], [-(2**63), 2**63 - 1]])
def test_pulled_row_i_is_the_row_of_key_i(keys):
    worker = Rig(rows(2)).worker()
    for key in set(keys):
        worker.table("e").push(np.array([key]), np.full((1, 2), key % 97, np.float32))
    found = worker.table("e").pull(np.array(keys, np.int64))
    assert found.tolist() == [[-float(k % 97)] * 2 for k in keys]


def test_pull_into_an_array_of_the_callers():
    worker = Rig(dense(4), rows(2)).worker()
    worker.table("w").push(np.ones(4, np.float32))
    out = np.full(4, 9, np.float32)
    assert worker.table("w").pull(out) is out
    assert out.tolist() == [-1.0] * 4
    some = np.full((1, 2), 9, np.float32)
    assert worker.table("e").pull(np.array([1]), some) is some
    assert some.tolist() == [[0.0, 0.0]]


def test_wrong_arguments_are_refused_and_nothing_is_sent():
    rig = Rig(dense(4), rows(2), dense(4, "c", consistency=SSP(policy=Compensate())))
    worker = rig.worker()
    w, e, c = (worker.table(name) for name in "wec")
    one, row = np.ones(4, np.float32), np.ones((1, 2), np.float32)
    key = np.array([1])
    cases = [
        (lambda: w.push(one[:3]), r"shape \(3,\), expected \(4,\)"),
        (lambda: w.push(one.reshape(2, 2)), "expected"),
        (lambda: w.push(np.array([1, np.nan, 1, 1])), "contains nan at position 1 of 4"),
        (lambda: w.push(np.array([1, 1, -np.inf, 1])), "contains -inf at position 2"),
        (lambda: w.pull(np.ones(4)), "C-contiguous float32"),
        (lambda: w.pull(np.ones(8, np.float32)[::2]), "C-contiguous"),
        (lambda: c.push(one), "a push to it needs the values"),
        (lambda: c.push(one, one[:2]), "base has shape"),
        (lambda: e.push(key, row[:, :1]), "rows has shape"),
        (lambda: e.push(np.array([1.5]), row), "whole numbers"),
        (lambda: e.push(np.array([[1]]), row), "one dimension"),
        (lambda: e.push(np.array([True]), row), "whole numbers"),
        (lambda: e.push(np.array([2**63], np.uint64), row), "do not fit"),
        (lambda: e.push(key, row * np.inf), "nothing was sent"),
        (lambda: e.pull(key, np.ones((2, 2), np.float32)), "shape"),
    ]
    for call, match in cases:
        with pytest.raises(ValueError, match=match):
            call()
    with pytest.raises(ConfigError, match="no table has the name 'x'; the job has w, e, c"):
        worker.table("x")
    assert not any(rig.core.stats(t)["pushed"] for t in range(3))


def test_unchecked_table_takes_what_is_not_finite():
    rig = Rig(dense(2, check_finite=False))
    rig.worker().table("w").push(np.array([np.inf, 1.0], np.float32)).wait()
    assert rig.values().tolist() == [-np.inf, -1.0]


@pytest.mark.parametrize("size", [1.0, 1e-20, 1e30])
def test_clip_norm_bounds_the_length_of_a_push_of_any_size(size):
    rig = Rig(dense(4, clip_norm=size / 2), rows(4, clip_norm=size / 2))
    worker = rig.worker()
    worker.table("w").push(np.full(4, size, np.float32)).wait()
    worker.table("e").push(np.array([1]), np.full((1, 4), size, np.float32)).wait()
    worker.table("w").push(np.zeros(4, np.float32)).wait()
    assert np.allclose(rig.values(), -size / 4, rtol=1e-6, atol=0)
    assert np.allclose(rig.table_rows(1)[1], -size / 4, rtol=1e-6, atol=0)


def test_push_within_clip_norm_is_sent_as_it_is():
    rig = Rig(dense(4, clip_norm=4.0))
    rig.worker().table("w").push(np.full(4, 2.0, np.float32)).wait()
    assert rig.values().tolist() == [-2.0] * 4


def test_view_is_the_servers_memory_and_read_only():
    rig = Rig(dense(1000))
    handle = rig.worker().table("w")
    view = handle.view()
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1.0
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True
    handle.push(np.ones(1000, np.float32)).wait()
    assert (view == -1.0).all()
    at = rig.layout.dense_offsets(0)[1]
    assert view.ctypes.data == rig.region.address + at


def test_allocated_push_is_read_in_place_when_the_server_drains():
    rig = Rig(dense(5000, consistency=SSP()), n_slots=2)
    worker = rig.worker(local=False)
    update = worker.allocate((5000,))
    update[:] = 1.0
    request = worker.table("w").push(update)
    assert rig.writers[0].next_sequence == 1  # one record, far larger than its slot
    assert not request.test()
    update[:] = 3.0
    rig.drain()
    assert request.test()
    assert (rig.values() == -3.0).all()


def test_ordinary_push_is_free_when_the_call_returns():
    rig = Rig(dense(100, consistency=SSP()))
    update = np.ones(100, np.float32)
    request = rig.worker(local=False).table("w").push(update)
    update[:] = 3.0
    rig.drain()
    request.wait()
    assert (rig.values() == -1.0).all()


def test_part_of_an_allocated_array_is_staged_at_its_place():
    rig = Rig(dense(100, consistency=SSP(policy=Compensate(lambda_=1.0))))
    worker = rig.worker()
    memory = worker.allocate((4, 100))
    memory[:] = np.arange(400, dtype=np.float32).reshape(4, 100)
    worker.table("w").push(memory[2], memory[1]).wait()
    assert rig.values().tolist() == [-float(i) for i in range(200, 300)]
    assert worker.allocate((3, 0)).shape == (3, 0)


def test_full_staging_names_the_option():
    worker = Rig(dense(4), staging_bytes=1 << 20).worker()
    first = worker.allocate(1 << 17)
    second = worker.allocate(1 << 17)
    assert abs(second.ctypes.data - first.ctypes.data) == 1 << 19
    with pytest.raises(ConfigError, match="raise staging_mib"):
        worker.allocate(1)


def test_prefetch_is_taken_by_the_pull_of_the_same_keys_only():
    rig = Rig(rows(1))
    worker = rig.worker()
    handle = worker.table("e")

    def pulls():
        return rig.core.stats(0)["pulled_rows"]

    keys = np.array([4, 4, 8])
    handle.prefetch(keys)
    keys[0] = 8  # the caller's array is free again
    assert handle.pull(np.array([4, 4, 8])).tolist() == [[0.0]] * 3
    assert pulls() == 2
    handle.pull(np.array([4, 4, 8]))  # taken once
    assert pulls() == 4
    handle.prefetch(np.array([1]))
    handle.pull(np.array([2]))
    handle.pull(np.array([1]))  # forgotten by the pull of another key
    assert pulls() == 7
    handle.prefetch(np.array([1]))
    handle.push(np.array([1]), np.ones((1, 1), np.float32))
    assert handle.pull(np.array([1])).tolist() == [[-1.0]]  # sees the push in between
    handle.prefetch(np.array([1]))
    worker.clock()
    handle.pull(np.array([1]))  # another clock
    assert pulls() == 11


def test_dense_prefetch_sees_the_pushes_before_it():
    worker = Rig(dense(3)).worker()
    worker.table("w").push(np.ones(3, np.float32))
    out = np.empty(3, np.float32)
    assert worker.table("w").prefetch(out).wait() is out
    assert out.tolist() == [-1.0] * 3


def test_request_that_stalls_says_who_and_stays_valid():
    rig = Rig(dense(3, consistency=SSP()), rows(1))
    worker = rig.worker(local=False, timeout_s=0.02)
    pushed = worker.table("w").push(np.ones(3, np.float32))
    pulled = worker.table("e").prefetch(np.array([1]))
    assert not pushed.test()
    with pytest.raises(StallError, match=r"server 0 has not taken a push of table 'w'.*0 s\)"):
        pushed.wait(timeout=0.0)
    with pytest.raises(StallError, match=r"not answered a pull of table 'e'.*0\.02 s"):
        pulled.wait()
    with pytest.raises(StallError, match="consumed 0 of 2 records"):
        worker.flush()
    rig.drain()
    assert pushed.wait().applied == 1
    assert pulled.wait().tolist() == [[0.0]]
    assert pulled.wait() is pulled.wait()


def test_dense_pull_waits_for_the_pushes_before_it():
    rig = Rig(dense(3, consistency=SSP()))
    worker = rig.worker(local=False, timeout_s=0.02)
    worker.table("w").push(np.ones(3, np.float32))
    for read in (worker.table("w").pull, worker.table("w").view, worker.table("w").prefetch().wait):
        with pytest.raises(StallError, match="'w' to clock 0"):
            read()
    rig.drain()
    assert worker.table("w").pull().tolist() == [-1.0] * 3


def test_full_ring_stalls_by_name():
    worker = Rig(dense(3), n_slots=2).worker(local=False, timeout_s=0.02)
    for _ in range(2):
        worker.table("w").push(np.ones(3, np.float32))
    with pytest.raises(StallError, match="server 0 has taken no record from its full ring"):
        worker.table("w").push(np.ones(3, np.float32))
    assert worker.counters()["credit_stalls"] > 0


def test_destination_of_a_pull_that_stalled_stays_until_its_replies_came(monkeypatch):
    rig = Rig(rows(4), n_slots=2)
    worker = rig.worker(local=False, timeout_s=0.02)
    made, empty = [], np.empty

    def remember(*args, **kwargs):
        made.append(weakref.ref(array := empty(*args, **kwargs)))
        return array

    monkeypatch.setattr("mpips.worker.embedding.np.empty", remember)
    with pytest.raises(StallError):
        worker.table("e").pull(np.arange(500))
    assert made[0]() is not None  # the ring still writes into it
    rig.drain()
    assert rig.writers[0].collect() == 0


def test_protocol_violation_reaches_the_user_as_protocol_error():
    rig = Rig(dense(4))
    intruder = _native.RingWriter(
        rig.region, rig.layout.mailbox_offset(0), rig.layout.geometry, 0, 5, True, 1
    )
    intruder.push_dense(0, 0, np.ones(4, np.float32), None, 0)
    with pytest.raises(ProtocolError, match=r"server 0: worker 0 sent a record of generation 5"):
        rig.server.drain()
    assert not rig.values().any()


def test_clip_norm_of_rows_is_that_of_the_sums_of_equal_keys():
    keys = np.array([1, 1, 1, 2])
    update = np.array([[3.0], [-1.0], [1.0], [4.0]], np.float32)
    for clip_norm, share in [(5.0, 1.0), (2.5, 0.5)]:
        rig = Rig(rows(1, clip_norm=clip_norm))
        rig.worker().table("e").push(keys, update).wait()
        # (3 - 1 + 1, 4) has norm 5; the rows as they come have the root of 27.
        assert rig.table_rows() == {1: [-3.0 * share], 2: [-4.0 * share]}


def test_opposite_rows_of_a_key_are_not_clipped():
    rig = Rig(rows(2, clip_norm=1.0))
    update = np.array([[100.0, 0.0], [-100.0, 0.5]], np.float32)
    rig.worker().table("e").push(np.array([4, 4]), update).wait()
    assert rig.table_rows() == {4: [0.0, -0.5]}


def test_clip_norm_bounds_a_sum_that_float32_cannot_hold():
    rig = Rig(rows(2, clip_norm=8.0))
    rig.worker().table("e").push(np.zeros(4, np.int64), np.full((4, 2), 3e38, np.float32)).wait()
    assert rig.table_rows()[0] == pytest.approx([-8 / np.sqrt(2)] * 2, rel=1e-6)


def test_equal_keys_whose_sum_is_no_float32_are_refused():
    rig = Rig(rows(2))
    handle = rig.worker().table("e")
    update = np.full((3, 2), 3e38, np.float32)
    with pytest.raises(ValueError, match=r"updates of key 9 of table 'e' is beyond float32"):
        handle.push(np.array([5, 9, 9]), update)
    update[2] = -3e38
    handle.push(np.array([5, 9, 9]), update).wait()
    assert rig.table_rows()[9] == [0.0, 0.0]
    with pytest.raises(ValueError, match="contains nan at position 2"):
        handle.push(np.array([9, 9]), np.array([[1, 1], [np.nan, 1]], np.float32))
    assert rig.core.stats(0)["pushed"] == 1


def test_a_worker_shows_what_programs_use_and_nothing_else():
    public = {name for name in dir(Worker) if not name.startswith("_")}
    assert public == {
        "allocate", "averaged", "barrier", "checkpoint", "clock", "counters", "cursor", "flush", "gather",
        "inner_steps", "keep_pace", "now", "paused", "pipeline", "push_pull", "random", "recv", "reduce",
        "report", "report_metrics", "seed", "send", "set_cursor", "stage", "start", "synchronize", "table",
    }  # fmt: skip
