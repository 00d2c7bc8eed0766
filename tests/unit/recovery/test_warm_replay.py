"""Pushes that a worker repeats after a warm restart: skipped if they are the same, else refused."""

from __future__ import annotations

import numpy as np
import pytest
from harness import dense, rows
from journal_rig import Rig

from mpips import _native
from mpips.model.consistency import ASP, BSP, SSP
from mpips.transport.region import unlink_job

KEYS = np.array([3, -5, 2**62, 8], np.int64)
ROWS = np.ones((4, 4), np.float32)
MODELS = {"asp": ASP(), "ssp": SSP(bound=1), "bsp": BSP("sum")}


@pytest.fixture
def make_rig():
    rigs = []

    def make(*tables, **options):
        rigs.append(Rig(*tables, **{"n_slots": 16, **options}))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.leave()
        unlink_job(rig.token)


def push(writer, table, clock, n=8, value=1.0):
    assert writer.push_dense(table, clock, np.full(n, value, np.float32), None, 0) == n


def push_rows(writer, table, clock, keys=KEYS):
    assert writer.push_rows(table, clock, keys, ROWS[: len(keys)], None, 0) == len(keys)


def tables(model):
    return dense(8, "a", consistency=model), rows(4, "e", consistency=model)


@pytest.mark.parametrize("consumed", [False, True])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_same_pushes_are_left_out_wherever_they_are(make_rig, model, consumed):
    rig = make_rig(*tables(model))
    push(rig.writer, 0, 0)
    push_rows(rig.writer, 1, 0)
    rig.writer.tick(0)
    push(rig.writer, 0, 1)
    push_rows(rig.writer, 1, 1)
    if consumed:
        rig.drain()
    (at,) = rig.repeat()
    assert (at["clock"], at["pushes"], len(at["ended"])) == (1, 2, 1)
    writer = rig.writer
    # Repeat the clock that has ended at this server, as if another server lacked the tick.
    push(writer, 0, 0, value=7.0)
    push_rows(writer, 1, 0, KEYS[::-1].copy())
    assert writer.tick(0)
    push(writer, 0, 1, value=7.0)
    push_rows(writer, 1, 1)
    assert writer.next_sequence == at["sequence"]
    push(writer, 0, 1, value=2.0)
    assert writer.tick(1)
    rig.drain()
    # The values of the first time count, though those of the repetition differ.
    assert (rig.core.dense_values(0) == -4).all()
    keys, values = rig.core.embedding_rows(1)
    assert sorted(keys) == sorted(KEYS)
    assert len(values) == 4


@pytest.mark.parametrize("consumed", [False, True])
@pytest.mark.parametrize(
    ("repeat", "match"),
    [
        (lambda w: push(w, 0, 0, n=7), "other pushes"),
        (lambda w: push_rows(w, 1, 0), "other pushes"),
        (lambda w: w.tick(0), "makes 0 pushes, but had made 1"),
        (lambda w: w.finish(0), "makes 0 pushes, but had made 1"),
    ],
    ids=["length", "table", "fewer", "end"],
)
def test_another_first_push_is_refused(make_rig, repeat, match, consumed):
    rig = make_rig(dense(8, "a"), rows(4, "e"))
    push(rig.writer, 0, 0)
    if consumed:
        rig.drain()
    (at,) = rig.repeat()
    with pytest.raises(_native.ReplayMismatch, match=match):
        repeat(rig.writer)
    # No record follows, even if the program ignores the error.
    with pytest.raises(_native.ReplayMismatch, match=match):
        push(rig.writer, 0, 5)
    assert rig.writer.next_sequence == at["sequence"]


def test_other_keys_are_refused_and_another_order_is_not(make_rig):
    rig = make_rig(rows(4, "e"))
    push_rows(rig.writer, 0, 0)
    rig.repeat()
    push_rows(rig.writer, 0, 0, KEYS[[2, 0, 3, 1]].copy())
    rig.repeat(2)
    with pytest.raises(_native.ReplayMismatch, match="other pushes"):
        push_rows(rig.writer, 0, 0, KEYS + 1)


@pytest.mark.parametrize("more", [False, True])
def test_an_ended_clock_is_compared_at_its_tick(make_rig, more):
    rig = make_rig(dense(8, "a"))
    push(rig.writer, 0, 0)
    push(rig.writer, 0, 0)
    rig.writer.tick(0)
    rig.drain()
    rig.repeat()
    for _ in range(3 if more else 1):
        push(rig.writer, 0, 0)
    with pytest.raises(_native.ReplayMismatch, match="clock 0 and makes other pushes"):
        rig.writer.tick(0)


def test_more_clocks_than_before_the_end_are_refused(make_rig):
    rig = make_rig(dense(8, "a"))
    push(rig.writer, 0, 0)
    rig.writer.tick(0)
    rig.writer.finish(1)
    rig.repeat()
    push(rig.writer, 0, 0)
    assert rig.writer.tick(0)
    assert rig.writer.finish(1)
    rig.repeat(2)
    with pytest.raises(_native.ReplayMismatch, match="had finished without"):
        push(rig.writer, 0, 1)


