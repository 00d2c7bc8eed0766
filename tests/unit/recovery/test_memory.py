"""The places where workers continue in the memory of an earlier launch."""

from __future__ import annotations

import pytest

from mpips.checkpoint import WorkerState
from mpips.checkpoint.position import Position, compressed, decode_part
from mpips.errors import RecoveryError
from mpips.recovery.memory import (
    REFUSED_FILE,
    At,
    Memory,
    place_of,
    refuse_for_messages,
    refuse_memory,
    resumed_at,
    servers_behind,
    why_refused,
)
from mpips.recovery.saving import Saving
from mpips.rundir.directory import RunFolder, Supervised

MEMORY = Memory(generation=0, tables="", shape=(2, 1), step=7)


def text(clock, **cursor):
    position = Position(0, 0, 1)
    position.set_cursor(cursor)
    return position.coming_part(clock).hex()


def at(clock, *texts, **fields):
    values = {"sequence": 9, "applied": 9, "finished": False, "pushes": 0, "tag": 0, "ended": []}
    return At(clock=clock, texts=list(texts), **{**values, **fields})


def test_a_worker_goes_on_at_its_greatest_clock_and_sends_the_missing_tick():
    first, second = text(3, epoch=1, step=2), text(4, epoch=1, step=3)
    found = [at(3, first, second, pushes=2, tag=7), at(4, first, second, pushes=1, tag=5)]
    place = place_of(0, found, MEMORY)
    assert (place.clock, place.ahead) == (4, 4)
    assert (place.state.epoch, place.state.step, place.state.clock) == (1, 3, 11)
    assert servers_behind(found, place) == (0,)
    assert [(a.clock, a.pushes, a.tag) for a in resumed_at(found, place)] == [(3, 0, 0), (4, 1, 5)]


def test_a_server_that_may_lack_pushes_takes_a_worker_back_to_its_least_clock():
    """It continues from a copy, or the launch before did and was killed in a repeated clock."""
    first, second = text(3, epoch=1, step=2), text(4, epoch=1, step=3)
    found = [at(3, first, pushes=2, tag=7), at(4, first, second)]
    place = place_of(0, found, MEMORY)
    assert (place.clock, place.ahead) == (3, 4)
    assert (place.state.epoch, place.state.step, place.state.clock) == (1, 2, 10)
    assert servers_behind(found, place) == ()
    assert resumed_at(found, place) == found
    third = at(3, first, second, pushes=2, tag=7)
    assert place_of(0, [*found, third], MEMORY).clock == 3
    assert place_of(0, [third, found[1], third], MEMORY).clock == 4


def test_a_skipped_clock_takes_the_last_cursor_before_it():
    positions = [at(6, text(3, step=1), text(4, step=2))]
    place = place_of(0, positions, MEMORY, skips_clocks=True)
    assert (place.clock, place.state.step) == (6, 2)
    with pytest.raises(RecoveryError, match=r"cursor of worker 0 at clock 6; .* clocks: 3, 4$"):
        place_of(0, positions, MEMORY)


def test_backup_workers_at_different_clocks_start_from_the_checkpoint():
    positions = [at(7, text(7, step=1)), at(5, text(5, step=1))]
    assert place_of(0, positions, MEMORY).clock == 5
    with pytest.raises(
        RecoveryError, match="worker 0 is at clock 5 on one server and at 7 on another"
    ):
        place_of(0, positions, MEMORY, skips_clocks=True)


@pytest.mark.parametrize("skips_clocks", [False, True])
def test_a_lost_cursor_is_not_taken_for_the_beginning(skips_clocks):
    positions = [at(5, text(6, step=1), text(6, step=1)), at(5)]
    with pytest.raises(RecoveryError, match="no server has the cursor of worker 0 at clock 5"):
        place_of(0, positions, MEMORY, skips_clocks)


def test_the_greatest_clock_of_all_servers_is_known():
    place = place_of(0, [at(3, text(3)), at(7, text(7))], MEMORY)
    assert (place.clock, place.ahead) == (3, 7)


