"""The job of a library in a script, with a library that counts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from script_rig import script_job, wait_for_checkpoint

import mpips
from mpips.errors import ConfigError
from mpips.session.script import Script
from mpips.session.script_job import ScriptJob
from mpips.snapshot import cut
from mpips.worker.worker import Worker

TABLE = mpips.DenseTable("t", (2,), optimizer=mpips.SGD(1.0))


@pytest.fixture(autouse=True)
def _planned_by_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan a checkpoint some clocks ahead, however fast the script is, so that none is left out."""
    monkeypatch.setattr(cut, "_MARGIN_S", 0.0)


class CrashError(Exception):
    """The end of a script in the middle."""


class CountingJob(ScriptJob):
    """A library whose steps push ones; it notes its calls."""

    library = "mpips.counting"
    first_use = "the first count"

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.calls: list[Any] = []

    def declare(self) -> None:
        self.calls.append("declare")
        self.script.declare(TABLE)

    def open(self, worker: Worker) -> None:
        super().open(worker)
        self.calls.append("open")

    def position(self) -> dict[str, Any]:
        return {**super().position(), "square": self.steps**2}

    def resume(self, cursor: Mapping[str, Any]) -> None:
        super().resume(cursor)
        self.calls.append(("resume", cursor["square"]))

    def before_clock(self) -> None:
        self.calls.append("before clock")

    def begin_step(self, worker: Worker) -> None:
        self.calls.append(("begin", self.steps))

    def step(self) -> None:
        self.start().table("t").push(np.ones(2, np.float32))
        self.note_step()


class OtherJob(ScriptJob):
    """Another library."""

    library = "mpips.other"


class Part:
    """A part that takes its handle."""

    def __init__(self) -> None:
        self.opened: list[Any] = []

    def open(self, worker: Worker) -> None:
        self.opened.append(worker.table("t"))


def test_the_first_start_opens_parts_and_begins():
    with script_job():
        job, part = CountingJob.of_script("a test"), Part()
        job.add(part)
        job.check_new(object(), Part)
        assert not job.has_started
        assert job.start() is job.start()
        assert job.has_started
        assert CountingJob.of_script("a test") is job
    assert job.calls == ["declare", "open", ("begin", 0)]
    assert len(part.opened) == 1


def test_a_step_ends_its_clock_once_with_the_cursor_of_its_end():
    with script_job() as script:
        job = CountingJob.of_script("a test")
        job.step()
        worker = job.start()
        assert (worker.now, job.calls[2:]) == (0, [("begin", 0)])
        job.settle()
        job.settle()
        assert (worker.now, job.calls[3:]) == (1, ["before clock", ("begin", 1)])
        job.step()
        job.settle({"square": 5})
        assert script.worker is not None
        assert script.worker.cursor == {"counting": 1, "steps": 2, "square": 5}
        job.step()
        assert job.settled_steps() == worker.now == 3


def test_the_end_of_the_script_ends_the_open_clock_and_compares_steps():
    found: list[tuple[str, int, str]] = []
    with script_job() as script:
        script.compare_steps = lambda *counted: found.append(counted)  # type: ignore[method-assign]
        job = CountingJob.of_script("a test")
        job.step()
    assert not job.is_open
    assert found == [("the end of the script", 1, "")]


def train(folder: Path, crash_at: int = -1) -> list[Any]:
    with script_job(save=folder, every_steps=3) as script:
        job = CountingJob.of_script("a test")
        while job.settled_steps() < 8:
            if job.steps == crash_at:
                raise CrashError
            job.step()
            job.settle()
            if job.steps % 3 == 0:
                wait_for_checkpoint(script, folder, job.steps, "t")
        np.testing.assert_array_equal(job.start().table("t").pull(), [-8, -8])
    return job.calls


def test_a_restart_resumes_at_the_cursor_before_its_first_step(tmp_path):
    with pytest.raises(CrashError):
        train(tmp_path, crash_at=7)
    assert train(tmp_path)[:4] == ["declare", "open", ("resume", 36), ("begin", 6)]


def test_a_script_that_catches_the_error_of_its_start_does_not_train(tmp_path):
    with pytest.raises(CrashError):
        train(tmp_path, crash_at=4)
    with script_job(save=tmp_path) as script:
        script.declare(TABLE)
        job = OtherJob.of_script("a test")
        for text in (r"^the checkpoint is of a script without mpips\.other: use", "did not start"):
            with pytest.raises(ConfigError, match=text):
                job.start()
        assert not job.has_started


def test_models_are_prepared_once_and_before_the_start():
    with script_job():
        job = CountingJob.of_script("a test")
        with pytest.raises(ConfigError, match=r"^the model has been prepared already"):
            job.check_new(Part(), Part)
        job.start()
        with pytest.raises(
            ConfigError, match=r"too late: the job has started with the first count"
        ):
            job.check_new(object(), Part)


def test_one_library_of_a_script_ends_its_clocks():
    with script_job():
        CountingJob.of_script("a test")
        with pytest.raises(
            ConfigError, match=r"uses mpips\.counting and mpips\.other, which both end"
        ):
            OtherJob.of_script("a test")