def test_an_earlier_end_is_refused(make_rig):
    rig = make_rig(dense(8, "a"))
    for clock in range(3):
        rig.writer.tick(clock)
    rig.repeat()
    assert rig.writer.tick(0)
    with pytest.raises(_native.ReplayMismatch, match="finishes, but had gone on to clock 3"):
        rig.writer.finish(1)


def test_a_worker_too_far_behind_cannot_be_compared(make_rig):
    rig = make_rig(dense(8, "a"), slot_bytes=256)
    for clock in range(600):
        assert rig.writer.tick(clock)
        rig.drain()
    (at,) = rig.repeat()
    assert len(at["ended"]) == 512
    assert rig.writer.tick(599)
    with pytest.raises(_native.ReplayMismatch, match="too far behind"):
        rig.writer.tick(80)


def test_backup_workers_may_stop_at_clocks_that_were_passed_over(make_rig):
    rig = make_rig(dense(8, "a", consistency=BSP(backup=1)), n_workers=2)
    push(rig.writer, 0, 0)
    rig.writer.tick(0)
    rig.writer.tick(3)
    rig.drain()
    rig.repeat(skips_clocks=True)
    assert rig.writer.tick(1)
    with pytest.raises(_native.ReplayMismatch, match="other pushes"):
        rig.writer.tick(0)


@pytest.mark.parametrize("skips_clocks", [False, True])
def test_no_clock_is_passed_over_whose_pushes_are_there(make_rig, skips_clocks):
    rig = make_rig(dense(8, "a", consistency=BSP(backup=1)), n_workers=2)
    push(rig.writer, 0, 7)
    rig.drain()
    rig.repeat(skips_clocks=skips_clocks)
    with pytest.raises(_native.ReplayMismatch, match="clock 9 and has not repeated its pushes"):
        push(rig.writer, 0, 9)


@pytest.mark.parametrize("n_slots", [2, 16])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_push_of_several_records_has_one_tag_however_it_was_taken(make_rig, model, n_slots):
    keys = np.arange(100, 200, dtype=np.int64)
    values = np.ones((100, 4), np.float32)
    rig = make_rig(*tables(model), n_slots=n_slots)
    tags = []
    for generation in range(1, 4):
        done = 0
        while done < 100:
            done = rig.writer.push_rows(1, 0, keys, values, None, done)
            if done < 100 or generation == 2:
                rig.drain()
        (at,) = rig.repeat(generation)
        tags.append(at["tag"])
        assert at["pushes"] == 1
    assert len(set(tags)) == 1
    rig.drain()
    assert rig.core.stats(1)["pushed"] == 1


def test_a_push_whose_beginning_was_consumed_is_recognised(make_rig):
    keys = np.arange(100, dtype=np.int64)
    values = np.ones((100, 4), np.float32)
    rig = make_rig(rows(4, "e", consistency=BSP()), n_slots=2)
    done = rig.writer.push_rows(0, 0, keys, values, None, 0)
    rig.drain()
    while done < 100:
        done = rig.writer.push_rows(0, 0, keys, values, None, done)
        if done < 100:
            rig.drain()
    # The first segments are consumed and the rest is in the ring; the push counts once.
    (at,) = rig.repeat()
    assert (at["applied"], at["pushes"]) == (at["sequence"] - 1, 1)
    assert rig.writer.push_rows(0, 0, keys, values, None, 0) == 100
    assert rig.writer.next_sequence == at["sequence"]


def test_rows_are_pulled_again_in_a_clock_that_is_over(make_rig):
    rig = make_rig(rows(4, "e", consistency=BSP()))
    push_rows(rig.writer, 0, 0)
    rig.writer.tick(0)
    rig.drain()
    rig.repeat()
    out = np.empty((4, 4), np.float32)
    assert rig.writer.pull_rows(0, 0, KEYS, out, 0) == 4
    rig.drain()
    assert rig.writer.collect() == 0
    expected = rig.core.embedding_rows(0)
    assert (out[np.argsort(KEYS)] == expected[1]).all()


def test_rows_are_pulled_again_by_a_worker_that_had_finished(make_rig):
    rig = make_rig(rows(4, "e"))
    push_rows(rig.writer, 0, 0)
    rig.writer.tick(0)
    rig.writer.finish(1)
    rig.drain()
    rig.repeat()
    out = np.empty((4, 4), np.float32)
    assert rig.writer.pull_rows(0, 1, KEYS, out, 0) == 4
    rig.drain()
    assert rig.writer.collect() == 0


def test_without_a_restart_a_pull_of_a_clock_that_is_over_is_refused(make_rig):
    rig = make_rig(rows(4, "e"))
    rig.writer.tick(0)
    rig.writer.pull_rows(0, 0, KEYS, np.empty((4, 4), np.float32), 0)
    with pytest.raises(_native.ProtocolViolation, match="a record of clock 0 after it had ended"):
        rig.drain()


