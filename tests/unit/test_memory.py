"""Where workers go on in what an earlier launch has left, and what they do not write again."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Rig, dense, rows

from mpips.checkpoint import WorkerState
from mpips.cuts.position import Position
from mpips.memory import At, Memory, place_of

MEMORY = Memory(generation=0, tables="", shape=(2, 1), step=7)


def text(clock, **cursor):
    position = Position(0, 0, 1)
    position.set_cursor(cursor)
    return position.coming_part(clock).hex()


def at(clock, *texts, **fields):
    values = {"sequence": 9, "applied": 9, "finished": False, "taken": [0], **fields}
    return At(clock=clock, texts=list(texts), **values)


def test_a_worker_goes_on_at_its_least_clock():
    first, second = text(3, epoch=1, step=2), text(4, epoch=1, step=3)
    place = place_of(0, [at(3, first, second), at(4, first, second)], MEMORY)
    assert place.clock == 3
    assert (place.state.epoch, place.state.step, place.state.clock) == (1, 2, 10)


def test_a_skipped_clock_takes_the_last_cursor_before_it():
    place = place_of(0, [at(6, text(3, step=1), text(4, step=2))], MEMORY)
    assert (place.clock, place.state.step) == (6, 2)


def test_a_worker_that_has_not_ticked_is_where_the_launch_began():
    began = WorkerState(worker=0, clock=7, epoch=2, step=5, cursor={"epoch": 2})
    memory = Memory(generation=1, tables="", shape=(2, 1), step=7, workers=(began,))
    assert place_of(0, [at(0, text(1, epoch=9)), at(1)], memory).state == began
    assert place_of(0, [at(0), at(0)], MEMORY).state == WorkerState(worker=0, clock=7)


def test_the_random_stream_goes_on():
    position = Position(3, 0, 1)
    position.random.random(5)
    said = position.coming_part(1).hex()
    expected = position.random.random(4)
    place = place_of(0, [at(1, said)], MEMORY)
    again = Position(3, 0, 1, 7, (place.state,), place.clock)
    assert (again.random.random(4) == expected).all()


@pytest.mark.parametrize("finished", [False, True])
def test_what_the_server_has_is_not_written_again(finished):
    rig = Rig(dense(8, "a"), dense(8, "b"), rows(4, "e"), n_slots=8)
    writer = rig.writers[0]
    writer.resume(0, 0, 1, finished, [1, 0, 1])
    one, keys = np.ones(8, np.float32), np.arange(2, dtype=np.int64)
    four = np.ones((2, 4), np.float32)
    # Clock 0 is over there; of clock 1 a push to "a" and one to "e" are there.
    assert writer.push_dense(1, 0, one, None, 0) == 8
    assert writer.cut(0, 0, b"")
    assert writer.tick(0)
    assert writer.push_dense(0, 1, one, None, 0) == 8
    assert writer.push_rows(2, 1, keys, four, None, 0) == 2
    assert writer.next_sequence == 0
    assert writer.replays
    assert writer.push_dense(0, 1, one, None, 0) == 8
    assert writer.push_rows(2, 1, keys, four, None, 0) == 2
    assert writer.push_dense(1, 1, one, None, 0) == 8
    assert writer.tick(1)
    assert writer.finish(2)
    assert writer.next_sequence == (0 if finished else 5)
    rig.drain()
    assert rig.core.finished(0) is not finished
