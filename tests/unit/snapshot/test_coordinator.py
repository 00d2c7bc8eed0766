"""The coordinator of cuts, message by message."""

from __future__ import annotations

import gc
import itertools
import sys
import time

import pytest

from mpips.config.triggers import Triggers
from mpips.errors import ConfigError, LeavingError
from mpips.model.best_value import BestValue
from mpips.mpi.messages import (
    HERE,
    Abandon,
    Agreed,
    Ask,
    BestProgress,
    Commit,
    Propose,
    Saved,
    Taken,
    Waits,
    Write,
)
from mpips.mpi.pending import PendingCut
from mpips.snapshot.coordinator import Coordinator


class Stage:
    """A coordinator, the messages that it has sent, and the answers of workers and servers."""

    def __init__(
        self,
        triggers: Triggers = Triggers(),  # noqa: B008
        *,
        common: bool = True,
        n_workers: int = 2,
        n_servers: int = 2,
        before: int = 0,
        timeout_s: float = 60.0,
    ) -> None:
        self.sent: list[object] = []
        self.warnings: list[str] = []
        self.n_workers, self.n_servers = n_workers, n_servers
        self.coordinator = Coordinator(
            triggers,
            common,
            before,
            n_workers,
            n_servers,
            lambda worker, message: self.sent.append((worker, message)),
            lambda message: self.sent.append(("servers", message)),
            timeout_s,
            self.warnings.append,
        )

    def take(self) -> list[object]:
        sent, self.sent = self.sent, []
        return sent

    def proposed(self) -> Propose:
        """Poll, and return the proposal that all workers must have received."""
        self.coordinator.poll()
        sent = self.take()
        assert [worker for worker, _ in sent] == list(range(self.n_workers))
        assert all(message == sent[0][1] for _, message in sent)
        assert isinstance(sent[0][1], Propose)
        return sent[0][1]

    def agree(self, number: int, *clocks: int, clock: int) -> None:
        for worker, now in enumerate(clocks):
            self.coordinator.agreed(worker, Agreed(number, now < clock, now))

    def committed(self) -> Commit:
        sent = self.take()
        assert sent[0] == ("servers", sent[0][1])
        assert {who for who, _ in sent[1:]} == set(range(self.n_workers))
        assert all(message == sent[0][1] for _, message in sent)
        assert isinstance(sent[0][1], Commit)
        return sent[0][1]

    def write(self, number: int, error: str = "") -> None:
        for server in range(self.n_servers):
            assert self.take() == []
            self.coordinator.taken(server, Taken(number, True))
        assert self.take() == [("servers", Write(number))]
        for server in range(self.n_servers):
            self.coordinator.saved(server, Saved(number, "" if error else "path", error))

    def whole(self, error: str = "") -> int:
        """Run one cut from proposal to end; return its clock."""
        proposal = self.proposed()
        self.agree(proposal.id, *[0] * self.n_workers, clock=proposal.clock)
        assert self.committed() == Commit(proposal.id, proposal.clock)
        self.write(proposal.id, error)
        return proposal.clock


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


def begun_again(stage: Stage, now: pytest.MonkeyPatch) -> int:
    """Return the number of the cut that follows a failed one, after a pause."""
    stage.take()
    stage.coordinator.poll()
    assert stage.take() == []
    later = time.monotonic() + 3600
    now.setattr(time, "monotonic", lambda: later)
    stage.coordinator.poll()
    return stage.committed().id


