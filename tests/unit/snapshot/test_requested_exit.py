"""A signal, or a request to end: the job leaves once a checkpoint is durable."""

from __future__ import annotations

import itertools

import pytest
from coordinator_rig import Stage
from simulated_time import SimulatedTime

from mpips.config.triggers import Triggers
from mpips.errors import LeavingError
from mpips.mpi.messages import (
    Ask,
    Saved,
    Taken,
    Write,
)


def test_one_signal_that_reaches_all_ranks_is_one():
    stage = Stage(common=False)
    stage.coordinator.ask(Ask("signal", 100.0))
    stage.coordinator.ask(Ask("signal", 100.4))
    stage.coordinator.poll()
    number = stage.committed().id
    stage.write(number)
    stage.coordinator.ask(Ask("signal", 100.6))
    stage.coordinator.poll()
    assert stage.take() == []
    stage.coordinator.ask(Ask("signal", 200.0))
    stage.coordinator.poll()
    assert stage.committed().id == number + 1
    assert stage.coordinator.statistics["skipped"] == 0


def test_after_the_signal_the_job_ends_once_the_checkpoint_is_durable():
    stage = Stage(Triggers(on_usr1="exit"), common=False, n_servers=1)
    stage.coordinator.ask(Ask("call"))
    stage.coordinator.poll()
    number = stage.committed().id
    stage.coordinator.taken(0, Taken(number, True))
    stage.coordinator.ask(Ask("signal", 100.0))
    with pytest.raises(LeavingError, match="a signal: wrote checkpoint step-7, exit 75") as caught:
        stage.coordinator.saved(0, Saved(number, "step-7", ""))
    assert caught.value.exit_code == 75


def begun_again(stage: Stage, now: SimulatedTime) -> int:
    """Return the number of the cut that follows a failed one, after a pause."""
    stage.take()
    stage.coordinator.poll()
    assert stage.take() == []
    now.pass_by(60.0)
    stage.coordinator.poll()
    return stage.committed().id


@pytest.mark.parametrize("reason", ["signal", "end"])
def test_a_requested_exit_is_asked_for_again_after_a_cut_that_failed_or_was_given_up(
    reason, monkeypatch
):
    now = SimulatedTime(monkeypatch)
    stage = Stage(Triggers(on_usr1="exit"), common=False, n_servers=1)
    stage.coordinator.ask(Ask(reason, 100.0, why="SIGTERM"))
    stage.coordinator.poll()
    number = stage.committed().id
    stage.coordinator.taken(0, Taken(number, True))
    stage.coordinator.saved(0, Saved(number, "", "the disk is full"))
    assert "the disk is full; the job is still to end and tries again in" in stage.warnings[0]
    number = begun_again(stage, now)
    stage.coordinator.taken(0, Taken(number, False))
    stage.coordinator.saved(0, Saved(number, "", "given up"))
    assert "a checkpoint was given up" in stage.warnings[1]
    assert "tries again in" in stage.warnings[1]
    number = begun_again(stage, now)
    stage.coordinator.taken(0, Taken(number, True))
    with pytest.raises(LeavingError, match="SIGTERM: wrote checkpoint step-7, exit 75"):
        stage.coordinator.saved(0, Saved(number, "step-7", ""))
    assert stage.coordinator.statistics["failed"] == stage.coordinator.statistics["given_up"] == 1


def test_a_proposal_that_comes_to_nothing_does_not_end_a_requested_exit(monkeypatch):
    now = SimulatedTime(monkeypatch)
    stage = Stage(n_servers=1, timeout_s=0.0)
    stage.coordinator.ask(Ask("end", 100.0, why="SIGTERM"))
    stage.proposed()
    stage.coordinator.poll()
    assert not stage.coordinator.busy
    stage.take()
    now.pass_by(60.0)
    with pytest.raises(LeavingError, match="SIGTERM"):
        stage.whole()


def test_a_job_that_is_to_end_leaves_after_a_durable_cut_that_had_another_reason():
    stage = Stage(Triggers(every_steps=10, on_usr1="exit"))
    planned = stage.proposed()
    stage.agree(planned.id, 0, 0, clock=10)
    stage.committed()
    stage.coordinator.taken(0, Taken(planned.id, True))
    stage.coordinator.ask(Ask("signal", 100.0))
    stage.coordinator.taken(1, Taken(planned.id, True))
    assert stage.take() == [("servers", Write(planned.id))]
    stage.coordinator.saved(1, Saved(planned.id, "step-10", ""))
    with pytest.raises(LeavingError, match="a signal: wrote checkpoint step-10"):
        stage.coordinator.saved(0, Saved(planned.id, "step-10", ""))


