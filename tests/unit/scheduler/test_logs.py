"""CSV and TensorBoard forms of the metrics: columns, restarts, thinning, full disks."""

from __future__ import annotations

import csv
import errno
import time
from pathlib import Path
from typing import Any

import pytest
from job_entries import complete_statistics

from mpips.mpi.messages import Evaluated, Evaluation, Figures, Heartbeat, ReportDetails
from mpips.rundir import thinning
from mpips.rundir.directory import RunFolder, Supervised, replace_json
from mpips.rundir.files import Lease, RankPlace, StartPoint
from mpips.scheduler import csv_log, recorder
from mpips.scheduler.rank_table import RankTable
from mpips.scheduler.recorder import RunRecorder

RANKS = [
    RankPlace(rank=0, role="scheduler + server 0", host="a", pid=1),
    RankPlace(rank=1, role="worker 0", host="a", pid=2),
]
NOTHING = complete_statistics([{"server": 0}], [{"worker": 0, "clock": 0}], {})


class Attempts:
    """Attempts of one run, in time that the test sets."""

    def __init__(
        self, folder: Path, logs: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(recorder, "INTERVAL_S", 0.0)
        self.folder = RunFolder.create(folder, "job")
        self.logs = logs
        self.now = self.folder.info().created_s
        monkeypatch.setattr(time, "time", lambda: self.now)

    def begin(self, generation: int, step: int) -> None:
        """Begin an attempt at a step of the run; one before it is killed."""
        if generation:
            for log in self.recorder._metrics._logs:
                if (file := getattr(log, "_file", None)) is not None:
                    file.close()
        lease = Lease(generation=generation, host="h", pid=1, time_s=self.now)
        replace_json(self.folder.lease_file, lease)
        info = self.folder.info()
        run = Supervised(self.folder, info.run_id, info.token, generation)
        self.table = RankTable(RANKS)
        self.recorder = RunRecorder(
            run, self.table, StartPoint(step=step), clock=lambda: self.now, logs=self.logs
        )
        self.clock = 0

    def steps(self, n: int, loss: float, staleness: list[int] | None = None) -> None:
        """Train n steps of two samples, a second each."""
        for _ in range(n):
            self.now += 1.0
            self.clock += 1
            if staleness is not None:
                figures = Figures(at=float(self.clock), staleness=staleness)
                self.table.note_heartbeat(0, Heartbeat("", 0, figures))
            self.recorder.report(0, 2, 2 * loss)
            self.recorder.look({0: self.clock})

    def evaluate(self, step: int, data: Evaluation = "test", **metrics: float) -> None:
        self.table.evaluated(Evaluated(1, step, metrics, data))

    def rows(self, name: str) -> list[dict[str, str]]:
        with (self.folder.path / name).open() as file:
            return list(csv.DictReader(file))


def test_csv_is_one_series_over_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Attempts(tmp_path, ("csv",), monkeypatch)
    run.begin(0, 0)
    assert run.rows("metrics.csv") == []
    run.steps(6, 1.0)
    run.evaluate(3, accuracy=0.5, auc=float("nan"))
    run.evaluate(6, accuracy=0.6)
    assert [row["step"] for row in run.rows("metrics.csv")] == list("123456")
    run.begin(1, 4)
    run.steps(2, 3.0)
    rows = run.rows("metrics.csv")
    found = [(row["generation"], row["step"], row["loss"]) for row in rows]
    assert found == [("0", s, "1.0") for s in "1234"] + [("1", s, "3.0") for s in "56"]
    assert tuple(rows[0]) == csv_log.COLUMNS
    assert rows[0]["samples"] == "2"
    assert rows[0]["staleness"] == ""
    evaluations = run.rows("evaluations.csv")
    assert tuple(evaluations[0]) == csv_log.EVALUATION_COLUMNS
    assert {row["data"] for row in evaluations} == {"test"}
    # That of step 6 is taken back: the attempt trains step 6 again.
    assert [(row["step"], row["metric"], row["value"]) for row in evaluations] == [
        ("3", "accuracy", "0.5"),
        ("3", "auc", ""),
    ]


def test_an_attempt_that_evaluates_its_first_step_again_logs_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    run = Attempts(tmp_path, ("csv", "tensorboard"), monkeypatch)

    def rows() -> list[tuple[str, ...]]:
        names = ("generation", "step", "metric", "value")
        return [tuple(row[n] for n in names) for row in run.rows("evaluations.csv")]

    run.begin(0, 0)
    run.steps(4, 1.0)
    run.evaluate(4, accuracy=0.5)
    # Killed at the end of an epoch, once before and once after the evaluation is repeated.
    run.begin(1, 4)
    assert rows() == [("0", "4", "accuracy", "0.5")]
    run.begin(2, 4)
    run.evaluate(4, accuracy=0.5, auc=0.75)
    first = [("2", "4", "accuracy", "0.5"), ("2", "4", "auc", "0.75")]
    assert rows() == first
    run.steps(4, 1.0)
    run.evaluate(8, accuracy=0.625)
    assert rows() == [*first, ("2", "8", "accuracy", "0.625")]
    run.recorder.finish(NOTHING)
    found = accumulated(run.folder.path)
    assert [(e.step, e.value) for e in found.Scalars("test/accuracy")] == [(4, 0.5), (8, 0.625)]
    assert [(e.step, e.value) for e in found.Scalars("test/auc")] == [(4, 0.75)]
    assert [e.step for e in found.Scalars("train/loss")] == list(range(1, 9))


def test_validation_and_test_data_are_apart_in_all_forms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    monkeypatch.setattr(thinning, "_FULL_S", 60.0)
    run = Attempts(tmp_path, ("csv", "tensorboard"), monkeypatch)
    run.begin(0, 0)
    run.steps(4, 1.0)
    run.evaluate(4, "validation", auc=0.75)
    run.evaluate(4, auc=0.5)
    run.begin(1, 4)
    run.evaluate(4, "validation", auc=0.75)
    run.steps(700, 1.0)  # lines are merged; those of evaluations are not
    names = ("generation", "metric", "value", "data")
    rows = [tuple(row[name] for name in names) for row in run.rows("evaluations.csv")]
    assert rows == [("0", "auc", "0.5", "test"), ("1", "auc", "0.75", "validation")]
    assert all(row["loss"] == "1.0" for row in run.rows("metrics.csv"))
    run.recorder.finish(NOTHING)
    found = accumulated(run.folder.path)
    assert [(e.step, e.value) for e in found.Scalars("validation/auc")] == [(4, 0.75)]
    assert [(e.step, e.value) for e in found.Scalars("test/auc")] == [(4, 0.5)]


def test_csv_follows_the_merging_of_old_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinning, "_FULL_S", 60.0)
    run = Attempts(tmp_path, ("csv",), monkeypatch)
    run.begin(0, 0)
    run.steps(1300, 0.5)
    lines = run.folder.metrics_file.read_bytes().splitlines()
    rows = run.rows("metrics.csv")
    assert len(rows) == len(lines) < 250
    assert rows[-1]["samples"] == "2600"
    assert sorted(p.name for p in run.folder.path.iterdir() if p.name.startswith(".")) == []