@pytest.mark.parametrize("reason", ["signal", "end"])
def test_a_requested_exit_is_asked_for_again_after_a_cut_that_failed_or_was_given_up(
    reason, monkeypatch
):
    stage = Stage(Triggers(on_usr1="exit"), common=False, n_servers=1)
    stage.coordinator.ask(Ask(reason, 100.0, why="SIGTERM"))
    stage.coordinator.poll()
    number = stage.committed().id
    stage.coordinator.taken(0, Taken(number, True))
    stage.coordinator.saved(0, Saved(number, "", "the disk is full"))
    assert "the disk is full; the job is still to end and tries again in" in stage.warnings[0]
    number = begun_again(stage, monkeypatch)
    stage.coordinator.taken(0, Taken(number, False))
    stage.coordinator.saved(0, Saved(number, "", "given up"))
    assert "a checkpoint was given up" in stage.warnings[1]
    assert "tries again in" in stage.warnings[1]
    number = begun_again(stage, monkeypatch)
    stage.coordinator.taken(0, Taken(number, True))
    with pytest.raises(LeavingError, match="SIGTERM: wrote checkpoint step-7, exit 75"):
        stage.coordinator.saved(0, Saved(number, "step-7", ""))
    assert stage.coordinator.statistics["failed"] == stage.coordinator.statistics["given_up"] == 1


def test_a_proposal_that_comes_to_nothing_does_not_end_a_requested_exit(monkeypatch):
    stage = Stage(n_servers=1, timeout_s=0.0)
    stage.coordinator.ask(Ask("end", 100.0, why="SIGTERM"))
    stage.proposed()
    stage.coordinator.poll()
    assert not stage.coordinator.busy
    stage.take()
    later = time.monotonic() + 3600
    monkeypatch.setattr(time, "monotonic", lambda: later)
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
    stage = Stage(common=False, n_servers=1)
    stage.coordinator.ask(Ask("end", 100.0, why="SIGTERM"))
    now, tries = time.monotonic(), []
    while len(tries) < 8:
        monkeypatch.setattr(time, "monotonic", lambda at=now: at)
        stage.coordinator.poll()
        if not stage.take():
            now += 0.25
            continue
        tries.append(now)
        number = len(tries)
        stage.coordinator.taken(0, Taken(number, True))
        stage.coordinator.saved(0, Saved(number, "", "no room"))
        stage.take()
    pauses = [b - a for a, b in itertools.pairwise(tries)]
    assert pauses[0] >= 1
    assert pauses == sorted(pauses)
    assert pauses[-1] == pauses[-2] <= 30


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
    cut.finished = True
    assert cut.take(Propose(3, 1), 9) == Agreed(3, True, 9)
    cut.take(Commit(3, 1), 9)
    assert cut.pending is None


def test_before_the_first_heartbeat_a_cut_is_proposed_after_the_clock_of_the_start():
    stage = Stage()
    stage.coordinator.begin_at(1000)
    stage.coordinator.ask(Ask("call", 0.0, 0))
    assert stage.proposed().clock > 1000


def test_a_worker_that_has_refused_and_then_finishes_is_not_counted() -> None:
    stage = Stage(n_workers=3)
    stage.coordinator.ask(Ask("call"))
    proposal = stage.proposed()
    stage.coordinator.agreed(0, Agreed(proposal.id, True, 0))
    stage.coordinator.agreed(1, Agreed(proposal.id, False, proposal.clock))
    stage.coordinator.worker_done(1)
    assert stage.take() == []
    stage.coordinator.worker_done(2)
    commit = Commit(proposal.id, proposal.clock)
    assert stage.take() == [("servers", commit), (0, commit)]


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


VALUE = BestValue(metric="auc", value=0.5, higher=True, epoch=3)
WAIT, GO = BestProgress(False), BestProgress(True, "path")


def to_workers(stage: Stage, message: object) -> list[object]:
    return [(worker, message) for worker in range(stage.n_workers)]


def best_cut(stage: Stage, number: int, error: str = "") -> None:
    """Run the cut of the best values, for which all workers wait."""
    sent = stage.take()
    assert sent[0] == ("servers", Commit(number, HERE, VALUE))
    assert sent[1:3] == to_workers(stage, Commit(number, HERE))
    assert sent[3:] in ([], to_workers(stage, WAIT))
    for server in range(stage.n_servers):
        stage.coordinator.taken(server, Taken(number, True))
    assert stage.take() == [("servers", Write(number))]
    for server in range(stage.n_servers):
        stage.coordinator.saved(server, Saved(number, "" if error else "path", error))


