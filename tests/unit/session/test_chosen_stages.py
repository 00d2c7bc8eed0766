"""The choice of stages before the start: who reads, measures and stores it, and workers that do not agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoints import Contents

from mpips.errors import ConfigError
from mpips.rundir.directory import RunFolder
from mpips.rundir.files import StagesChoice
from mpips.session.chosen_stages import StoredStages, chosen_stages, entry_of
from mpips.session.script_program import Declared, EndedEarlyError

CHOICE = StagesChoice(digest="d", ends=(2, 5), reasons=("two stages",))
OTHER = StagesChoice(digest="d", ends=(3, 5), reasons=("other stages",))


class Rank:
    """One of several ranks; the other ones give the rows that the test plans, in each step."""

    def __init__(self, worker: int | None, is_scheduler: bool, *others: list[Any]) -> None:
        self.worker, self.is_scheduler = worker, is_scheduler
        self._others = iter(others)
        self.steps: list[str] = []
        self.rows: list[Any] = []

    def agree(self, what: str, work: Callable[[], Any], lengthy: bool = False) -> list[Any]:
        self.steps.append(what)
        self.rows.append(work())
        return [self.rows[-1], *next(self._others)]


class Stored:
    """A place that has a choice, or none."""

    def __init__(self, choice: StagesChoice | None = None, note: str = "") -> None:
        self.choice, self.note = choice, note
        self.written: list[StagesChoice] = []

    def read(self, digest: str) -> StagesChoice | None:
        return self.choice if self.choice is not None and self.choice.digest == digest else None

    def write(self, choice: StagesChoice) -> str:
        self.written.append(choice)
        return self.note


READ, MEASURE, WRITE = (
    "reading the stages of the run",
    "measuring the stages of the model",
    "writing stages.json",
)


def never() -> StagesChoice:
    raise AssertionError("this rank does not measure")


def test_worker_0_measures_what_is_not_stored() -> None:
    stored: Any = Stored(OTHER)
    rank: Any = Rank(0, False, [None], [None], ["a note"])
    found = chosen_stages(rank, "d", stored, lambda: CHOICE)
    assert found == (CHOICE, ["two stages", "a note"])
    assert rank.steps == [READ, MEASURE, WRITE]
    assert rank.rows[0] is None
    assert not stored.written, "the scheduler stores it"


def test_another_worker_and_the_scheduler_do_not_measure() -> None:
    plain = entry_of(CHOICE)
    rank: Any = Rank(1, False, [None], [plain], [""])
    assert chosen_stages(rank, "d", Stored(), never) == (CHOICE, ["two stages"])  # type: ignore[arg-type]
    stored: Any = Stored(StagesChoice(digest="other", ends=(1,)), "cannot be written")
    scheduler: Any = Rank(None, True, [None], [plain], [""])
    found = chosen_stages(scheduler, "d", stored, None)
    assert found == (CHOICE, ["two stages", "cannot be written"])
    assert stored.written == [CHOICE]


def test_a_stored_choice_is_taken_and_nothing_is_measured() -> None:
    stored: Any = Stored(OTHER)
    scheduler: Any = Rank(None, True, [None], [""])
    expected = OTHER, ["as before in this run: other stages"]
    assert chosen_stages(scheduler, "d", stored, None) == expected
    assert scheduler.steps == [READ, WRITE]
    worker: Any = Rank(0, False, [entry_of(OTHER)], [""])
    assert chosen_stages(worker, "d", Stored(), never) == expected  # type: ignore[arg-type]


def run_of(folder: RunFolder) -> Any:
    return SimpleNamespace(folder=folder)


def with_cut(folder: Path, step: int, cut: Any) -> Path:
    """Write a checkpoint whose workers have a cut in their cursors."""

    class WithCut(Contents):
        def head(self, step: int = 1234, generation: int = 1) -> Any:
            found = super().head(step, generation)
            for one in found.workers:
                one.cursor["cut"] = cut
            return found

    WithCut().write(folder, step)
    return folder / f"step-{step:012d}"


def test_a_choice_is_that_of_the_run_and_else_that_of_its_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "job")
    other = tmp_path / "other"
    path = with_cut(other, 5, entry_of(OTHER))
    stored = StoredStages(run_of(folder), folder.checkpoints, str(path), True)
    assert stored.read("another") is None
    assert stored.read("d") == OTHER
    with_cut(folder.checkpoints, 7, entry_of(CHOICE))
    assert stored.read("d") == CHOICE, "an own checkpoint is newer than the one of `resume`"
    assert stored.write(OTHER) == ""
    assert stored.read("d") == OTHER
    assert stored.read("another") is None
    assert StoredStages(None, folder.checkpoints, "auto", False).read("d") == CHOICE
    assert StoredStages(None, folder.checkpoints, "never", False).read("d") is None
    assert StoredStages(None, None, "auto", False).read("d") is None
    assert StoredStages(None, other, str(path), False).read("d") == OTHER


def test_the_choice_of_a_run_is_written_once(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "job")
    stored = StoredStages(run_of(folder), folder.checkpoints, "auto", True)
    assert stored.write(CHOICE) == ""
    before = folder.stages_file.stat().st_ino
    assert stored.write(CHOICE) == ""
    assert folder.stages_file.stat().st_ino == before
    folder.stages_file.write_text("[")  # damaged: measured anew
    assert stored.read("d") is None
    assert stored.write(OTHER) == ""
    assert stored.read("d") == OTHER


def test_a_run_directory_that_takes_no_file_is_told(tmp_path: Path) -> None:
    gone = RunFolder(tmp_path / "gone")
    note = StoredStages(run_of(gone), None, "auto", True).write(CHOICE)
    assert note.startswith(str(gone.stages_file))
    assert "a restart measures the stages anew" in note


@pytest.mark.parametrize("cut", [None, {}, {"digest": 3}, [1], "text"])
def test_a_checkpoint_without_a_choice_has_none(tmp_path: Path, cut: Any) -> None:
    with_cut(tmp_path, 5, cut)
    assert StoredStages(None, tmp_path, "auto", False).read("d") is None


def row(worker: int, digest: str = "", request: str = "") -> dict[str, Any]:
    return {"worker": worker, "digest": digest, "request": request}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [row(0, request="a"), row(1, request="b")],
            "worker 1 prepares another model, or another example",
        ),
        (
            [row(0, request="a"), row(1, "t")],
            "worker 0 prepares a model with AutoStages, while worker 1 beg",
        ),
        (
            [row(0, "t"), row(1, request="a")],
            "worker 1 prepares a model with AutoStages, while worker 0 beg",
        ),
        ([row(0, request="a"), row(1)], "while worker 1 has ended its script"),
    ],
)
def test_workers_that_do_not_ask_alike_end_with_one_message(rows: Any, message: str) -> None:
    server: Any = Rank(None, True, rows)
    with pytest.raises(ConfigError) as caught:
        Declared(Stored).meet(server, False)  # type: ignore[arg-type]
    assert message in str(caught.value)
    asking = next(one["worker"] for one in rows if one["request"])
    worker: Any = Rank(asking, False, [one for one in rows if one["worker"] != asking])
    request = rows[asking]["request"]
    with pytest.raises(ConfigError) as caught:
        Declared(Stored).ask_stages(worker, request, never)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_a_server_answers_questions_until_the_first_pull() -> None:
    asking = [row(0, request="d"), row(1, request="d")]
    plain = entry_of(CHOICE)
    steps = [asking, [None], [plain], [""]]
    ended = [row(0), row(1)]
    server: Any = Rank(None, True, *steps, asking, [plain], [""], ended)
    declared = Declared(Stored)  # type: ignore[arg-type]
    with pytest.raises(EndedEarlyError):
        declared.meet(server, False)
    assert server.steps.count(MEASURE) == 1
    assert declared.notes == ["as before in this run: two stages"]