def test_a_log_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Attempts(tmp_path, ("csv",), monkeypatch)
    run.begin(0, 0)

    def full(rows: object) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(csv_log, "_encoded", full)
    run.steps(3, 1.0)
    # metrics.jsonl has each sample once.
    assert [line["samples"] for line in lines_of(run.folder)] == [2, 4, 6]
    assert [line["loss"] for line in lines_of(run.folder)] == [1.0] * 3
    run.recorder.finish(NOTHING)
    assert run.folder.finished() is not None
    assert capsys.readouterr().err.count("No space left") == 1


def lines_of(folder: RunFolder) -> list[dict[str, Any]]:
    from mpips.rundir.series import series

    return series(folder)


def accumulated(folder: Path) -> Any:
    """What TensorBoard reads of a run."""
    module = "tensorboard.backend.event_processing.event_accumulator"
    found = pytest.importorskip(module, reason="tensorboard is not installed")
    accumulator = found.EventAccumulator(
        str(folder / "tensorboard"), size_guidance={"histograms": 0}
    )
    accumulator.Reload()
    return accumulator


def test_tensorboard_reads_one_series_over_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    run = Attempts(tmp_path, ("tensorboard",), monkeypatch)
    run.begin(0, 0)
    run.steps(6, 1.0, [3, 1])
    run.evaluate(3, accuracy=0.5, auc=float("nan"))
    run.evaluate(6, accuracy=0.25)
    # Killed; the next attempt trains the steps behind 4 again.
    run.begin(1, 4)
    run.steps(2, 3.0, [0, 0, 4])
    run.recorder.finish(NOTHING)
    found = accumulated(run.folder.path)
    loss = found.Scalars("train/loss")
    assert [(e.step, e.value) for e in loss] == [(s, 1.0) for s in range(1, 5)] + [
        (5, 3.0),
        (6, 3.0),
    ]
    assert [e.wall_time for e in loss] == sorted(e.wall_time for e in loss)
    assert [(e.step, e.value) for e in found.Scalars("test/accuracy")] == [(3, 0.5)]
    assert "test/auc" not in found.Tags()["scalars"]
    assert [e.value for e in found.Scalars("work/samples")] == [2, 4, 6, 8, 2, 4]
    first, second = found.Histograms("work/staleness")
    assert first.step == 1
    h = first.histogram_value
    assert (h.min, h.max, h.num, h.sum, h.sum_squares) == (0, 1, 4, 1, 1)
    assert (list(h.bucket_limit), list(h.bucket)) == ([0.5, 1.5], [3, 1])
    h = second.histogram_value
    assert (second.step, h.min, h.max, h.num, h.sum, h.sum_squares) == (5, 2, 2, 4, 8, 16)
    assert list(h.bucket) == [0, 0, 4]


