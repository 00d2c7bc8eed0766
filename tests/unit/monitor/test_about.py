"""The description of a run: data, model, best evaluation, state in one sentence, epochs by step."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from run_files import RunFiles, full_run

from mpips.monitor import about
from mpips.monitor.about import EvaluatedStep, RunResult
from mpips.rundir.files import Progress, StartPoint, Status
from mpips.rundir.history import AttemptHead

EVALUATIONS = [
    EvaluatedStep(10, 1, {"accuracy": 0.5, "log_loss": 0.75, "own": 3.0}),
    EvaluatedStep(20, 2, {"accuracy": 0.75, "log_loss": 0.25, "own": 1.0}),
    EvaluatedStep(30, 3, {"accuracy": 0.75, "log_loss": 0.5, "own": 2.0}),
    EvaluatedStep(40, 4, {"accuracy": None, "log_loss": math.nan}),
]


def result(**values: Any) -> RunResult:
    """Return the result in a file with these values."""
    files = RunFiles(values.pop("folder"))
    files.run.result_file.write_text(json.dumps(values))
    found = about.read_result(files.run)
    assert found is not None
    return found


def test_the_best_evaluation_is_the_first_one_with_the_best_finite_value() -> None:
    assert about.best_of(EVALUATIONS, "accuracy") is EVALUATIONS[1]
    assert about.best_of(EVALUATIONS, "log_loss") is EVALUATIONS[1]
    assert about.best_of(EVALUATIONS, "own") is None, "its better values are not known"
    assert about.best_of(EVALUATIONS, "own", higher=True) is EVALUATIONS[0]
    assert about.best_of(EVALUATIONS, "missing", higher=True) is None


def test_the_metric_that_counts_is_that_of_the_job(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.config(train={"metric": "accuracy"})
    job = about.read_job(files.run)
    best = about.best_evaluation(job, None, EVALUATIONS)
    assert best is not None
    assert (best["metric"], best["value"], best["epoch"]) == ("accuracy", 0.75, 2)
    assert best["others"] == {"log_loss": 0.25, "own": 1.0}
    files.config()
    best = about.best_evaluation(about.read_job(files.run), None, EVALUATIONS)
    assert best is not None
    assert (best["metric"], best["value"], best["epoch"]) == ("log_loss", 0.25, 2)
    assert about.best_evaluation(job, None, [EvaluatedStep(1, 1, {"own": 1.0})]) is None


def test_the_best_checkpoint_names_the_best_evaluation(tmp_path: Path) -> None:
    kept = {"metric": "own", "value": 3.0, "epoch": 1, "path": "/somewhere"}
    best = about.best_evaluation(
        about.JobDescription(), result(folder=tmp_path, best=kept), EVALUATIONS
    )
    assert best == {
        "metric": "own",
        "value": 3.0,
        "epoch": 1,
        "others": {"accuracy": 0.5, "log_loss": 0.75},
    }


@pytest.mark.parametrize(
    ("state", "values", "progress", "alive", "text"),
    [
        ("done", {"stopped": "after epoch 13: x (best 0.5 after epoch 10)"}, {}, False,
         "Ended early after epoch 13: x (best 0.5 after epoch 10)."),
        ("done", {"epochs": 1}, {}, False, "Done after 1 epoch."),
        ("done", {}, {"step": 1234}, False, "Done after step 1,234."),
        ("running", {}, {"step": 7, "epoch": 2, "n_epochs": 10, "left_s": 62.0}, True,
         "Running: epoch 3 of 10, step 7; about 1:02 left."),
        ("running", {}, {"step": 7}, True, "Running: step 7."),
        ("failed", {}, {"step": 7, "epoch": 2, "n_epochs": 10}, False,
         "Failed in epoch 3 of 10, step 7."),
        ("dead", {}, {"step": 7}, False, "Dead at step 7."),
        ("not started", None, None, False, "Not started."),
    ],
)  # fmt: skip
def test_the_state_is_one_sentence(
    tmp_path: Path, state: str, values: Any, progress: Any, alive: bool, text: str
) -> None:
    found = result(folder=tmp_path, **values) if values is not None else None
    made = Progress(**progress) if progress is not None else None
    assert about.state_sentence(state, found, made, alive) == text


def test_data_are_named_without_their_folders(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.config(
        data={"train": ["/a/one.svm", "/a/two.svm", "/a/three.svm"], "test": "/b/test.svm"}
    )
    found = result(folder=tmp_path / "x", n_samples=12800, n_features=1)
    text = about.data_text(about.read_job(files.run), found)
    assert text == "one.svm, two.svm and 1 more: 12,800 samples, 1 feature; test test.svm"
    files.config(data={"train": "digits", "validation": 0.25})
    job = about.read_job(files.run)
    assert about.data_text(job, None) == "digits; validation 0.25 of it"
    hashed = replace(found, n_features=1 << 62)
    assert about.data_text(job, hashed) == "digits: 12,800 samples; validation 0.25 of it"


def test_the_name_of_a_script_is_the_task(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.config(run={"script": "/home/ada/train.py"})
    assert about.read_job(files.run).name == "train.py"
    files.config(run={"script": None})
    assert about.read_job(files.run).name == "fm"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"data": 5}', '{"task": 1}', "[" * 100_000])
def test_a_damaged_file_costs_its_part_of_the_description(tmp_path: Path, text: str) -> None:
    files = full_run(tmp_path)
    files.run.config_file.write_text(text)
    files.run.result_file.write_text(text)
    assert about.read_job(files.run) in (about.JobDescription(), about.JobDescription(task=""))
    assert about.read_result(files.run) in (None, RunResult())


def test_the_size_of_the_model_is_that_of_the_newest_checkpoint(tmp_path: Path) -> None:
    files = full_run(tmp_path)
    status = files.run.status()
    assert status is not None
    assert about.read_size(files.run, status) is None
    folder = files.run.checkpoints / "step-000000000004"
    folder.mkdir()
    tables = [
        {"name": "w", "kind": "dense", "shape": [4, 3]},
        {"name": "f", "kind": "embedding", "shape": [100, 8]},
    ]
    (folder / "manifest.json").write_text(json.dumps({"content": {"tables": tables}}))
    # The run may have been moved since.
    moved = replace(status, checkpoint=f"/elsewhere/{folder.name}")
    assert about.read_size(files.run, moved) == about.ModelSize(812, 2, 100)
    assert about.read_size(files.run, replace(status, checkpoint="/x/..")) is None


def test_the_size_of_dense_tables_is_known_before_a_checkpoint() -> None:
    def size(*placement: tuple[int, ...]) -> about.ModelSize | None:
        names = tuple("ab"[: len(placement)])
        head = AttemptHead(
            time_s=0.0, generation=0, roles=(), hosts=(), tables=names, placement=placement
        )
        return about.size_from_head(head)

    assert size((4096, 2048), (4, 0)) == about.ModelSize(1537, 2)
    assert size((4096,), (-1,)) is None
    assert size((4096,), ()) is None
    assert size((4096,), (0, 0)) is None, "a replicated table is on no server"
    assert size() is None
    assert about.size_from_head(None) is None


def status_of(step: int, share: float, n_epochs: int, **start: Any) -> Status:
    progress = Progress(step=step, share=share, n_epochs=n_epochs)
    return Status(
        state="running", generation=0, time_s=0.0, start=StartPoint(**start), progress=progress
    )


def test_epochs_grow_linearly_between_evaluations() -> None:
    anchors = about.epoch_anchors(EVALUATIONS[:2], status_of(25, 0.25, 10))
    assert anchors == [(0, 0.0), (10, 1.0), (20, 2.0), (25, 2.5)]
    assert about.epochs_at(anchors, 5) == 0.5
    assert about.epochs_at(anchors, 20) == 2.0
    assert about.epochs_at(anchors, 24) == 2.4
    assert about.epochs_at(anchors, 30) == 3.0, "beyond the last status"
    assert about.epoch_anchors(EVALUATIONS, status_of(25, 0.0, 0)) == []
    assert about.epoch_anchors([], status_of(0, 0.0, 10)) == []
    assert about.epoch_anchors(EVALUATIONS, None) == []


def test_what_falls_is_no_anchor_and_there_are_few() -> None:
    wrong = [EvaluatedStep(10, 5, {}), EvaluatedStep(20, 2, {}), EvaluatedStep(20, 6, {})]
    assert about.epoch_anchors(wrong, status_of(30, 0.6, 10)) == [
        (0, 0.0),
        (10, 5.0),
        (20, 6.0),
        (30, 6.0),
    ]
    many = [EvaluatedStep(i, i, {}) for i in range(1, 1001)]
    anchors = about.epoch_anchors(many, status_of(1000, 1.0, 1000))
    assert len(anchors) == 100
    assert (anchors[0], anchors[-1]) == ((0, 0.0), (1000, 1000.0))


@pytest.mark.parametrize(
    ("known", "alive", "expected"),
    [
        ({}, True, "Running: step 4."),
        ({"has_epochs": True}, True, "Running: epoch 3, step 4."),
        ({"has_epochs": True}, False, "Running in epoch 3, step 4."),
        ({"n_epochs": 5, "left_s": 61.0}, True, "Running: epoch 3 of 5, step 4; about 1:01 left."),
    ],
)
def test_the_sentence_names_the_epoch_of_a_script_that_counts_them(
    known: dict[str, Any], alive: bool, expected: str
) -> None:
    progress = Progress(step=4, epoch=2, **known)
    assert about.state_sentence("running", None, progress, alive) == expected
