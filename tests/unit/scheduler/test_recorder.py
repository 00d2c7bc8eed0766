"""The files that the recorder of a supervised run writes, and failures to write them."""

from __future__ import annotations

import errno
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from job_entries import complete_statistics

from mpips.mpi.messages import Evaluated
from mpips.rundir import directory, thinning
from mpips.rundir.directory import RunFolder, Supervised, replace_json
from mpips.rundir.files import Lease, RankPlace, StartPoint
from mpips.scheduler import recorder as module
from mpips.scheduler.rank_table import RankTable
from mpips.scheduler.recorder import ReplacedError, RunRecorder

RANKS = [RankPlace(rank=0, role="scheduler", host="here", pid=1)]


def statistics_with(checkpoint: dict[str, Any]) -> dict[str, Any]:
    workers = [{"worker": 0, "clock": 12}, {"worker": 1, "clock": 10}]
    return complete_statistics([{"server": 0, "checkpoint": checkpoint}], workers, {})


STATISTICS = statistics_with({"path": "step-50"})


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
    assert status.progress.in_memory


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

    monkeypatch.setattr(directory, "replace_json", no_room)
    record.look({3: 9})
    assert alive.stat().st_mtime > 1
    assert "No space left on device" in capsys.readouterr().err


def test_a_damaged_status_ends_no_attempt(run: Supervised) -> None:
    """Such as a supervisor leaves which finds it on a full disk."""
    run.folder.status_file.write_bytes(b"")
    begin(run)
    status = run.folder.status()
    assert status is not None
    assert (status.state, status.restarts) == ("running", 0)


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
    begin(run).finish(statistics_with({"error": "disk full"}))
    assert run.folder.finished() is None


def test_files_that_cannot_be_written_do_not_stop_training(
    run: Supervised, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = begin(run)

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "replace_json", full)
    monkeypatch.setattr(directory, "replace_json", full)
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


def test_the_statistics_of_all_ranks_are_in_the_run_directory(run: Supervised) -> None:
    begin(run).finish(STATISTICS)
    assert json.loads(run.folder.statistics_file.read_text()) == STATISTICS


class Recorded:
    """A recorder of many ranks, in time that the test sets, and the files that it replaces."""

    def __init__(self, run: Supervised, n_ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "INTERVAL_S", 1.0)
        self.now = 0.0
        self.replaced: Counter[str] = Counter()
        self.sizes: dict[str, int] = {}

        def replace(path: Path, value: object, **options: bool) -> None:
            replace_json(path, value, **options)
            self.replaced[path.name] += 1
            self.sizes[path.name] = path.stat().st_size

        monkeypatch.setattr(module, "replace_json", replace)
        monkeypatch.setattr(directory, "replace_json", replace)
        places = [RankPlace(rank=r, role=f"worker {r}", host="a", pid=r) for r in range(n_ranks)]
        self.recorder = RunRecorder(
            run, RankTable(places), StartPoint(), clock=lambda: self.now, timeout_s=300.0
        )
        self.replaced.clear()

    def pass_seconds(self, n: int) -> Counter[str]:
        """Look once a second for this many seconds; return how often each file was replaced."""
        for _ in range(n):
            self.now += 1.0
            self.recorder.look({})
        found = Counter(self.replaced)
        self.replaced.clear()
        return found


def test_places_are_written_once_and_are_part_of_the_status(
    run: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(run, 3, monkeypatch)
    assert recorded.pass_seconds(10) == {"status.json": 10, "ranks.json": 10}
    assert "ranks" not in json.loads(run.folder.status_file.read_text())
    status = run.folder.status()
    assert status is not None
    assert [place.pid for place in status.ranks] == [0, 1, 2]


def test_the_rows_of_many_ranks_are_written_less_often(
    run: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(run, 5000, monkeypatch)
    assert recorded.pass_seconds(30) == {"status.json": 30, "ranks.json": 3}
    ranks = run.folder.ranks()
    assert ranks is not None
    assert (len(ranks.ranks), ranks.interval_s, ranks.heartbeat_s) == (5000, 10.0, 10.0)


def test_the_status_is_as_long_for_any_number_of_ranks(
    run: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    for n_ranks in (3, 3000):
        recorded = Recorded(run, n_ranks, monkeypatch)
        recorded.pass_seconds(1)
        sizes.append(recorded.sizes["status.json"])
    assert abs(sizes[1] - sizes[0]) <= 8


def test_old_lines_of_the_metrics_are_merged_by_the_attempt_that_holds_the_lease(
    run: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinning, "_FULL_S", 60.0)
    now = 1_700_000_000.0
    monkeypatch.setattr(module.time, "time", lambda: now)
    record = begin(run)
    for _ in range(1300):
        now += 1.0
        record.report(0, 2, 1.0)
        record.look({3: 1})
    lines = [json.loads(x) for x in run.folder.metrics_file.read_text().splitlines()]
    # Two rewrites, 600 s apart, have merged all but the lines since the last one.
    assert len(lines) < 120 + 110
    assert lines[-1]["samples"] == 2600
    assert {line["loss"] for line in lines} == {0.5}
    before = [line["samples"] for line in lines]
    lease(run.folder, 3)
    now += 700.0
    with pytest.raises(ReplacedError):
        record.look({3: 2})
    after = [json.loads(x)["samples"] for x in run.folder.metrics_file.read_text().splitlines()]
    assert after == before


def test_merging_that_fails_counts_no_sample_twice(
    run: Supervised, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("mpips.scheduler.metrics_file.thin_file", full)
    record = begin(run)
    for clock in range(3):
        record.report(0, 10, 5.0)
        record.look({3: clock})
    lines = [json.loads(x) for x in run.folder.metrics_file.read_text().splitlines()]
    assert [(line["samples"], line["loss"]) for line in lines] == [(10, 0.5), (20, 0.5), (30, 0.5)]
    assert "No space left" in capsys.readouterr().err
    assert run.folder.status() is not None


def test_a_very_long_file_is_left_as_it_is(
    run: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = b'{"time_s":%d,"generation":0,"samples":%d,"loss":1.0,"samples_per_s":8.0}\n'
    before = b"".join(line % (1000 + i, i + 1) for i in range(100))
    run.folder.metrics_file.write_bytes(before)
    monkeypatch.setattr("mpips.scheduler.metrics_file._MOST_BYTES", 1000)
    record = begin(run)
    record.look({})
    assert run.folder.metrics_file.read_bytes() == before
    monkeypatch.setattr("mpips.scheduler.metrics_file._MOST_BYTES", 1 << 20)
    begin(run).look({})
    assert len(run.folder.metrics_file.read_bytes().splitlines()) == 1
