"""The coordinator of cuts, message by message."""

from __future__ import annotations

import gc
import sys

import pytest
from coordinator_rig import Stage

from mpips.config.triggers import Triggers
from mpips.errors import ConfigError
from mpips.mpi.messages import (
    Abandon,
    Agreed,
    Ask,
    Commit,
    Propose,
    Saved,
    Taken,
)
from mpips.mpi.pending import PendingCut


def test_a_call_is_proposed_agreed_committed_and_written():
    stage = Stage()
    stage.coordinator.poll()
    assert stage.take() == []
    stage.coordinator.ask(Ask("call"))
    assert stage.whole() > 0
    assert stage.coordinator.statistics == {
        "written": 1,
        "failed": 0,
        "given_up": 0,
        "skipped": 0,
        "path": "path",
    }
    stage.coordinator.poll()
    assert stage.take() == []


def test_steps_are_multiples_in_the_run_and_proposed_before_anybody_is_there():
    stage = Stage(Triggers(every_steps=10), before=25)
    assert stage.whole() == 5
    assert stage.whole() == 15
    assert stage.coordinator.statistics["written"] == 2


def test_steps_that_pass_while_one_is_written_are_skipped_and_counted():
    stage = Stage(Triggers(every_steps=10))
    assert stage.whole() == 10
    stage.coordinator.note_clock(1, 33)
    assert stage.proposed().clock == 40
    assert stage.coordinator.statistics["skipped"] == 2


def test_a_worker_that_is_past_it_makes_the_next_proposal_further_ahead():
    stage = Stage()
    stage.coordinator.ask(Ask("call"))
    first = stage.proposed()
    stage.agree(first.id, 0, first.clock + 50, clock=first.clock)
    assert stage.take() == [(0, Abandon(first.id)), (1, Abandon(first.id))]
    second = stage.proposed()
    assert second.clock - (first.clock + 50) > first.clock
    stage.agree(second.id, 0, 0, clock=second.clock)
    stage.committed()
    stage.write(second.id)
    assert stage.coordinator.statistics["written"] == 1
    assert stage.warnings == []


def test_without_a_common_clock_it_is_the_next_tick_of_each():
    stage = Stage(Triggers(every_steps=10), common=False)
    stage.coordinator.poll()
    assert stage.take() == []
    stage.coordinator.ask(Ask("steps", 0.0, 10))
    stage.coordinator.ask(Ask("steps", 0.0, 10))  # the second worker comes there
    stage.coordinator.poll()
    assert stage.committed() == Commit(1, 0)
    stage.write(1)
    stage.coordinator.poll()
    assert stage.take() == []
    stage.coordinator.ask(Ask("steps", 0.0, 20))
    stage.coordinator.poll()
    assert stage.committed() == Commit(2, 0)


def test_triggers_while_one_is_written_are_skipped_and_counted():
    stage = Stage(common=False)
    stage.coordinator.ask(Ask("call"))
    stage.coordinator.poll()
    number = stage.committed().id
    for server in (0, 1):
        stage.coordinator.taken(server, Taken(number, True))
    stage.take()
    stage.coordinator.ask(Ask("call"))
    stage.coordinator.ask(Ask("signal", 10.0))
    stage.coordinator.poll()
    assert stage.take() == []
    assert stage.coordinator.statistics["skipped"] == 2


def test_a_planned_cut_is_replaced_by_one_that_is_requested_now():
    stage = Stage(Triggers(every_steps=1000))
    planned = stage.proposed()
    stage.agree(planned.id, 0, 0, clock=1000)
    stage.committed()
    stage.coordinator.ask(Ask("call"))
    assert stage.take() == [
        (0, Abandon(planned.id)),
        (1, Abandon(planned.id)),
        ("servers", Abandon(planned.id)),
    ]
    stage.coordinator.poll()
    assert stage.take() == []  # the servers have not released their rings yet
    for server in (0, 1):
        stage.coordinator.saved(server, Saved(planned.id, "", "given up"))
    assert stage.whole() < 1000
    assert stage.proposed().clock == 1000
    assert stage.warnings == []
    assert stage.coordinator.statistics["given_up"] == 0


def test_a_failed_write_is_reported_counted_and_tried_at_the_next_trigger():
    stage = Stage(Triggers(every_steps=10))
    assert stage.whole("the disk is full") == 10
    assert stage.warnings == ["the disk is full; training continues"]
    assert stage.coordinator.statistics["failed"] == 1
    assert stage.whole() == 20
    assert stage.coordinator.statistics["written"] == 1


def test_a_proposal_that_is_not_answered_is_given_up():
    stage = Stage(timeout_s=0.0)
    stage.coordinator.ask(Ask("call"))
    stage.proposed()
    stage.coordinator.poll()
    assert not stage.coordinator.busy
    assert stage.coordinator.statistics["given_up"] == 1