def test_a_worker_that_has_not_ticked_is_where_the_launch_began():
    began = WorkerState(worker=0, clock=7, epoch=2, step=5, cursor={"epoch": 2})
    memory = Memory(generation=1, tables="", shape=(2, 1), step=7, workers=(began,))
    assert place_of(0, [at(0, text(1, epoch=9)), at(0)], memory).state == began
    assert place_of(0, [at(0), at(0)], MEMORY).state == WorkerState(worker=0, clock=7)


@pytest.mark.parametrize("is_again", [False, True], ids=["first", "continued"])
def test_a_checkpoint_between_outer_steps_moves_no_worker_that_goes_on_in_memory(is_again):
    """Memory has the values of the outer step, and the record of the checkpoint replaces its text."""
    position = Position(0, 0, 1)
    position.set_cursor({"step": 30})
    position.random.normal()
    text_of_tick = position.coming_part(10, 30).hex()
    place = place_of(0, [at(10, text_of_tick)], MEMORY)
    if is_again:
        saving = Saving(None, "r", origin=MEMORY, places=(place,))
        position = saving.position(0, 0, 1)
        assert place_of(0, [at(10, position.part().hex())], MEMORY) == place
    position.note_tick(10, True, 30)
    for step in (31, 32):
        position.set_cursor({"step": step})
        position.random.normal()
        position.note_tick(10, True, step)
    in_checkpoint = position.part()
    found = decode_part(in_checkpoint)
    assert (found.clock, found.n_steps, found.cursor) == (10, 32, {"step": 32})
    for texts in ([in_checkpoint.hex()], [text_of_tick, in_checkpoint.hex()]):
        assert place_of(0, [at(10, *texts), at(11, *texts)], MEMORY) == place_of(
            0, [at(10, text_of_tick), at(11, text_of_tick)], MEMORY
        )
    assert (place.steps, place.state.cursor) == (30, {"step": 30})


def test_a_worker_goes_on_from_a_position_that_was_compressed():
    plain = text(3, epoch=1, steps=list(range(300)))
    short = compressed(bytes.fromhex(plain)).hex()
    assert len(short) < len(plain)
    for texts in ([short], [short, text(2, epoch=0)]):
        assert place_of(0, [at(3, *texts)], MEMORY) == place_of(0, [at(3, plain)], MEMORY)


def test_the_random_stream_goes_on():
    position = Position(3, 0, 1)
    position.random.random(5)
    described = position.coming_part(1).hex()
    expected = position.random.random(4)
    place = place_of(0, [at(1, described)], MEMORY)
    again = Position(3, 0, 1, 7, (place.state,), place.clock)
    assert (again.random.random(4) == expected).all()


@pytest.mark.parametrize(
    ("first", "launch", "expected"),
    [(9, 2, 9), (9, 4, 11), (2, 4, 4), (0, 4, 4)],
    ids=["same", "later", "as-the-launch", "written-by-an-earlier-mpips"],
)
def test_checkpoints_of_later_launches_are_newer_than_those_of_the_one_that_began(
    first, launch, expected
):
    memory = Memory(generation=2, tables="", shape=(1, 1), first_checkpoint=first)
    assert Saving(None, "run", origin=memory).checkpoint_generation(launch) == expected


def test_no_launch_continues_in_the_memory_of_one_whose_workers_exchange_arrays(tmp_path):
    def of(generation: int) -> Supervised:
        return Supervised(RunFolder(tmp_path), "r", "t", generation)

    made = Memory(generation=2, tables="", shape=(1, 2))
    assert why_refused(of(3), made) == ""
    refuse_for_messages(of(3))
    expected = (
        "attempt 3 had sent arrays between its workers, which may be at different clocks in it"
    )
    assert why_refused(of(4), made) == expected
    # Memory that was made later is not refused.
    assert why_refused(of(5), Memory(generation=4, tables="", shape=(1, 2))) == ""
    # Another worker writes nothing, and what was found wrong stays.
    before = (tmp_path / REFUSED_FILE).stat().st_ino
    refuse_for_messages(of(3))
    assert (tmp_path / REFUSED_FILE).stat().st_ino == before
    refuse_memory(of(4), "a gap")
    assert why_refused(of(5), made) == "attempt 4 found it wrong: a gap"
