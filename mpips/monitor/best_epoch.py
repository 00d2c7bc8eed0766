"""The best evaluation of a run: its value and its epoch, beside those at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mpips.data.metrics import BY_DEFAULT, HIGHER_IS_BETTER, LOWER_IS_BETTER
from mpips.data.quotients import Direction
from mpips.errors import ConfigError
from mpips.rundir.directory import RunFolder
from mpips.rundir.series import series

Rows = Mapping[int, Mapping[str, Any]]  # metrics by number of complete epochs
_NONE: Mapping[str, Direction] = {}
# Part of the best value, and of the improvement up to it, by which a worse last value is called overfitting.
_WORSE_VALUE, _WORSE_GAIN = 0.05, 0.25


class BestEpoch(msgspec.Struct, frozen=True):
    """The best value of a metric over the evaluations of a run.

    Attributes:
        metric: Name of the metric.
        value: Its best value.
        epoch: Number of complete epochs that have it, the first of equal ones.
        last: Its last value.
        first: Its first value.
        n_epochs: Number of complete epochs at the last evaluation.
    """

    metric: str
    value: float
    epoch: int
    last: float
    first: float
    n_epochs: int

    @property
    def has_overfitted(self) -> bool:
        """True if the last value is clearly worse than the best.

        It is worse by more than 5 % of the best value, or by more than a quarter of what the metric had
        improved up to there, and at least two evaluations ago.
        """
        loss, gain = abs(self.value - self.last), abs(self.value - self.first)
        if self.n_epochs - self.epoch < 2 or not loss:
            return False
        return loss > _WORSE_VALUE * abs(self.value) or (gain > 0 and loss > _WORSE_GAIN * gain)

    def hint(self, has_patience: bool, keeps_best: bool) -> str:
        """Return a sentence with the cure if the run has overfitted; "": it has not, or has the cures.

        Args:
            has_patience: The job ends early.
            keeps_best: The job keeps its best checkpoint.
        """
        cures = [
            *([] if has_patience else ["train.patience = 3 ends training earlier"]),
            *([] if keeps_best else ["checkpoint.keep_best = true keeps the best values"]),
        ]
        if not cures or not self.has_overfitted:
            return ""
        name = self.metric.replace("_", " ")
        return (
            f"{name} was best after epoch {self.epoch} ({self.value:.4f}) and is {self.last:.4f} after epoch "
            f"{self.n_epochs}, which is a sign of overfitting: {', and '.join(cures)}"
        )


def rows_of(
    history: Sequence[Mapping[str, Any]], data: str, run: RunFolder | None = None
) -> dict[int, dict[str, Any]]:
    """Return the metrics of each evaluated epoch of a run.

    Args:
        history: The history of its result, which has the epochs of the last attempt.
        data: "validation" or "test": the data of these metrics.
        run: The run directory, whose metrics.jsonl has the evaluations of earlier attempts; None: none.
    """
    found: dict[int, dict[str, Any]] = {}
    if run is not None and data:
        try:
            lines = series(run)
        except (OSError, ConfigError):
            lines = []
        for line in lines:
            epoch = line.get("epoch", 0)
            if isinstance(line.get(data), dict) and isinstance(epoch, int):
                found[epoch + 1] = dict(line[data])
    for row in history:
        metrics = {name: value for name, value in row.items() if name not in ("epoch", "loss")}
        if metrics:
            found[int(row["epoch"])] = metrics
    return found


def is_higher(metric: str, own: Mapping[str, Direction] = _NONE) -> bool:
    """Return True if higher values of a metric are better. `own`: metrics of the task's own."""
    return metric in HIGHER_IS_BETTER or own.get(metric) == "higher"


def watched_name(rows: Rows, wanted: str = "auto", own: Mapping[str, Direction] = _NONE) -> str:
    """Return the name of the metric by which epochs are compared; "": no metric has better values.

    Args:
        rows: Metrics by epoch.
        wanted: Name of the metric; "auto": the metric that early stopping would watch.
        own: Metrics of the task's own, with their better values.
    """
    there = dict.fromkeys(name for row in rows.values() for name in row)
    if wanted != "auto":
        return wanted if wanted in there else ""
    directed = [name for name, better in own.items() if better != "none"]
    known = (*BY_DEFAULT, *directed, *sorted(HIGHER_IS_BETTER | LOWER_IS_BETTER))
    return next((name for name in known if name in there), "")


def best_epoch(rows: Rows, metric: str, own: Mapping[str, Direction] = _NONE) -> BestEpoch | None:
    """Return the best value of a metric; None: no evaluation has a finite one.

    Args:
        rows: Metrics by epoch.
        metric: Name of the metric.
        own: Metrics of the task's own, with their better values.
    """
    values = [
        (epoch, float(rows[epoch][metric]))
        for epoch in sorted(rows)
        if isinstance(rows[epoch].get(metric), int | float) and math.isfinite(rows[epoch][metric])
    ]
    if not values:
        return None
    sign = -1.0 if is_higher(metric, own) else 1.0
    epoch, value = min(values, key=lambda pair: (sign * pair[1], pair[0]))
    return BestEpoch(metric, value, epoch, values[-1][1], values[0][1], values[-1][0])
