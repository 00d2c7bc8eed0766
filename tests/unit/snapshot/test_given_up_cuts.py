"""Cuts that are given up because a worker waits in front of its record, and what follows."""

from __future__ import annotations

import pytest
from coordinator_rig import Stage
from simulated_time import SimulatedTime

from mpips.mpi.messages import (
    Abandon,
    Ask,
    Commit,
    Saved,
    Taken,
    Waits,
)


def test_rings_that_are_held_for_too_long_are_let_go():
    stage = Stage(common=False)
    stage.coordinator.ask(Ask("call"))
    stage.coordinator.poll()
    number = stage.committed().id
    stage.coordinator.taken(0, Taken(number, True))
    stage.coordinator.taken(1, Taken(number, False))
    assert stage.take()[-1] == ("servers", Abandon(number))
    stage.coordinator.taken(1, Taken(number, True))  # was under way when Abandon was sent
    assert stage.take() == []
    for server in (0, 1):
        assert stage.coordinator.busy
        stage.coordinator.saved(server, Saved(number, "", "given up"))
    assert not stage.coordinator.busy
    assert stage.coordinator.statistics["given_up"] == 1
    assert "not all workers reached it within 30 s" in stage.warnings[0]


def test_a_job_that_is_suspended_gives_no_cut_up_and_expects_no_clocks(
    monkeypatch: pytest.MonkeyPatch,
):
    now = SimulatedTime(monkeypatch)
    stage = Stage(timeout_s=60.0)
    for clock in (100, 200):
        now.pass_by(1.0)
        for worker in (0, 1):
            stage.coordinator.note_clock(worker, clock)
    stage.coordinator.ask(Ask("call"))
    proposal = stage.proposed()
    now.suspend(3600.0)
    # Workers make 100 clocks in a second, and the job is as far as before.
    stage.coordinator.poll()
    assert stage.take() == []
    stage.agree(proposal.id, 200, 200, clock=proposal.clock)
    assert stage.committed() == Commit(proposal.id, proposal.clock)
    stage.write(proposal.id)
    now.suspend(3600.0)
    stage.coordinator.ask(Ask("call"))
    again = stage.proposed()
    assert again.clock - proposal.clock < 1000
    # Without an answer, the others have their full time behind the suspension.
    now.pass_by(29.0)
    stage.coordinator.poll()
    assert stage.warnings == []
    now.pass_by(2.0)
    stage.coordinator.poll()
    assert "not all workers reached it within 30 s" in stage.warnings[0]


def test_a_cut_in_which_no_worker_can_continue_begins_again_at_one_clock():
    stage = Stage(common=False)
    stage.coordinator.ask(Ask("call"))
    stage.coordinator.poll()
    number = stage.committed().id
    # A wait behind the record alone is no reason to give the cut up.
    stage.coordinator.waits(0, Waits(number, "behind"))
    assert stage.take() == []
    stage.coordinator.waits(1, Waits(number, "before"))
    assert stage.take()[-1] == ("servers", Abandon(number))
    for server in (0, 1):
        stage.coordinator.saved(server, Saved(number, "", "given up"))
    # The next attempt does not begin before the gather has ended.
    stage.coordinator.poll()
    assert stage.take() == []
    stage.coordinator.waits(1, Waits(number, "over"))
    again = stage.proposed()
    assert again.clock > 0
    stage.agree(again.id, 0, 0, clock=again.clock)
    assert stage.committed() == Commit(again.id, again.clock)
    # After another failure each worker is cut at its next tick.
    stage.coordinator.waits(0, Waits(again.id, "before"))
    stage.coordinator.waits(1, Waits(again.id, "behind"))
    assert stage.take()[-1] == ("servers", Abandon(again.id))
    for server in (0, 1):
        stage.coordinator.saved(server, Saved(again.id, "", "given up"))
    stage.coordinator.waits(0, Waits(again.id, "over"))
    stage.coordinator.poll()
    last = stage.committed()
    assert last.clock == 0
    stage.write(last.id)
    assert stage.warnings == []
    counts = stage.coordinator.statistics
    assert (counts["written"], counts["failed"], counts["given_up"]) == (1, 0, 0)


@pytest.mark.parametrize("ends", ["over", "finished"])
def test_a_gather_that_has_ended_is_no_reason_to_give_a_cut_up(ends):
    stage = Stage(n_servers=1)
    stage.coordinator.ask(Ask("call"))
    proposal = stage.proposed()
    stage.agree(proposal.id, 0, 0, clock=proposal.clock)
    stage.committed()
    stage.coordinator.waits(1, Waits(proposal.id, "before"))
    if ends == "over":
        stage.coordinator.waits(1, Waits(proposal.id, "over"))
    else:
        stage.coordinator.worker_done(1)
    stage.coordinator.waits(0, Waits(proposal.id, "behind"))
    stage.write(proposal.id)
    assert stage.coordinator.statistics["written"] == 1


def test_a_wait_in_an_earlier_cut_does_not_end_this_one():
    stage = Stage(common=False, n_servers=1)
    stage.coordinator.ask(Ask("call"))
    stage.coordinator.poll()
    first = stage.committed().id
    stage.write(first)
    stage.coordinator.ask(Ask("call"))
    stage.coordinator.poll()
    second = stage.committed().id
    stage.coordinator.waits(0, Waits(first, "behind"))
    stage.coordinator.waits(1, Waits(second, "before"))
    stage.coordinator.waits(1, Waits(second, "over"))
    stage.write(second)
