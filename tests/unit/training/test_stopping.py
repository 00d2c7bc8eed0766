"""Early stopping: the decision, its state in checkpoints, and jobs that cannot have it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from model_rig import svm
from training import content

import mpips
from mpips.checkpoint import list_checkpoints
from mpips.config.schema import load_config
from mpips.config.sections import TrainConfig
from mpips.data.metrics import HIGHER_IS_BETTER, LOWER_IS_BETTER, MORE_BINARY, MORE_REGRESSION
from mpips.data.quotients import Direction
from mpips.errors import ConfigError
from mpips.training.stopping import EarlyStopping, check_names
from mpips.training.train import train

JOB = [
    ("task", "mlp"),
    ("data.train", "digits"),
    ("data.test", "digits"),
    ("train.epochs", 12),
    ("train.batch_size", 160),
    ("train.patience", 2),
    ("train.min_delta", 0.03),
]
LAST = 7  # the epoch after which this job ends


def trained(*more: tuple[str, Any]) -> Any:
    return train(load_config(None, [*JOB, *more]), "none", verbose=False).value


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [
        ("log_loss", [3.0, 2.0, 2.5, 2.0, 1.5], (1.5, 5)),
        ("log_loss", [3.0, 2.9, 2.0, math.nan, math.inf], (2.0, 3)),
        ("auc", [0.25, 0.75, 0.875, 0.5, 0.75], (0.75, 2)),
        ("r2", [-5.0, -4.5, -4.0, -4.5], (-4.0, 3)),
        ("rmse", [math.nan, math.inf, 2.0], (2.0, 3)),
    ],
)
def test_a_value_is_better_by_more_than_the_least_change(
    metric: str, values: list[float], best: tuple[float, int]
) -> None:
    state = EarlyStopping(9, metric, min_delta=0.125)
    for i, value in enumerate(values):
        state.note(i + 1, value)
    assert (state.best, state.best_epoch) == best
    assert state.waited == len(values) - best[1]
    other = EarlyStopping(9, metric, min_delta=0.125)
    other.restore({"epoch": 3, **state.position()})
    assert other == state


def test_the_state_of_other_data_is_not_taken() -> None:
    before = EarlyStopping(3, "auc", data="test: t.csv, 9 samples")
    before.note(1, 0.5)
    before.note(2, 0.25)
    same, other = (EarlyStopping(3, "auc", data=data) for data in (before.data, "validation: v"))
    for state in (same, other):
        state.restore(before.position())
    assert (same.best, same.best_epoch, same.waited) == (0.5, 1, 1)
    assert (other.best, other.best_epoch, other.waited) == (None, 0, 0)
    # Positions of earlier versions do not name the data.
    other.restore({"best": 0.5, "best_epoch": 1, "waited": 1})
    assert other.waited == 1


def test_a_run_ends_early_with_the_values_of_a_shorter_one(tmp_path: Path) -> None:
    early = trained(("checkpoint.folder", str(tmp_path / "early")))
    assert early.epochs == LAST
    assert early.steps == LAST * 9
    assert [row["epoch"] for row in early.history] == list(range(1, LAST + 1))
    assert f"after epoch {LAST}: cross entropy did not improve in 2 evaluations" in early.stopped
    short = trained(
        ("checkpoint.folder", str(tmp_path / "short")),
        ("train.patience", 0),
        ("train.epochs", LAST),
    )
    assert not short.stopped
    assert short.metrics == early.metrics
    ends = [list_checkpoints(tmp_path / name)[-1].path for name in ("early", "short")]
    assert content(str(ends[0])).keys() == content(str(ends[1])).keys()
    for name, array in content(str(ends[0])).items():
        assert array.tobytes() == content(str(ends[1]))[name].tobytes()


def first_saved(folder: Path, step: int) -> tuple[Any, str]:
    """Result of a run, and its first checkpoint, at this step or, on a slow machine, at a multiple."""
    whole = trained(("checkpoint.folder", str(folder)), ("checkpoint.every_steps", step))
    found = list_checkpoints(folder)[0]
    assert found.step % step == 0 or found.step == whole.steps
    return whole, str(found.path)


# Inside epochs and at their ends, also those of the last two evaluations.
@pytest.mark.parametrize("step", [9, 13, 45, 53, 54, 60, 63])
def test_from_any_checkpoint_a_run_ends_after_the_same_epoch(tmp_path: Path, step: int) -> None:
    whole, saved = first_saved(tmp_path, step)
    rest = trained(("checkpoint.resume", saved))
    assert (rest.epochs, rest.steps) == (LAST, whole.steps)
    assert rest.stopped == whole.stopped
    assert rest.metrics["cross_entropy"] == whole.metrics["cross_entropy"]


def test_with_another_number_of_samples_in_a_step_the_state_is_kept(tmp_path: Path) -> None:
    whole, saved = first_saved(tmp_path, 50)
    best = whole.history[4]["cross_entropy"]
    assert f"(best {best:.4f} after epoch 5)" in whole.stopped
    # Nothing is better by as much than what was best before.
    rest = trained(
        ("checkpoint.resume", saved), ("train.batch_size", 80), ("train.min_delta", 10.0)
    )
    assert rest.epochs == 7
    assert rest.stopped == whole.stopped


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([("data.test", "")], "train.patience = 2 watches a metric of the test data"),
        (
            [("table.backup", 1)],
            "does not work with backup workers",
        ),
        (
            [("train.metric", "auc")],
            "train.metric = 'auc': the metrics of this task are accuracy, cross_entropy",
        ),
        (
            [("train.metric", "f1")],
            "train.metric = 'f1': the metrics of this task are accuracy, cross_entropy",
        ),
        ([("train.metric", "f2")], "train.metric = 'f2': must be one of"),
        (
            [("train.metrics", ["mae"])],
            "metric 'mae': this task has none of this name; it has accuracy, cross_entropy",
        ),
        ([("train.patience", -1)], "train.patience = -1: must be"),
    ],
)
def test_a_job_that_cannot_end_early_is_refused(more: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trained(*more)


def test_a_metric_that_is_asked_for_is_reported_watched_and_kept_by_the_model(
    tmp_path: Path,
) -> None:
    train_file, test_file = svm(tmp_path / "a.svm", 300, 1), svm(tmp_path / "b.svm", 90, 2)
    job = [
        ("task", "logistic"),
        ("data.train", str(train_file)),
        ("data.test", str(test_file)),
        ("train.epochs", 40),
        ("train.patience", 2),
        ("train.metric", "pr_auc"),
        ("train.metrics", ["f1"]),
        ("checkpoint.folder", str(tmp_path / "c")),
    ]
    found = train(load_config(None, job), "none", verbose=False).value
    assert "pr auc did not improve in 2 evaluations" in found.stopped
    rows = [row for row in found.history if "pr_auc" in row]
    assert len(rows) == found.epochs < 40
    assert max(row["pr_auc"] for row in rows) == rows[-3]["pr_auc"]
    model = mpips.load(tmp_path / "c")
    assert model.evaluate(test_file)["f1"] == found.metrics["f1"]
    assert set(model.evaluate(test_file, ["calibration", "auc"])) == {
        *("accuracy", "auc", "log_loss", "f1", "calibration")
    }
    with pytest.raises(ConfigError, match="metric 'rmse': this task has none of this name; it has"):
        model.evaluate(test_file, ["rmse"])


def test_exactly_the_metrics_that_exist_are_accepted() -> None:
    own: dict[str, Direction] = {"mrr": "higher", "clicks": "none"}
    known = {*MORE_BINARY, *MORE_REGRESSION}
    for name in (*known, *own):
        check_names(TrainConfig(metrics=(name,)), own)
    for name in {"auto", "mrr"} | HIGHER_IS_BETTER | LOWER_IS_BETTER:
        check_names(TrainConfig(metric=name), own)
    for wrong in (TrainConfig(metric="clicks"), TrainConfig(metric="calibration")):
        with pytest.raises(ConfigError, match=r"train.metric = .*: must be one of auto, .*, mrr$"):
            check_names(wrong, own)
    with pytest.raises(ConfigError, match=r"train.metrics: 'auc' is unknown: .*, mrr, clicks"):
        check_names(TrainConfig(metrics=("auc",)), own)
