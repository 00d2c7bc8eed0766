"""The files that the recorder of a supervised run writes, and failures to write them."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from mpips.mpi.messages import Evaluated
from mpips.rundir.directory import Lease, RankPlace, RunFolder, StartPoint, Supervised, replace_json
from mpips.scheduler import recorder as module
from mpips.scheduler.rank_table import RankTable
from mpips.scheduler.recorder import ReplacedError, RunRecorder

RANKS = [RankPlace(rank=0, role="scheduler", host="here", pid=1)]
STATISTICS: dict[str, Any] = {
    "servers": [{"checkpoint": {"path": "step-50"}}],
    "workers": [{"worker": 0, "clock": 12}, {"worker": 1, "clock": 10}],
}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.0)


@pytest.fixture
def run(tmp_path: Path) -> Supervised:
    folder = RunFolder.create(tmp_path, "job")
    lease(folder, 2)
    info = folder.info()
    return Supervised(folder, info.run_id, info.token, 2)


def lease(folder: RunFolder, generation: int) -> None:
    replace_json(
        folder.lease_file, Lease(generation=generation, host="h", pid=1, time_s=time.time())
    )


def begin(run: Supervised, step: int = 38) -> RunRecorder:
    return RunRecorder(
        run, RankTable(RANKS), StartPoint(source="checkpoint", path="p", step=step, epoch=1)
    )


def test_status_shows_the_progress_of_the_run(run: Supervised) -> None:
    record = begin(run)
    record.report(2, 64, 32.0)
    record.saved("step-40")
    record.look({3: 7, 4: 5})
    status = run.folder.status()
    assert status is not None
    assert (status.state, status.generation) == ("running", 2)
    assert status.ranks == tuple(RANKS)
    assert status.checkpoint == "step-40"
    p = status.progress
    assert (p.epoch, p.step, p.updates, p.samples, p.loss) == (2, 45, 12, 64, 0.5)


def test_what_memory_would_bring_back_is_the_least_step_of_all_workers(run: Supervised) -> None:
    record = RunRecorder(
        run, RankTable(RANKS), StartPoint(source="memory", step=38), 30, in_memory=True
    )
    found = []
    for clocks in ({}, {3: 0, 4: 0}, {3: 37, 4: 35}):
        record.look(clocks)
        status = run.folder.status()
        assert status is not None
        found.append(status.progress.recoverable)
    assert found == [38, 38, 43]


def test_the_supervisor_sees_a_scheduler_whose_disk_is_full(
    run: Supervised, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run.logs.mkdir()
    alive = run.folder.alive_file(2)
    alive.touch()
    record = begin(run)
    os.utime(alive, (1, 1))

    def no_room(path: Path, value: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(module, "replace_json", no_room)
    record.look({3: 9})
    assert alive.stat().st_mtime > 1
    assert "No space left on device" in capsys.readouterr().err


def test_every_sample_is_in_one_line_of_the_metrics(run: Supervised) -> None:
    record = begin(run)
    for i in range(3):
        record.report(i, 10, 5.0)
        record.report(i, 10, 15.0)
        record.look({3: i})
    record.look({3: 9})
    lines = [json.loads(x) for x in run.folder.metrics_file.read_text().splitlines()]
    assert [line["samples"] for line in lines] == [20, 40, 60]
    assert [line["loss"] for line in lines] == [1.0] * 3
    assert {line["generation"] for line in lines} == {2}
    # A later attempt adds to the file.
    lease(run.folder, 3)
    later = begin(Supervised(run.folder, run.run_id, run.token, 3))
    later.report(0, 1, 1.0)
    later.look({})
    assert len(run.folder.metrics_file.read_text().splitlines()) == 4


def test_writes_are_at_most_one_a_second(run: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 1.0)
    record = begin(run)
    before = run.folder.status_file.stat().st_mtime_ns
    for _ in range(1000):
        record.report(5, 1, 1.0)
        record.look({3: 1})
    assert run.folder.status_file.stat().st_mtime_ns == before


def test_a_replaced_scheduler_stops_and_writes_no_more(run: Supervised) -> None:
    record = begin(run)
    lease(run.folder, 3)
    before = run.folder.status_file.read_bytes()
    with pytest.raises(ReplacedError, match=r"attempt 2 of .* replaced by a later one"):
        record.look({3: 7})
    with pytest.raises(ReplacedError):
        record.finish(STATISTICS)
    assert run.folder.status_file.read_bytes() == before
    assert run.folder.finished() is None


def test_the_mark_holds_the_last_step_and_checkpoint(run: Supervised) -> None:
    begin(run).finish(STATISTICS)
    mark = run.folder.finished()
    assert mark is not None
    assert (mark.generation, mark.step, mark.checkpoint) == (2, 50, "step-50")


def test_a_run_whose_last_checkpoint_failed_is_not_finished(run: Supervised) -> None:
    begin(run).finish({**STATISTICS, "servers": [{"checkpoint": {"error": "disk full"}}]})
    assert run.folder.finished() is None


def test_files_that_cannot_be_written_do_not_stop_training(
    run: Supervised, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = begin(run)

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "replace_json", full)
    for clock in range(5):
        record.report(0, 1, 1.0)
        record.look({3: clock})
    assert capsys.readouterr().err.count("training continues") == 1
    # A run is not finished without its mark.
    with pytest.raises(OSError, match="No space left"):
        record.finish(STATISTICS)


def test_an_evaluation_is_a_line_of_metrics(run: Supervised) -> None:
    rank_table = RankTable(RANKS)
    RunRecorder(run, rank_table, StartPoint())
    rank_table.evaluated(Evaluated(5, 120, {"accuracy": 0.5, "auc": float("nan")}))
    line = json.loads(run.folder.metrics_file.read_text())
    assert (line["epoch"], line["step"], line["generation"]) == (4, 120, run.generation)
    assert line["test"] == {"accuracy": 0.5, "auc": None}