# Cursors.


def texts(at):
    return [text.decode() for text in at["texts"]]


@pytest.mark.parametrize("launches", [1, 2, 5])
@pytest.mark.parametrize("consumed", [False, True])
def test_launches_that_end_at_one_clock_leave_the_cursor_that_the_worker_started_from(
    make_rig, launches, consumed
):
    rig = make_rig(dense(8, "a"))
    for clock in range(3):
        rig.writer.cut(clock, 0, clock + 1, f"at {clock + 1}".encode())
        rig.writer.tick(clock)
    rig.drain()
    for launch in range(1, launches + 1):
        # End each launch between the cursor of clock 4 and the tick before it.
        rig.writer.cut(3, 0, 4, f"at 4, launch {launch}".encode())
        if consumed:
            rig.drain()
        at = rig.repeat(launch)[0]
        assert at["clock"] == 3
        assert "at 3" in texts(at)
        assert texts(at)[-1] == f"at 4, launch {launch}"
    rig.drain()
    (at,) = rig.repeat(launches + 1)
    assert texts(at) == ["at 3", f"at 4, launch {launches}"]


def test_a_text_of_a_checkpoint_replaces_that_of_the_same_clock_only(make_rig):
    rig = make_rig(dense(8, "a"))
    rig.writer.cut(0, 0, 1, b"at 1")
    rig.writer.tick(0)
    rig.writer.cut(1, 0, 2, b"at 2")
    rig.writer.tick(1)
    rig.writer.cut(2, 0, 2, b"at 2, again")
    rig.drain()
    (at,) = rig.repeat()
    assert texts(at) == ["at 1", "at 2, again"]


# The image in shared memory.


def test_a_clock_that_closes_clears_the_ticks_of_workers_whose_segments_wait(make_rig):
    """Worker 0 ticks, the first segments of its next push wait in their slots, and worker 1 closes the clock.

    The next launch must know that worker 0 has not ticked in the new clock.
    """
    rig = make_rig(
        dense(8, "b", consistency=BSP("sum")), rows(4, "e", consistency=ASP()), n_workers=2
    )
    first, second = rig.writers
    push(first, 0, 0)
    first.tick(0)
    rig.drain()
    keys = np.arange(100, dtype=np.int64)
    # Write three records of one push; they wait in their slots for the rest.
    geometry = rig.layout.geometry
    first.push_rows(1, 1, keys, np.ones((100, 4), np.float32), None, 0)
    at = geometry.stamps_offset + geometry.record_stride * ((first.next_sequence - 1) % 16)
    box = rig.server.region.view(rig.layout.mailbox_offset(0), geometry.mailbox_bytes, True)
    box[at : at + 8] = 0
    del box
    rig.drain()
    push(second, 0, 0)
    second.tick(0)
    rig.drain()
    assert rig.core.version(0) == 1
    first = second = None
    positions = rig.repeat()
    assert [at["clock"] for at in positions] == [1, 1]
    for writer in rig.writers:
        push(writer, 0, 1)
        assert writer.tick(1)
        rig.drain()
    assert rig.core.version(0) == 2
    assert (rig.core.dense_values(0) == -4).all()


@pytest.mark.parametrize("model", [ASP(), BSP("sum"), SSP(bound=1)])
def test_clocks_beyond_32_bits_go_on(make_rig, model):
    """Clock 2^32 - 1 is not taken for the end, nor 2^32 for the beginning."""
    rig = make_rig(dense(8, "a", consistency=model), rows(4, "e", consistency=model))
    start = 2**32 - 2
    rig.set_clock(start)
    rig.repeat()
    for clock in range(start, start + 4):
        out = np.empty((4, 4), np.float32)
        assert rig.writer.pull_rows(1, clock, KEYS, out, 0) == 4
        rig.drain()
        assert rig.writer.collect() == 0
        push(rig.writer, 0, clock)
        assert rig.writer.tick(clock)
        rig.drain()
        assert rig.core.clock(0) == clock + 1
        assert not rig.core.finished(0)
    assert (rig.core.dense_values(0) == -4).all()
    rig.writer.finish(start + 4)
    rig.drain()
    assert rig.core.finished(0)


@pytest.mark.parametrize("consumed", [False, True])
def test_backup_workers_that_had_finished_behind_clocks_that_were_passed_over_stay_there(
    make_rig, consumed
):
    rig = make_rig(dense(8, "a", consistency=BSP(backup=1)), n_workers=2)
    for clock in range(3):
        push(rig.writers[0], 0, clock)
        rig.writers[0].tick(clock)
    rig.drain()
    push(rig.writers[1], 0, 0)
    rig.writers[1].tick(0)
    rig.writers[1].finish(3)
    if consumed:
        rig.drain()
    _, at = rig.repeat()
    assert (at["clock"], at["finished"], at["pushes"]) == (3, True, 0)
    assert rig.writers[1].finish(3)
    assert rig.writers[1].next_sequence == at["sequence"]
