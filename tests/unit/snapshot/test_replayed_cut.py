"""The one cut of a replay, at the clocks of the recorded run, which no message orders."""

from __future__ import annotations

import re

import numpy as np
import pytest
from coordinator_rig import Stage
from harness import Rig, dense

from mpips.errors import CheckpointError, LeavingError
from mpips.mpi.messages import ONLY, Saved, Taken, Waits, Write
from mpips.scheduler.own_worker import OwnWorker
from mpips.worker.connection import Connection
from mpips.worker.worker import Worker, connection_of


def worker_of(rig, record=None):
    connection = Connection(
        0, ["worker 0"], rig.tables, [rig.channel(0, True)], OwnWorker(), rig.staging[0], 60.0
    )
    connection.record = record
    return Worker(connection, rig.tables, rig.placement)


@pytest.mark.parametrize("clock", [0, 1, 3])
def test_a_worker_cuts_at_its_clock_and_at_no_other(clock):
    rig = Rig(dense(), n_slots=16)
    worker = worker_of(rig)
    rig.core.expect_cut(ONLY.id)
    connection_of(worker).snapshot.expect_only(clock)
    for now in range(4):
        rig.drain()
        assert rig.core.cut_ready() == (now >= clock)
        worker.table("w").push(np.ones(8, np.float32))
        worker.clock()
    rig.drain()
    assert rig.core.dense_array(0, 0).tolist() == [-clock] * 8
    rig.core.release_cut(ONLY.id)
    rig.drain()
    assert rig.core.dense_array(0, 0).tolist() == [-4] * 8


def test_a_record_has_all_entries_before_the_record_of_a_cut_is_written():
    rig = Rig(dense(), n_slots=16)
    noted = []

    class Record:
        """A record that notes what the server has when it is told of a cut."""

        def join_port(self, port, servers):
            pass

        def tick(self, clock, own, is_end=False):
            pass

        def note_cut(self):
            rig.drain()
            noted.append(rig.core.holds_cut())

    worker = worker_of(rig, Record())
    rig.core.expect_cut(ONLY.id)
    connection_of(worker).snapshot.expect_only(1)
    worker.clock()
    rig.drain()
    assert (noted, rig.core.holds_cut()) == ([False], True)
    # A position that belongs to no cut needs none.
    connection_of(worker).snapshot.write_position(1)
    assert len(noted) == 1


def test_the_job_ends_with_the_checkpoint_of_the_only_cut():
    stage = Stage()
    stage.coordinator.expect_only()
    stage.coordinator.poll()
    assert stage.take() == []
    for server in range(2):
        stage.coordinator.taken(server, Taken(ONLY.id, True))
    assert stage.take() == [("servers", Write(ONLY.id))]
    stage.coordinator.saved(0, Saved(ONLY.id, "step-4", ""))
    with pytest.raises(LeavingError, match="the replay wrote checkpoint step-4"):
        stage.coordinator.saved(1, Saved(ONLY.id, "step-4", ""))


def test_workers_that_wait_do_not_give_the_only_cut_up():
    stage = Stage(common=False)
    stage.coordinator.expect_only()
    stage.coordinator.waits(0, Waits(ONLY.id, "before"))
    stage.coordinator.waits(1, Waits(ONLY.id, "behind"))
    stage.coordinator.poll()
    assert stage.take() == []


@pytest.mark.parametrize(
    ("late", "why"),
    [(True, "not all workers reached it within 30 s"), (False, "the disk is full")],
)
def test_no_other_cut_takes_the_place_of_the_only_one(late, why):
    stage = Stage()
    stage.coordinator.expect_only()
    for server in range(2):
        stage.coordinator.taken(server, Taken(ONLY.id, not late))
    stage.coordinator.saved(0, Saved(ONLY.id, "", why))
    with pytest.raises(CheckpointError, match=f"the replay cannot .*{re.escape(why)}"):
        stage.coordinator.saved(1, Saved(ONLY.id, "", why))
    assert stage.warnings == []
