"""Cuts of the best values, for which all workers wait."""

from __future__ import annotations

import pytest
from coordinator_rig import Stage
from simulated_time import SimulatedTime

from mpips.errors import LeavingError
from mpips.model.best_value import BestValue
from mpips.mpi.messages import (
    HERE,
    Abandon,
    Ask,
    BestProgress,
    Commit,
    Saved,
    Taken,
    Waits,
    Write,
)

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
    now = SimulatedTime(monkeypatch)
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
        now.pass_by(15.0)
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