def test_workers_that_finish_are_ready_and_the_end_gives_up_what_is_not_taken():
    stage = Stage(Triggers(every_steps=10))
    first = stage.proposed()
    stage.coordinator.agreed(0, Agreed(first.id, True, 3))
    stage.coordinator.worker_done(1)
    assert stage.take() == []
    stage.coordinator.agreed(1, Agreed(first.id, True, 9))
    sent = stage.take()
    assert sent == [("servers", Commit(first.id, 10)), (0, Commit(first.id, 10))]
    stage.coordinator.worker_done(0)
    assert stage.take() == [("servers", Abandon(first.id))]
    assert stage.coordinator.busy
    for server in (0, 1):
        stage.coordinator.saved(server, Saved(first.id, "", "given up"))
    assert not stage.coordinator.busy
    stage.coordinator.ask(Ask("call"))
    stage.coordinator.poll()
    assert stage.take() == []
    assert stage.warnings == []


def test_what_is_being_written_when_all_workers_finish_is_written():
    stage = Stage(common=False, n_workers=1, n_servers=1)
    stage.coordinator.ask(Ask("call"))
    stage.coordinator.poll()
    number = stage.committed().id
    stage.coordinator.taken(0, Taken(number, True))
    stage.take()
    stage.coordinator.worker_done(0)
    assert stage.take() == []
    assert stage.coordinator.busy
    stage.coordinator.saved(0, Saved(number, "path", ""))
    assert not stage.coordinator.busy


@pytest.mark.parametrize(
    ("triggers", "sentence"),
    [
        (Triggers(every_steps=-1), "every_steps = -1: must be 0 or more"),
        (Triggers(every_s=-0.5), "every_s = -0.5: must be at least 0 and less than 1000000000"),
        (Triggers(grace_s=-1), "grace_s = -1: must be from 0 to 3600"),
        (Triggers(on_usr1="stop"), "on_usr1 = 'stop': must be one of continue, exit"),
    ],
)
def test_impossible_triggers_are_refused(triggers, sentence):
    with pytest.raises(ConfigError, match=sentence):
        triggers.check()


def test_a_worker_agrees_only_to_clocks_that_are_to_come():
    cut = PendingCut()
    assert cut.take(Propose(1, 5), 5) == Agreed(1, False, 5)
    assert cut.pending is None
    assert cut.take(Propose(2, 6), 5) == Agreed(2, True, 5)
    assert cut.pending == Propose(2, 6)
    assert cut.take(Abandon(1), 5) is None
    assert cut.pending == Propose(2, 6)
    assert cut.take(Commit(2, 6), 6) is None
    assert cut.pending == Commit(2, 6)
    cut.take(Abandon(2), 6)
    assert cut.pending is None
    # Records of a worker that leaves may wait for ticks behind a cut at an earlier clock.
    cut.finished = True
    assert cut.take(Propose(3, 8), 9) == Agreed(3, False, 9)
    assert cut.take(Propose(4, 9), 9) == Agreed(4, True, 9)
    cut.take(Commit(4, 9), 9)
    assert cut.pending is None
    assert cut.take(Propose(5, 10), 9) == Agreed(5, True, 9)
    assert cut.pending is None


def test_before_the_first_heartbeat_a_cut_is_proposed_after_the_clock_of_the_start():
    stage = Stage()
    stage.coordinator.begin_at(1000)
    stage.coordinator.ask(Ask("call", 0.0, 0))
    assert stage.proposed().clock > 1000


@pytest.mark.parametrize("answers_first", [True, False])
def test_a_worker_that_has_finished_at_a_later_clock_refuses_a_proposal(
    answers_first: bool,
) -> None:
    """Servers may have its pushes of that clock without having applied them."""
    stage = Stage(n_workers=3)
    stage.coordinator.ask(Ask("call"))
    proposal = stage.proposed()
    stage.coordinator.agreed(0, Agreed(proposal.id, True, 0))
    steps = [
        lambda: stage.coordinator.agreed(1, Agreed(proposal.id, False, proposal.clock + 1)),
        lambda: stage.coordinator.worker_done(1),
    ]
    for step in steps if answers_first else reversed(steps):
        step()
    assert stage.take() == []
    stage.coordinator.agreed(2, Agreed(proposal.id, True, 0))
    assert stage.take() == [(worker, Abandon(proposal.id)) for worker in (0, 2)]
    # The next proposal goes to the workers at work, at a clock behind that of all.
    stage.coordinator.poll()
    sent = stage.take()
    assert [worker for worker, _ in sent] == [0, 2]
    later = sent[0][1]
    assert isinstance(later, Propose)
    assert later.clock > proposal.clock + 1
    for worker in (0, 2):
        stage.coordinator.agreed(worker, Agreed(later.id, True, 0))
    commit = Commit(later.id, later.clock)
    assert stage.take() == [("servers", commit), (0, commit), (2, commit)]


def test_answers_of_workers_take_the_same_time_for_any_number_of_them() -> None:
    def calls(n_workers: int) -> int:
        stage = Stage(n_workers=n_workers)
        stage.coordinator.ask(Ask("call"))
        proposal = stage.proposed()
        count = 0

        def profile(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        # The garbage collector may call functions of other libraries.
        gc.disable()
        sys.setprofile(profile)
        try:
            stage.coordinator.agreed(0, Agreed(proposal.id, True, 0))
            stage.coordinator.poll()
            stage.coordinator.worker_done(1)
        finally:
            sys.setprofile(None)
            gc.enable()
        return count

    assert calls(3) == calls(300)
