"""Records that wait in the ring of a worker that repeats their clock are dropped, and counted once."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from harness import dense, rows
from journal_rig import Rig
from recovery_rig import KilledError

from mpips import _native
from mpips.model.codec import Bf16, TopK
from mpips.model.consistency import ASP, BSP
from mpips.model.table import native_codec
from mpips.transport.region import unlink_job
from mpips.worker.worker import connection_of

KEYS = np.arange(24, dtype=np.int64)
ONES = np.ones((KEYS.size, 4), np.float32)
BOTH = BSP("sum")
AT = ("sequence", "applied", "clock", "finished", "pushes", "tag", "ended")


@pytest.fixture
def make_rig():
    rigs = []

    def make(*tables, **options):
        rigs.append(Rig(*tables, **{"n_slots": 16, "n_workers": 2, **options}))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.leave()
        unlink_job(rig.token)


def push(writer, clock, value=1.0, table=0):
    assert writer.push_dense(table, clock, np.full(8, value, np.float32), None, 0) == 8


def push_encoded(writer, value):
    codec = native_codec(dense(8, consistency=BOTH, compression=Bf16()))
    assert writer.push_encoded(0, 0, codec, np.full(8, value, np.float32), 0, 8, 1, 0) == 8


def step(worker, value=1.0, tick=True):
    """Make the pushes of a clock, each to all servers."""
    worker.table("e").push(KEYS, value * ONES)
    worker.set_cursor({"step": worker.now + 1})
    if tick:
        worker.clock()


def step_all(launches):
    for worker in launches.workers:
        step(worker)


def fill_ring(worker):
    """Push until there is no room; return the number of pushes that had room."""
    connection_of(worker).ends_when_full = True
    pushes = 0
    with contextlib.suppress(KilledError):
        while True:
            worker.table("e").push(KEYS, ONES)
            pushes += 1
    return pushes


def end_on_server_0_only(worker):
    """Make a clock of which only the first server gets the tick."""
    connection = connection_of(worker)
    connection.counts_places = False
    connection.left = 1
    with contextlib.suppress(KilledError):
        step(worker)


def values_of(launches):
    found = [server.core.embedding_rows(0)[1] for server in launches.servers]
    return {float(v) for part in found for v in part.reshape(-1)}


def finish_all(launches):
    for worker in launches.workers:
        connection_of(worker).finish()
    launches.drain()


def to_the_end(launches, clocks):
    """Let both workers make the rest of their clocks, worker 0 first."""
    for worker in launches.workers:
        while worker.now < clocks:
            step(worker)
    finish_all(launches)


@pytest.mark.parametrize("n_servers", [1, 3])
def test_rows_are_pulled_again_before_workers_in_front_have_ended_the_clock(
    make_launches, n_servers
):
    launches = make_launches(rows(consistency=BOTH), n_servers=n_servers, n_workers=2)
    step_all(launches)
    step(launches.workers[1], tick=False)
    launches.drain()
    launches.again()
    # Worker 0 has not begun; under BSP it may wait for worker 1 in a gather.
    assert (launches.workers[1].table("e").pull(KEYS) == -2).all()
    to_the_end(launches, 3)
    assert values_of(launches) == {-6.0}


def test_rows_are_pulled_again_where_pushes_had_filled_the_ring(make_launches):
    launches = make_launches(rows(consistency=BOTH), n_workers=2, n_slots=4)
    assert fill_ring(launches.workers[1]) > 1
    launches.again()
    assert (launches.workers[1].table("e").pull(KEYS) == 0).all()
    step(launches.workers[0])
    step(launches.workers[1], 5.0)
    finish_all(launches)
    assert values_of(launches) == {-6.0}


def test_what_one_server_has_consumed_counts_as_it_was_and_the_rest_as_it_is_repeated(
    make_launches,
):
    # Worker 0 has ended the clock on server 0, which consumes the pushes of worker 1. On server 1 they wait.
    launches = make_launches(rows(consistency=BOTH), n_servers=2, n_workers=2)
    end_on_server_0_only(launches.workers[0])
    step(launches.workers[1], 8.0, tick=False)
    launches.drain()
    launches.again()
    consumed = [server.core.position(1)["pushes"] for server in launches.servers]
    assert consumed == [1, 0]
    assert (launches.workers[1].table("e").pull(KEYS) == 0).all()
    step(launches.workers[1], 3.0)
    finish_all(launches)
    found = [server.core.embedding_rows(0)[1] for server in launches.servers]
    assert (found[0] == -9).all()
    assert (found[1] == -4).all()


def drop(rig, clock, worker=1):
    """Begin the next launch, in which the worker repeats a clock; return its position."""
    rig.repeat()
    rig.core.drop_repeated(worker, clock)
    return rig.core.position(worker)


def test_records_of_clocks_before_stay(make_rig):
    rig = make_rig(dense(8, consistency=BOTH))
    writer = rig.writers[1]
    push(writer, 0)
    writer.tick(0)
    push(writer, 1)
    del writer
    rig.drain()
    at = drop(rig, 1)
    assert (at["sequence"], at["applied"], at["clock"], at["pushes"]) == (2, 0, 1, 0)


def test_an_ended_clock_stays(make_rig):
    rig = make_rig(dense(8, consistency=BOTH))
    push(rig.writers[1], 0)
    rig.writers[1].tick(0)
    at = drop(rig, 0)
    assert (at["sequence"], at["clock"]) == (2, 1)


def test_pushes_that_wait_for_no_worker_stay(make_rig):
    rig = make_rig(dense(8, consistency=ASP()))
    push(rig.writers[1], 0)
    assert drop(rig, 0)["pushes"] == 1


def test_pushes_of_jobs_with_backup_workers_stay(make_rig):
    rig = make_rig(dense(8, consistency=BSP("sum", backup=1)))
    push(rig.writers[1], 0)
    assert drop(rig, 0)["pushes"] == 1


def test_a_place_where_the_worker_may_continue_stays_with_what_lies_before_it(make_rig):
    rig = make_rig(dense(8, consistency=BOTH))
    writer = rig.writers[1]
    push(writer, 0)
    writer.cut(0, 0, 1, b"one")
    writer.tick(0)
    writer.cut(1, 7, 1, b"again")
    push(writer, 1)
    writer.cut(1, 0, 2, b"two")
    del writer
    at = drop(rig, 1)
    assert at["texts"][-1] == b"again"
    assert (at["sequence"], at["pushes"]) == (4, 0)


def test_pushes_with_a_residual_stay(make_rig):
    codec = TopK(0.5)
    rig = make_rig(
        dense(8, "a", consistency=BOTH, compression=codec), dense(8, "b", consistency=BOTH)
    )
    writer = rig.writers[1]
    memory = _native.SharedMemory.anonymous(_native.Feedback.n_bytes(8, 2), 0, huge=False)
    feedback = _native.Feedback(memory, 0, 8, 0, 2, "topk", 0.5, 1)
    feedback.fill(np.zeros(8, np.float32))
    push(writer, 0, table=1)
    for _ in range(2):
        assert writer.push_feedback(0, 0, feedback, np.arange(8, dtype=np.float32), 1) == 8
    push(writer, 0, table=1)
    del writer
    assert drop(rig, 0)["pushes"] == 3


def test_the_rest_of_a_push_stays_whose_first_segments_are_consumed(make_rig):
    keys = np.arange(100, dtype=np.int64)
    values = np.ones((100, 4), np.float32)
    rig = make_rig(rows(4, "e", consistency=BOTH), n_workers=1, n_slots=2)
    writer = rig.writer
    done = writer.push_rows(0, 0, keys, values, None, 0)
    rig.drain()
    while done < 100:
        done = writer.push_rows(0, 0, keys, values, None, done)
        if done < 100:
            rig.drain()
    del writer
    (at,) = rig.repeat()
    rig.core.drop_repeated(0, 0)
    assert rig.core.position(0) == at
    rig.drain()
    assert rig.core.stats(0)["pushed"] == 1


def test_a_dropped_record_is_not_read_in_place_of_the_one_that_follows(make_rig):
    """Decoded values of a record that waited belong to its number, which another record gets."""
    rig = make_rig(dense(8, consistency=BOTH, compression=Bf16()))
    push_encoded(rig.writers[1], 4.0)
    rig.repeat()
    rig.drain()
    rig.core.drop_repeated(1, 0)
    at = rig.core.position(1)
    rig.writers[1].resume(*(at[name] for name in AT), False)
    push_encoded(rig.writers[1], 2.0)
    rig.writers[1].tick(0)
    push_encoded(rig.writers[0], 1.0)
    rig.writers[0].tick(0)
    rig.drain()
    assert (rig.core.dense_values(0) == -3).all()


def test_a_tick_that_is_owed_comes_before_any_other_record_as_soon_as_there_is_room(make_rig):
    rig = make_rig(dense(8, consistency=BOTH), n_slots=4)
    for _ in range(4):
        push(rig.writers[1], 0)
    at = rig.repeat()[1]
    # Another server has the tick, so this one has all pushes, and the worker repeats none of them.
    at |= {"pushes": 0, "tag": 0}
    rig.writers[1].resume(*(at[name] for name in AT), False)
    rig.writers[1].owe_tick(0)
    # All slots have pushes that wait for worker 0.
    assert rig.writers[1].owes_tick
    rig.writers[0].tick(0)
    rig.drain()
    assert rig.writers[1].owes_tick
    push(rig.writers[1], 1, 5.0)
    assert not rig.writers[1].owes_tick
    rig.writers[0].tick(1)
    rig.writers[1].tick(1)
    rig.drain()
    assert rig.core.version(0) == 2
    assert (rig.core.dense_values(0) == -9).all()


def test_a_tick_that_is_owed_is_written_at_once_where_there_is_room(make_rig):
    rig = make_rig(dense(8, consistency=BOTH))
    push(rig.writers[1], 0)
    rig.repeat()
    rig.writers[1].owe_tick(0)
    assert not rig.writers[1].owes_tick
    assert rig.writers[1].next_sequence == 2


@pytest.mark.parametrize("other", [BOTH, ASP()], ids=["bsp", "asp"])
def test_a_copy_of_a_lost_server_keeps_what_that_may_have_acknowledged(make_rig, other):
    """Pushes under ASP wait for no worker, but here for a push under BSP in front of them."""
    rig = make_rig(dense(8, "a", consistency=BOTH), dense(8, "b", consistency=other))
    push(rig.writers[1], 0)
    push(rig.writers[1], 0, table=1)
    rig.repeat()
    rig.server.drop_repeated([0, 0], is_copied=True)
    assert rig.core.position(1)["pushes"] == (2 if other != BOTH else 0)
    rig.server.drop_repeated([0, 0], is_copied=False)
    assert rig.core.position(1)["pushes"] == 0


def fill_and_end_on_server_0_only(launches):
    """Fill the rings of servers that consume nothing; only server 0 gets the tick."""
    launches.idle = True
    worker = launches.workers[0]
    connection = connection_of(worker)
    table, by_server = worker.table("e"), launches.placement.partitioners["e"]
    own = [KEYS[by_server.owners(KEYS) == s] for s in range(2)]
    connection.counts_places, connection.left = False, 1
    worker.set_cursor({"step": 1})
    # The place and the tick take two records; server 1 has room for the place alone.
    n_slots = launches.placement.layouts[1].geometry.n_slots
    for _ in range(n_slots - 1):
        table.push(own[1], np.ones((len(own[1]), 4), np.float32))
    with contextlib.suppress(KilledError):
        worker.clock()


def test_a_pull_behind_a_tick_that_was_owed_has_the_version_of_its_own_reply(make_launches):
    launches = make_launches(rows(consistency=ASP()), n_servers=2, n_slots=4)
    fill_and_end_on_server_0_only(launches)
    launches.again()
    connection = connection_of(launches.workers[0])
    assert [channel.writer.owes_tick for channel in connection.channels] == [False, True]
    # The server makes room while the worker does something else.
    launches.idle = False
    launches.servers[1].core.drain(0.0, 0)
    found = []
    access = launches.workers[0].table("e")._access()
    access.fetch(KEYS, lambda rows, least, versions: found.append((least, versions))).wait()
    ((_, versions),) = found
    assert set(versions.tolist()) == {0, 3}
