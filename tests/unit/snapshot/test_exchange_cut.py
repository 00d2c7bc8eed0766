"""A request for another size: the cut goes into the exchange, or into a file with the reason."""

from __future__ import annotations

import pytest
from coordinator_rig import Stage
from simulated_time import SimulatedTime

from mpips.errors import LeavingError
from mpips.model.best_value import BestValue
from mpips.mpi.messages import Ask, Commit, Saved, Taken
from mpips.recovery.exchange import Exchange
from mpips.rundir.requests import SCALE, SCALE_IN_MEMORY

FOLDER = "/dev/shm/the-exchange"


class Folder(Exchange):
    """An exchange without files."""

    def __init__(self, why_not: str = "") -> None:
        super().__init__("", why_not)
        self.opened = 0

    def open(self) -> str:
        self.opened += 1
        return "" if self.why_not else FOLDER

    def refuse(self, why: str) -> None:
        self.why_not = why


def asked(why_not: str = "", reason: str = SCALE_IN_MEMORY) -> Stage:
    """A stage of an asynchronous job that is asked for another size."""
    stage = Stage(common=False, exchange=Folder(why_not))
    stage.coordinator.ask(Ask("end", 100.0, why=reason))
    stage.coordinator.poll()
    return stage


def ended(stage: Stage, commit: Commit, error: str = "") -> LeavingError | None:
    """Write the cut; return the error by which the job leaves, if it does."""
    try:
        stage.write(commit.id, error)
    except LeavingError as leaving:
        return leaving
    return None


def orders(stage: Stage) -> list[Commit]:
    """The orders to cut that have been sent."""
    return [message for _, message in stage.take() if isinstance(message, Commit)]  # type: ignore[misc, attr-defined]


def test_the_cut_goes_into_the_exchange_and_the_job_leaves() -> None:
    stage = asked()
    # Servers and workers, who write images, get the folder.
    sent = orders(stage)
    assert len(sent) == 1 + stage.n_workers
    assert {commit.folder for commit in sent} == {FOLDER}
    leaving = ended(stage, sent[0])
    assert leaving is not None
    assert leaving.in_memory
    assert str(leaving) == "mpips scale: shared memory holds the job"
    # It is no checkpoint.
    assert stage.coordinator.statistics["written"] == 0
    assert "path" not in stage.coordinator.statistics


def test_servers_that_cannot_write_it_write_a_file_at_once() -> None:
    stage = asked()
    commit = orders(stage)[0]
    assert ended(stage, commit, "there is too little memory") is None
    stage.coordinator.poll()
    again = orders(stage)[0]
    assert (again.id, again.folder) == (commit.id + 1, "")
    leaving = ended(stage, again)
    assert leaving is not None
    assert not leaving.in_memory
    assert str(leaving) == (
        "mpips scale: wrote checkpoint path, not shared memory: there is too little memory"
    )
    assert stage.coordinator.statistics["written"] == 1
    assert not stage.warnings


def test_where_there_can_be_none_the_file_has_the_reason() -> None:
    stage = asked("the ranks are on 2 nodes")
    [first, *_] = orders(stage)
    assert first.folder == ""
    leaving = ended(stage, first)
    assert leaving is not None
    assert str(leaving).endswith(", not shared memory: the ranks are on 2 nodes")
    assert not leaving.in_memory


def test_a_checkpoint_under_way_carries_the_job() -> None:
    stage = Stage(common=False, exchange=Folder())
    stage.coordinator.ask(Ask("call"))
    stage.coordinator.poll()
    [first, *_] = orders(stage)
    stage.coordinator.ask(Ask("end", 100.0, why=SCALE_IN_MEMORY))
    leaving = ended(stage, first)
    assert leaving is not None
    assert not leaving.in_memory
    assert str(leaving).endswith("not shared memory: it was being written when the request came")


def test_a_cut_that_is_given_up_is_tried_again_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimulatedTime(monkeypatch)
    stage = asked()
    [first, *_] = orders(stage)
    stage.coordinator.taken(0, Taken(first.id, False))
    for server in range(stage.n_servers):
        stage.coordinator.saved(server, Saved(first.id, "", "given up"))
    stage.take()
    now.pass_by(60.0)
    stage.coordinator.poll()
    again = orders(stage)[0]
    assert (again.id, again.folder) == (first.id + 1, FOLDER)


def test_no_other_cut_opens_an_exchange() -> None:
    exchange = Folder()
    stage = Stage(common=False, exchange=exchange)
    stage.coordinator.ask(
        Ask("best", best=BestValue(metric="loss", value=1.0, higher=False, epoch=1))
    )
    stage.coordinator.poll()
    assert {commit.folder for commit in orders(stage)} == {""}
    assert asked(reason="SIGTERM").coordinator._exchange.opened == 0  # type: ignore[attr-defined]
    by_file = asked(reason=SCALE)
    leaving = ended(by_file, orders(by_file)[0])
    assert str(leaving) == "mpips scale: wrote checkpoint path"
    assert exchange.opened == 0


def test_a_signal_after_the_request_gets_a_file() -> None:
    stage = asked()
    [first, *_] = orders(stage)
    # The allocation may end, and with it the memory of the node.
    stage.coordinator.ask(Ask("end", 200.0, why="SIGTERM"))
    assert ended(stage, first) is None
    stage.coordinator.poll()
    again = orders(stage)[0]
    assert (again.id, again.folder) == (first.id + 1, "")
    leaving = ended(stage, again)
    assert leaving is not None
    assert not leaving.in_memory
    assert str(leaving) == "SIGTERM: wrote checkpoint path, exit 75; run again to continue"


def test_a_supervised_job_leaves_the_command_that_continues_to_its_supervisor() -> None:
    stage = Stage(common=False, again="")
    stage.coordinator.ask(Ask("end", 100.0, why="SIGTERM"))
    stage.coordinator.poll()
    leaving = ended(stage, orders(stage)[0])
    assert str(leaving) == "SIGTERM: wrote checkpoint path, exit 75"
