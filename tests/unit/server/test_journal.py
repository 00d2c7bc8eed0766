"""Servers that survive SIGKILL: after kills at any point the final bits are those of an undisturbed run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rows_rig
from crash_load import dense, rows
from crash_loads import loads
from crash_rig import SANITIZED, crash
from harness import floats
from journal_rig import Rig
from long_runs import by_day, taking_turns

from mpips import _native
from mpips.errors import RecoveryError, RegionError
from mpips.model.consistency import ASP, BSP
from mpips.model.optimizer import SGD
from mpips.server.durability import Durability
from mpips.server.server import Server
from mpips.transport.region import new_token, persistent, unlink_job

LOADS = {name: load for name, load in loads().items() if not load.partner}
HEAVY = [name for name in LOADS if name.startswith("heavy")]
SMALL = [name for name in LOADS if name.startswith("small")]
# Sanitizers check the same code at fewer points. `python crash_rig.py small-asp everywhere 1` kills at every
# point.
COARSE = 7 if SANITIZED else 1
STRIDE = 5
# These run in every second commit, and with sanitizers in every fourth.
OTHERS = taking_turns(
    [name for name in LOADS if name not in (*HEAVY, *SMALL)], 4 if SANITIZED else 2
)


@pytest.mark.sampled
@pytest.mark.parametrize("load", SMALL)
def test_killed_all_over_a_small_run_the_bits_are_those_of_an_undisturbed_run(load):
    points, tried, kills = crash(load, "everywhere", STRIDE * COARSE)
    assert points > 100
    assert kills > 1.5 * tried  # most second processes were killed too


@pytest.mark.long
@pytest.mark.sampled
def test_killed_again_at_any_point_of_the_recovery_nothing_is_applied_twice():
    _, tried, kills = crash("small-asp", "twice", 37 * COARSE)
    assert kills > 40 * tried


@pytest.mark.sampled
@pytest.mark.parametrize("load", OTHERS)
def test_killed_at_many_points_the_bits_are_those_of_an_undisturbed_run(load):
    _, tried, kills = crash(load, "everywhere", COARSE * (61 if "large" not in load else 151))
    assert kills > tried


def test_killed_while_a_row_moves_to_the_place_of_one_that_left():
    (kills,) = crash("limited", "moving", 5)
    assert kills == 15


@pytest.mark.parametrize("load", ["queued", "queued-bsp", "policies"])
def test_many_short_processes_give_the_bits_of_an_undisturbed_run(load):
    (processes,) = crash(load, "shortly", 150)
    assert processes > 5


@pytest.mark.sampled
@pytest.mark.parametrize("load", HEAVY)
def test_killed_from_outside_at_any_time(load):
    runs, kills = crash(load, "anytime", 3)
    assert (runs, kills > 0) == (len(by_day(range(8), 4)), True)


@pytest.mark.parametrize("table", rows_rig.TABLES)
def test_killed_from_outside_while_many_rows_are_changed(table):
    command = [sys.executable, str(Path(rows_rig.__file__)), table, "40"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


# One server, step by step.


@pytest.fixture
def make_rig():
    rigs = []

    def make(*tables, **options):
        rigs.append(Rig(*tables, **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        unlink_job(rig.token)


def place(at):
    names = ("sequence", "applied", "clock", "finished", "taken", "pushes")
    return tuple(at[name] for name in names)


def sgd(n=600):
    return dense(n, "d", SGD(1.0), ASP())


def test_complete_records_that_nobody_read_are_applied_and_counted(make_rig):
    rig = make_rig(sgd(8), rows(4, "e", SGD(1.0), ASP()))
    update = floats(8)
    rig.writer.push_dense(0, 0, update, None, 0)
    rig.writer.tick(0)
    rig.writer.push_dense(0, 1, update, None, 0)
    at = rig.again()
    assert place(at) == (3, 0, 1, False, [1, 0], 1)
    rig.core.drain(0.0, 0)
    assert (rig.core.dense_values(0) == -2 * update).all()
    assert rig.core.position(0)["applied"] == 3


@pytest.mark.parametrize("model", [ASP(), BSP()])
def test_first_segments_of_an_incomplete_push_are_dropped(make_rig, model):
    rig = make_rig(dense(600, "d", SGD(1.0), model), n_slots=2)
    update = floats(600)
    done = rig.writer.push_dense(0, 0, update, None, 0)
    rig.core.drain(0.0, 0)
    assert 0 < done < 600
    assert place(rig.again()) == (2, 2, 0, False, [0], 0)
    done = 0
    while done < 600:
        done = rig.writer.push_dense(0, 0, update, None, done)
        rig.core.drain(0.0, 0)
    rig.writer.tick(0)
    rig.core.drain(0.0, 0)
    assert (rig.core.dense_values(0) == -update).all()


@pytest.mark.parametrize("model", [ASP(), BSP()])
def test_a_push_whose_end_is_in_the_ring_is_made_whole(make_rig, model):
    rig = make_rig(dense(600, "d", SGD(1.0), model), n_slots=2)
    update = floats(600)
    done = rig.writer.push_dense(0, 0, update, None, 0)
    rig.core.drain(0.0, 0)
    assert rig.writer.push_dense(0, 0, update, None, done) == 600
    assert rig.again()["taken"] == [1]
    assert rig.writer.tick(0)
    rig.core.drain(0.0, 0)
    assert (rig.core.dense_values(0) == -update).all()


def test_stamps_behind_the_end_are_never_taken_for_later_records(make_rig):
    rig = make_rig(sgd())
    update = floats(600)
    geometry = rig.layout.geometry
    # Two of three segments are in the ring. The stamp of the second is missing, the third has its stamp.
    rig.writer.push_dense(0, 0, update, None, 0)
    box = rig.server.region.view(rig.layout.mailbox_offset(0), geometry.mailbox_bytes, True)
    at = geometry.stamps_offset + geometry.record_stride
    box[at : at + 8] = 0
    del box
    assert rig.again()["sequence"] == 0
    rig.writer.push_dense(0, 0, update[:240].copy(), None, 0)  # as far as a first segment goes
    with pytest.raises(_native.ProtocolViolation, match="not the length of its shard"):
        rig.core.drain(0.0, 0)


def test_staged_update_of_an_earlier_launch_is_read_from_its_own_memory(make_rig):
    rig = make_rig(sgd(8))
    old = rig.regions.create_sparse("w0-0", 4096)
    old.commit(0, 4096)
    update = floats(8)
    old.view(0, 32, True)[:] = update.view(np.uint8)
    rig.writer.push_staged(0, 0, 0, None, 8)
    del old
    rig.again()
    rig.core.drain(0.0, 0)
    assert (rig.core.dense_values(0) == -update).all()


def test_record_of_an_earlier_launch_behind_the_end_is_refused(make_rig):
    rig = make_rig(sgd(8))
    rig.again()
    zombie = _native.RingWriter(
        rig.server.region, rig.layout.mailbox_offset(0), rig.layout.geometry, 0, 0, True, 1
    )
    zombie.push_dense(0, 0, floats(8), None, 0)
    with pytest.raises(_native.ProtocolViolation, match="generation 0, this job is generation 1"):
        rig.core.drain(0.0, 0)


def test_memory_in_use_is_not_taken_over(make_rig):
    rig = make_rig(sgd(8))
    durability = Durability(1, journal=True, warm=True)
    with pytest.raises(RegionError, match="a running process uses it"):
        Server(0, rig.tables, rig.placement, rig.regions, 0, True, None, durability)


def test_server_that_had_not_begun_is_not_taken_over(make_rig):
    rig = make_rig(sgd(8))
    unlink_job(rig.token)
    rig.token = persistent(new_token())
    rig.open(0)
    rig.leave()
    with pytest.raises(RecoveryError, match="no state that a server"):
        rig.open(1)


def test_second_recovery_finds_the_same_as_the_first(make_rig):
    rig = make_rig(sgd(8))
    rig.writer.push_dense(0, 0, floats(8), None, 0)
    assert rig.again(1) == rig.again(2)
    rig.core.drain(0.0, 0)
    assert (rig.core.dense_values(0) == -floats(8)).all()


def test_statistics_and_steps_are_kept(make_rig):
    rig = make_rig(sgd(8))
    for _ in range(3):
        rig.writer.push_dense(0, 0, floats(8), None, 0)
        rig.core.drain(0.0, 0)
    before = rig.core.stats(0)
    rig.again()
    assert rig.core.stats(0) == before
    assert (rig.core.version(0), rig.core.steps(0)) == (3, 3)
