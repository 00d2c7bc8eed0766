"""The best evaluation of a run, and the hint at overfitting."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from mpips.monitor.best_epoch import BestEpoch, best_epoch, rows_of, watched_name
from mpips.rundir.directory import RunFolder
from mpips.rundir.files import Event


def rows(metric: str, *values: float) -> dict[int, dict[str, float]]:
    return {i + 1: {metric: value} for i, value in enumerate(values)}


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [
        ("auc", (0.5, 0.75, 0.75, 0.625), (0.75, 2, 0.625)),
        ("log_loss", (0.5, 0.25, 0.75), (0.25, 2, 0.75)),
        ("log_loss", (math.nan, math.inf, 0.75, math.nan), (0.75, 3, 0.75)),
        ("own", (1.0, 3.0, 2.0), (3.0, 2, 2.0)),
        ("worse", (1.0, 3.0, 2.0), (1.0, 1, 2.0)),
    ],
)
def test_the_first_best_finite_value_counts(
    metric: str, values: tuple[float, ...], best: tuple[float, int, float]
) -> None:
    found = best_epoch(rows(metric, *values), metric, {"own": "higher", "worse": "lower"})
    assert found is not None
    assert (found.value, found.epoch, found.last) == best


def test_without_a_finite_value_there_is_no_best_one() -> None:
    assert best_epoch(rows("auc", math.nan), "auc") is None
    assert best_epoch(rows("auc", 0.5), "rmse") is None


def test_the_metric_is_that_of_early_stopping() -> None:
    found = {1: {"accuracy": 0.5, "auc": 0.5, "log_loss": 1.0}}
    assert watched_name(found) == "log_loss"
    assert watched_name(found, "auc") == "auc"
    assert watched_name(found, "rmse") == ""
    assert (
        watched_name({1: {"hits": 1.0, "mrr": 0.5}}, own={"hits": "none", "mrr": "higher"}) == "mrr"
    )
    assert watched_name({1: {"count": 1.0}}) == ""


@pytest.mark.parametrize(
    ("metric", "values", "expected"),
    [
        ("log_loss", (1.0, 0.5, 0.5, 0.53), True),  # more than 5 % of the best value
        ("log_loss", (1.0, 0.5, 0.53), False),  # one evaluation ago
        ("log_loss", (1.0, 0.5, 0.5, 0.52), False),
        ("auc", (0.7, 0.8, 0.79, 0.77), True),  # more than a quarter of the improvement
        ("auc", (0.7, 0.8, 0.79, 0.78), False),
        ("auc", (0.7, 0.75, 0.8), False),
        ("auc", (0.8, 0.79, 0.79), False),  # the first one is the best: there was no improvement
        ("auc", (0.8, 0.7, 0.7), True),
    ],
)
def test_a_last_value_that_is_clearly_worse_is_overfitting(
    metric: str, values: tuple[float, ...], expected: bool
) -> None:
    found = best_epoch(rows(metric, *values), metric)
    assert found is not None
    assert found.has_overfitted == expected
    assert bool(found.hint(False, False)) == expected


def test_the_hint_names_the_cures_that_the_job_has_not() -> None:
    found = BestEpoch("log_loss", 0.25, 4, 0.5, 1.0, 10)
    both = found.hint(has_patience=False, keeps_best=False)
    assert both == (
        "log loss was best after epoch 4 (0.2500) and is 0.5000 after epoch 10, which is a sign of "
        "overfitting: train.patience = 3 ends training earlier, and checkpoint.keep_best = true keeps the "
        "best values"
    )
    assert "keep_best" not in found.hint(has_patience=False, keeps_best=True)
    assert "patience" not in found.hint(has_patience=True, keeps_best=False)
    assert found.hint(has_patience=True, keeps_best=True) == ""


def test_evaluations_of_earlier_attempts_come_from_the_run_directory(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "job")
    lines = [
        (0, 1, 0.5),
        (0, 2, 0.9),
        (1, 2, 0.7),
    ]  # generation, epoch and value; 10 steps an epoch
    run.metrics_file.write_text(
        "".join(
            f'{{"generation":{g},"step":{10 * e},"epoch":{e - 1},"validation":{{"auc":{v}}}}}\n'
            for g, e, v in lines
        )
        + '{"generation":1,"step":20,"epoch":0,"test":{"auc":0.1}}\n'
    )
    run.note(Event(time_s=1.0, generation=1, event="began", step=15))
    history = [{"epoch": 3, "loss": 0.5, "auc": 0.75}, {"epoch": 4, "loss": 0.5}]
    found = rows_of(history, "validation", run)
    assert found == {1: {"auc": 0.5}, 2: {"auc": 0.7}, 3: {"auc": 0.75}}
    assert rows_of(history, "validation") == {3: {"auc": 0.75}}
    assert rows_of([], "", run) == {}