def test_while_a_job_that_is_to_end_waits_none_of_its_tries_follows_at_once(monkeypatch):
    """Without pauses the servers would write to a full disk all the time, and training would stop."""
    now, tries = SimulatedTime(monkeypatch), []
    stage = Stage(common=False, n_servers=1)
    stage.coordinator.ask(Ask("end", 100.0, why="SIGTERM"))
    while len(tries) < 8:
        stage.coordinator.poll()
        if not stage.take():
            now.pass_by(0.25)
            continue
        tries.append(now.now)
        number = len(tries)
        stage.coordinator.taken(0, Taken(number, True))
        stage.coordinator.saved(0, Saved(number, "", "no room"))
        stage.take()
    pauses = [b - a for a, b in itertools.pairwise(tries)]
    assert pauses[0] >= 1
    assert pauses == sorted(pauses)
    assert pauses[-1] == pauses[-2] <= 30


@pytest.mark.parametrize("phase", ["proposed", "committed", "writing"])
def test_a_job_that_is_to_end_leaves_after_the_cut_under_way(phase):
    stage = Stage(n_servers=1)
    stage.coordinator.ask(Ask("call"))
    number = stage.proposed().id
    asks = [Ask("end", 100.0, why="SIGTERM"), Ask("end", 100.1, why="SIGTERM")]
    if phase == "proposed":
        stage.coordinator.ask(asks.pop())
    stage.agree(number, 0, 0, clock=1)
    stage.committed()
    if phase == "committed":
        stage.coordinator.ask(asks.pop())
    stage.coordinator.taken(0, Taken(number, True))
    stage.coordinator.ask(asks.pop())
    with pytest.raises(LeavingError, match="SIGTERM: wrote checkpoint step-7, exit 75"):
        stage.coordinator.saved(0, Saved(number, "step-7", ""))


def test_a_job_that_is_to_end_does_not_wait_for_a_planned_cut():
    stage = Stage(Triggers(every_steps=1000), n_servers=1)
    planned = stage.proposed()
    stage.agree(planned.id, 0, 0, clock=1000)
    stage.committed()
    stage.coordinator.ask(Ask("end", 100.0, why="SIGTERM"))
    stage.take()
    stage.coordinator.saved(0, Saved(planned.id, "", "given up"))
    with pytest.raises(LeavingError):
        stage.whole()


def test_a_request_to_end_counts_right_after_a_signal_to_continue():
    stage = Stage(common=False, n_servers=1)
    stage.coordinator.ask(Ask("signal", 100.0))
    stage.coordinator.ask(Ask("end", 100.1, why="SIGTERM"))
    stage.coordinator.ask(Ask("signal", 102.0))  # does not withdraw the request
    stage.coordinator.poll()
    number = stage.committed().id
    stage.coordinator.taken(0, Taken(number, True))
    with pytest.raises(LeavingError, match="SIGTERM"):
        stage.coordinator.saved(0, Saved(number, "step-7", ""))


def test_a_checkpoint_is_durable_also_if_older_ones_could_not_be_removed():
    note = "step-7 was written, but older checkpoints could not be removed: busy"
    stage = Stage(common=False, n_servers=2)
    stage.coordinator.ask(Ask("call"))
    stage.coordinator.poll()
    number = stage.committed().id
    for server in (0, 1):
        stage.coordinator.taken(server, Taken(number, True))
    stage.coordinator.saved(0, Saved(number, "step-7", "", note))
    stage.coordinator.saved(1, Saved(number, "step-7", ""))
    assert (stage.coordinator.statistics["written"], stage.coordinator.statistics["failed"]) == (
        1,
        0,
    )
    assert stage.coordinator.statistics["path"] == "step-7"
    assert stage.warnings == [note]
    stage.take()
    stage.coordinator.ask(Ask("end", 100.0, why="SIGTERM"))
    stage.coordinator.poll()
    number = stage.committed().id
    for server in (0, 1):
        stage.coordinator.taken(server, Taken(number, True))
    stage.coordinator.saved(1, Saved(number, "step-9", ""))
    with pytest.raises(LeavingError, match="SIGTERM: wrote checkpoint step-9, exit 75"):
        stage.coordinator.saved(0, Saved(number, "step-9", "", note))
    assert stage.warnings == [note, note]