def test_points_become_rarer_while_the_run_ages_and_keep_the_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    run = Attempts(tmp_path, ("tensorboard",), monkeypatch)
    run.begin(0, 0)
    run.steps(1, 0.0)
    run.now += 10 * 3600.0
    for loss in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
        run.steps(5, loss)
    run.recorder.finish(NOTHING)
    loss = accumulated(run.folder.path).Scalars("train/loss")
    # Ten seconds apart at an age of ten hours; the last point is that of the end.
    assert [e.step for e in loss] == [1, 2, 13, 24, 31]
    assert sum(e.value * n for e, n in zip(loss[1:], (1, 11, 11, 7), strict=True)) == pytest.approx(
        105
    )


def test_tensorboard_has_the_rates_beside_the_loss_and_no_samples_that_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    run = Attempts(tmp_path, ("tensorboard",), monkeypatch)
    run.begin(0, 0)
    for rates in ([0.5], [0.5, 0.25]):
        run.now += 1.0
        run.recorder.note_details(0, 0, ReportDetails(rates=rates))
        run.recorder.report(0, 0, 3.0, 2)
        run.recorder.look({0: 1})
    run.recorder.finish(NOTHING)
    found = accumulated(run.folder.path)
    tags = found.Tags()["scalars"]
    assert sorted(tag for tag in tags if not tag.startswith("work/")) == [
        "train/learning_rate",
        "train/learning_rate_1",
        "train/loss",
    ]
    assert not {"work/samples", "work/samples_per_s"} & set(tags)
    values = {tag: [e.value for e in found.Scalars(tag)] for tag in tags}
    assert values["train/learning_rate"] == [0.5, 0.5]
    assert values["train/learning_rate_1"] == [0.25]
    assert values["train/loss"] == [1.5, 1.5]
