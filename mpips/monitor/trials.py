"""The trials of a sweep as `mpips sweep`, `mpips web` and `mpips report` compare them: by their best values.

`mpips.supervisor.sweep` writes sweep.json and runs the trials. This module reads results and ranks them. The
files may be damaged, or written by others: a value of another form counts as missing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import msgspec
from msgspec.structs import replace

from mpips.data.metrics import BY_DEFAULT, HIGHER_IS_BETTER, LOWER_IS_BETTER
from mpips.data.quotients import Direction
from mpips.monitor.best_epoch import BestEpoch, best_epoch, is_higher, rows_of
from mpips.rundir.directory import RunFolder
from mpips.rundir.reading import DAMAGED, read_regular

_FIRST = (*BY_DEFAULT, "loss")
METRICS = (*_FIRST, *sorted(LOWER_IS_BETTER - {*_FIRST}), *sorted(HIGHER_IS_BETTER))


class Trial(msgspec.Struct, frozen=True):
    """A run of a trial.

    Attributes:
        run: Name of its run directory.
        assignments: Options of the trial, as for --set.
        fold: Number of the fold that it holds out, from 1; 0: the sweep has no folds.
    """

    run: str
    assignments: tuple[str, ...] = ()
    fold: int = 0


class SweepFile(msgspec.Struct, frozen=True):
    """Content of sweep.json.

    Attributes:
        job: The job, for messages.
        metric: Name of the metric that counts; "": the loss of the task.
        trials: The trials; with folds, as many runs of each in succession.
        own_metrics: Metrics of the task's own, with their better values.
        folds: Number of folds; 0: none.
    """

    job: str
    metric: str
    trials: tuple[Trial, ...]
    own_metrics: dict[str, Direction] = {}
    folds: int = 0


class TrialResult(msgspec.Struct, frozen=True):
    """The result of a trial.

    Attributes:
        number: Number of the trial, from 1.
        run: Path of its run directory.
        assignments: Its options, as for --set.
        state: State of the run, as `mpips top` shows it; "done": it has a result.
        epochs: Epochs that are complete; 0: no result yet.
        seconds: Seconds of training.
        metrics: Metrics at the end of the training by name, finite ones only.
        by_epoch: Metrics of each evaluated epoch, by number of complete epochs.
        test_metrics: Metrics of the test data of a job with validation data, by name, finite ones only.
        best: The best value of the metric that counts and its epoch; None without one. With folds the
            mean of the best values of all folds, and of their epochs, rounded.
        fold: Number of the fold that the run holds out; 0: none, or the result is that of all folds.
        folds: With folds, the best value of each.
        spread: With folds, the standard deviation of the best values, over their number - 1.
    """

    number: int
    run: str
    assignments: tuple[str, ...]
    state: str
    epochs: int = 0
    seconds: float = 0.0
    metrics: dict[str, float] = {}
    by_epoch: dict[int, dict[str, float]] = {}
    test_metrics: dict[str, float] = {}
    best: BestEpoch | None = None
    fold: int = 0
    folds: tuple[float, ...] = ()
    spread: float | None = None

    def at(self, metric: str) -> dict[str, float]:
        """Return the metrics of the epoch with the best `metric`; of the others those at the end."""
        if self.best is None or self.best.metric != metric:
            return self.metrics
        return {**self.metrics, **self.by_epoch.get(self.best.epoch, {}), metric: self.best.value}


def result_of(content: SweepFile, number: int, folder: Path, state: str) -> TrialResult:
    """Return the result of a run of a trial, or its state if it has none.

    Args:
        content: The sweep.
        number: Number of the run, from 1; with folds, a run is one fold.
        folder: The folder of the sweep.
        state: Its state, as `mpips top` shows it.
    """
    trial, own = content.trials[number - 1], content.own_metrics
    number = (number - 1) // max(content.folds, 1) + 1
    run, path = RunFolder(folder / trial.run), str(folder / trial.run)
    found = _read_result(run) if state == "done" else None
    if found is None:
        state = "ended" if state == "done" else state
        return TrialResult(number, path, trial.assignments, state, fold=trial.fold)
    data = str(found.get("evaluated_data") or "")
    tested = found.get("test_metrics") if data == "validation" else None
    return TrialResult(
        number,
        path,
        trial.assignments,
        "done",
        int(_number(found.get("epochs"))),
        float(_number(found.get("seconds"))),
        _finite(found, own),
        {epoch: _finite(row, own) for epoch, row in rows_of(_history(found), data, run).items()},
        _finite(tested if isinstance(tested, dict) else {}, own),
        fold=trial.fold,
    )


def with_best(result: TrialResult, metric: str, own: Mapping[str, Direction]) -> TrialResult:
    """Return a result with the best value of a metric over its epochs.

    The loss of the training falls while a model overfits, so its value at the end counts.
    """
    if metric not in result.metrics:
        return result
    rows = {result.epochs: {metric: result.metrics[metric]}}
    if metric != "loss":
        rows = {**result.by_epoch, **rows}
    return replace(result, best=best_epoch(rows, metric, own))


def chosen_metric(content: SweepFile, results: Sequence[TrialResult]) -> str:
    """Return the name of the metric that counts; "" if no trial has a result yet."""
    if content.metric:
        return content.metric
    there = {name for result in results for name in result.metrics}
    own = [name for name, better in content.own_metrics.items() if better != "none"]
    return next((name for name in (*own, *_FIRST) if name in there), "")


def ranked(content: SweepFile, results: Sequence[TrialResult]) -> list[TrialResult]:
    """Return the trials by their best values, the best first; those without the metric last.

    Args:
        content: The sweep.
        results: Results of all its runs, in their order.
    """
    metric, own, folds = chosen_metric(content, results), content.own_metrics, content.folds
    sign = -1.0 if is_higher(metric, own) else 1.0
    found = [with_best(result, metric, own) for result in results]
    if folds > 0:
        found = [_of_folds(found[i : i + folds]) for i in range(0, len(found), folds)]
    return sorted(found, key=lambda r: sign * r.best.value if r.best is not None else math.inf)


def _of_folds(results: Sequence[TrialResult]) -> TrialResult:
    """Return the result of a trial from those of its folds: means, and the spread of the best values.

    Values are there when all folds are done. `run` and the state are those of the first fold that is not
    done, or else of the first one.
    """
    first = next((result for result in results if result.state != "done"), results[0])
    seconds = sum(result.seconds for result in results)
    if first.state != "done" or any(result.best is None for result in results):
        return replace(first, seconds=seconds, epochs=0, fold=0, best=None)
    bests = [result.best for result in results if result.best is not None]
    values = [best.value for best in bests]
    mean = BestEpoch(
        bests[0].metric,
        fmean(values),
        round(fmean(best.epoch for best in bests)),
        fmean(best.last for best in bests),
        fmean(best.first for best in bests),
        max(best.n_epochs for best in bests),
    )
    return replace(
        results[0],
        epochs=max(result.epochs for result in results),
        seconds=seconds,
        metrics=_means([result.at(mean.metric) for result in results]),
        by_epoch={},
        test_metrics=_means([result.test_metrics for result in results]),
        best=mean,
        fold=0,
        folds=tuple(values),
        spread=stdev(values) if len(values) > 1 else None,
    )


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric that all rows have."""
    return {
        name: fmean(row[name] for row in rows) for name in rows[0] if all(name in r for r in rows)
    }


def _is_number(value: Any) -> bool:
    """Return True for a number that a finite float holds; JSON has integers that none does."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _number(value: Any) -> float:
    """Return a finite number; 0 for anything else."""
    return value if _is_number(value) and not isinstance(value, bool) else 0


def _finite(metrics: Mapping[str, Any], own: Mapping[str, Direction]) -> dict[str, float]:
    """Return the metrics that are finite numbers."""
    names = dict.fromkeys((*METRICS, *own))
    return {name: float(metrics[name]) for name in names if _is_number(metrics.get(name))}


def _history(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the history of a report that have an epoch."""
    rows = found.get("history")
    rows = rows if isinstance(rows, list) else []
    return [row for row in rows if isinstance(row, dict) and _is_number(row.get("epoch"))]


def _read_result(run: RunFolder) -> dict[str, Any] | None:
    """Return the report of a finished training; None if it is missing or damaged."""
    try:
        found = msgspec.json.decode(read_regular(run.result_file))
    except (OSError, *DAMAGED):
        return None
    return found if isinstance(found, dict) else None