def test_the_workers_that_wait_for_the_best_values_go_on_when_they_are_durable():
    stage = Stage()
    stage.coordinator.ask(Ask("best", best=VALUE))
    stage.coordinator.poll()
    best_cut(stage, 1)
    assert stage.take() == to_workers(stage, GO)
    stage.coordinator.poll()
    assert stage.take() == []
    assert stage.coordinator.statistics["written"] == 1


@pytest.mark.parametrize("phase", ["proposed", "committed"])
@pytest.mark.parametrize("common", [True, False])
def test_a_cut_that_is_not_copied_gives_way_to_the_best_values(phase: str, common: bool):
    stage = Stage(common=common)
    stage.coordinator.ask(Ask("call"))
    if common:
        first = stage.proposed()
        if phase == "committed":
            stage.agree(first.id, 0, 0, clock=first.clock)
            stage.committed()
    else:
        stage.coordinator.poll()
        assert stage.committed() == Commit(1, 0)
    stage.coordinator.ask(Ask("best", best=VALUE))
    assert stage.take()[:2] == to_workers(stage, Abandon(1))
    for server in range(2 if phase == "committed" or not common else 0):
        stage.coordinator.saved(server, Saved(1, "", "given up"))
    stage.coordinator.poll()
    best_cut(stage, 2)
    assert stage.take() == to_workers(stage, GO)
    assert stage.warnings == []


def test_the_best_values_wait_for_a_checkpoint_that_is_being_written(
    monkeypatch: pytest.MonkeyPatch,
):
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stage = Stage(timeout_s=60.0)
    stage.coordinator.ask(Ask("call"))
    first = stage.proposed()
    stage.agree(first.id, 0, 0, clock=first.clock)
    stage.committed()
    for server in range(2):
        stage.coordinator.taken(server, Taken(first.id, True))
    stage.take()
    stage.coordinator.ask(Ask("best", best=VALUE))
    # The workers receive a message four times in their timeout.
    for _ in range(3):
        stage.coordinator.poll()
        assert stage.take() == to_workers(stage, WAIT)
        stage.coordinator.poll()
        assert stage.take() == []
        now += 15.0
    for server in range(2):
        stage.coordinator.saved(server, Saved(first.id, "path", ""))
    assert stage.take() == []
    stage.coordinator.poll()
    best_cut(stage, 2)
    assert stage.take() == to_workers(stage, GO)


def test_workers_go_on_without_best_values_that_cannot_be_written():
    stage = Stage()
    stage.coordinator.ask(Ask("best", best=VALUE))
    stage.coordinator.poll()
    best_cut(stage, 1, error="the disk is full")
    assert stage.take() == to_workers(stage, BestProgress(True))
    assert stage.warnings == ["the disk is full; training continues"]
    # A server that cannot copy.
    stage.coordinator.ask(Ask("best", best=VALUE))
    stage.coordinator.poll()
    stage.take()
    stage.coordinator.taken(0, Taken(2, False, "no memory"))
    stage.take()
    for server in range(2):
        stage.coordinator.saved(server, Saved(2, "", "given up"))
    assert stage.take() == to_workers(stage, BestProgress(True))


def test_a_job_that_is_to_end_ends_after_the_best_values():
    stage = Stage()
    stage.coordinator.ask(Ask("best", best=VALUE))
    stage.coordinator.poll()
    stage.coordinator.ask(Ask("end", 100.0, why="SIGTERM"))
    with pytest.raises(LeavingError, match="SIGTERM: wrote checkpoint path"):
        best_cut(stage, 1)


def test_a_gather_does_not_give_up_the_best_values():
    stage = Stage(common=False)
    stage.coordinator.ask(Ask("best", best=VALUE))
    stage.coordinator.poll()
    stage.coordinator.waits(0, Waits(1, "behind"))
    stage.coordinator.waits(1, Waits(1, "before"))
    stage.coordinator.waits(1, Waits(1, "over"))
    best_cut(stage, 1)
    assert stage.take() == to_workers(stage, GO)
