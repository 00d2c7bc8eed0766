"""Early stopping: training ends when a metric of the test data no longer improves.

See Prechelt, "Early Stopping - But When?" (1998).

All workers take the decision, from one number: worker 0 has the metrics of an evaluation and sends the
watched one to the others. The state is part of each worker's position in checkpoints. A position at the
beginning of an epoch was recorded before the evaluation of the epoch before it, so a restart from there
evaluates that epoch first; a restart from inside an epoch has all evaluations before it. So the run ends
after the same epoch whether it was interrupted or not, if all workers are at the same epoch (as under BSP).
Otherwise an evaluation that some workers had behind them is left out, and the run may end later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from mpips.config.sections import TrainConfig
from mpips.data.metrics import (
    BINARY_METRICS,
    BY_DEFAULT,
    CLASS_METRICS,
    HIGHER_IS_BETTER,
    LABEL_METRICS,
    LOWER_IS_BETTER,
    MORE_BINARY,
    MORE_REGRESSION,
    REGRESSION_METRICS,
)
from mpips.data.quotients import Direction
from mpips.errors import ConfigError
from mpips.model.consistency import BSP
from mpips.model.table import Table
from mpips.monitor.summary_text import metric_label
from mpips.worker.worker import Worker

_FIELDS = ("best", "best_epoch", "waited")
_NONE_OWN: Mapping[str, Direction] = {}


def check_names(config: TrainConfig, own: Mapping[str, Direction]) -> None:
    """Check the names of metrics in a job, as far as that is possible before the data is read.

    Args:
        config: Options of the training.
        own: Metrics of the task's own, with their better values.

    Raises:
        ConfigError: There is no such metric, or it has no better values and is to be watched.
    """
    more = (*MORE_BINARY, *MORE_REGRESSION)
    for name in config.metrics:
        if name not in more and name not in own:
            raise ConfigError(
                f"train.metrics: {name!r} is unknown: must be some of {', '.join((*more, *own))}"
            )
    watchable = (
        *dict.fromkeys((*BINARY_METRICS, *CLASS_METRICS, *REGRESSION_METRICS, *LABEL_METRICS)),
        *(name for name in more if name in HIGHER_IS_BETTER | LOWER_IS_BETTER),
        *(name for name, direction in own.items() if direction != "none"),
    )
    if config.metric not in ("auto", *watchable):
        raise ConfigError(
            f"train.metric = {config.metric!r}: must be one of auto, {', '.join(watchable)}"
        )


def more_metrics(
    metrics: Sequence[str], own: Mapping[str, Direction] = _NONE_OWN
) -> tuple[str, ...]:
    """Return the names of the metrics that can be asked for beside those of a task.

    Args:
        metrics: Names of the task's metrics; () if they are not known.
        own: Metrics of the task's own, with their better values.
    """
    others = tuple(name for name in own if name not in metrics)
    if not metrics:
        return (*MORE_BINARY, *MORE_REGRESSION, *others)
    more: tuple[str, ...] = ()
    if "auc" in metrics:
        more = MORE_BINARY
    elif "rmse" in metrics:
        more = MORE_REGRESSION
    return (*(name for name in more if name not in metrics), *others)


def asked_metrics(
    names: Sequence[str], metrics: Sequence[str], own: Mapping[str, Direction] = _NONE_OWN
) -> tuple[str, ...]:
    """Return the requested metrics that the task does not give by itself.

    Args:
        names: The requested metrics.
        metrics: Names of the task's metrics; () if they are not known.
        own: Metrics of the task's own, with their better values.

    Raises:
        ConfigError: The scores of the task have no such metric.
    """
    known = more_metrics(metrics, own)
    for name in names:
        if name not in (*metrics, *known):
            all_names = ", ".join((*metrics, *known))
            raise ConfigError(
                f"metric {name!r}: this task has none of this name; it has {all_names}"
            )
    return tuple(dict.fromkeys(name for name in names if name not in metrics))


def watched(
    options: TrainConfig,
    why: str,
    metrics: Sequence[str],
    tables: Sequence[Table],
    has_test: bool,
    own: Mapping[str, Direction] = _NONE_OWN,
) -> tuple[str, bool]:
    """Return the metric that a job watches, and whether higher values of it are better.

    Args:
        options: Options of the training.
        why: The option for which it is watched, with its value.
        metrics: Names of the task's metrics; () if they are not known.
        tables: Tables of the task.
        has_test: The job has test data.
        own: Metrics of the task's own, with their better values.

    Raises:
        ConfigError: The job has no such metric, no test data, or workers that may skip evaluations.
    """
    option = why.partition(" = ")[0]
    off = "0" if option == "train.patience" else "false"
    if not has_test:
        raise ConfigError(
            f"{why} watches a metric of the test data, and the job has none: set data.test or "
            f"data.validation, or {option} = {off}"
        )
    if any(isinstance(t.consistency, BSP) and t.consistency.backup for t in tables):
        raise ConfigError(
            f"{option} does not work with backup workers, which may skip evaluations: set backup = 0, or "
            f"{option} = {off}"
        )
    directed = {
        *(HIGHER_IS_BETTER | LOWER_IS_BETTER),
        *(name for name, direction in own.items() if direction != "none"),
    }
    given = (
        *(metrics or (*BY_DEFAULT, *sorted(HIGHER_IS_BETTER))),
        *more_metrics(metrics, own),
    )
    known = [name for name in given if name in directed]
    if not known:
        raise ConfigError(f"{why}: no metric of this task has better values; set {option} = {off}")
    metric: str = options.metric
    if metric == "auto":
        metric = next((name for name in BY_DEFAULT if name in known), known[0])
    if metric not in known:
        raise ConfigError(
            f"train.metric = {metric!r}: the metrics of this task are {', '.join(known)}"
        )
    return metric, own.get(metric) == "higher" or metric in HIGHER_IS_BETTER


def shared_value(
    worker: Worker,
    name: str,
    metric: str,
    found: Mapping[str, float] | None,
    more: Sequence[float] = (),
) -> list[float]:
    """Return the value of the watched metric on all workers. Collective over workers; blocks.

    Args:
        worker: This worker.
        name: Name of the reduction.
        metric: The metric.
        found: Metrics on worker 0; None on others.
        more: Numbers of this worker to be added up over workers.

    Returns:
        The value, and the sums of `more`.

    Raises:
        ConfigError: The evaluation has no such metric.
    """
    is_missing = found is not None and metric not in found
    # The others must not wait for a worker that raises.
    own = math.inf if is_missing else found[metric] if found is not None else 0.0
    value = worker.reduce(name, np.array([own, *more]))
    assert value is not None
    if is_missing:
        assert found is not None
        raise ConfigError(
            f"train.metric = {metric!r}: the metrics of this task are {', '.join(found)}"
        )
    numbers: list[float] = value.tolist()
    return numbers


class EarlyStopping(msgspec.Struct):
    """The best value of the watched metric up to now, and how long ago it was.

    Attributes:
        patience: Evaluations without improvement after which training ends.
        metric: Name of the metric.
        min_delta: A value must be better than the best one by more than this.
        best: The best value; None before the first finite one.
        best_epoch: Epochs that were complete then.
        waited: Evaluations since then.
        higher: Higher values of the metric are better; needs to be given for a task's own metrics only.
        data: The data of the metric, in words; "": unknown.
    """

    patience: int
    metric: str
    min_delta: float = 0.0
    best: float | None = None
    best_epoch: int = 0
    waited: int = 0
    higher: bool = False
    data: str = ""

    def __post_init__(self) -> None:
        """Set the better values of a metric that is not a task's own."""
        self.higher = self.higher or self.metric in HIGHER_IS_BETTER

    @classmethod
    def of(
        cls,
        options: TrainConfig,
        metrics: Sequence[str],
        tables: Sequence[Table],
        has_test: bool,
        own: Mapping[str, Direction] = _NONE_OWN,
    ) -> EarlyStopping | None:
        """Return the state at the beginning of a run; None if training never ends early.

        Args:
            options: Options of the training.
            metrics: Names of the task's metrics; () if they are not known.
            tables: Tables of the task.
            has_test: The job has test data.
            own: Metrics of the task's own, with their better values.

        Raises:
            ConfigError: The job has no such metric, no test data, or workers that may skip evaluations.
        """
        if not options.patience:
            return None
        why = f"train.patience = {options.patience}"
        metric, higher = watched(options, why, metrics, tables, has_test, own)
        return cls(options.patience, metric, options.min_delta, higher=higher)

    def restore(self, position: Mapping[str, Any]) -> None:
        """Continue with the state in a worker's position, unless it is about other data."""
        if self.data and position.get("watched_data", self.data) != self.data:
            return
        for name in _FIELDS:
            if name in position:
                setattr(self, name, position[name])

    def position(self) -> dict[str, Any]:
        """Return the state as a part of a worker's position."""
        return {"watched_data": self.data, **{name: getattr(self, name) for name in _FIELDS}}

    def agree(self, worker: Worker, epochs: int, found: Mapping[str, float] | None) -> None:
        """Take the metrics of an evaluation into account. Collective over workers; blocks.

        Args:
            worker: This worker.
            epochs: Number of complete epochs.
            found: Metrics on worker 0; None on others.

        Raises:
            ConfigError: The evaluation has no such metric.
        """
        name = f"early stopping, epoch {epochs}"
        self.note(epochs, shared_value(worker, name, self.metric, found)[0])

    def note(self, epochs: int, value: float) -> None:
        """Add the value of an evaluation. One that is not finite does not count as an improvement."""
        if math.isfinite(value) and (self.best is None or self._gain(value) > self.min_delta):
            self.best, self.best_epoch, self.waited = value, epochs, 0
        else:
            self.waited += 1

    def _gain(self, value: float) -> float:
        assert self.best is not None
        return value - self.best if self.higher else self.best - value

    @property
    def is_over(self) -> bool:
        """True if training ends."""
        return self.waited >= self.patience

    def text(self, epochs: int) -> str:
        """Return in words why training ended after so many epochs."""
        name = metric_label(self.metric)
        best = (
            f"best {self.best:.4f} after epoch {self.best_epoch}"
            if self.best_epoch
            else "never finite"
        )
        times = f"{self.waited} evaluation{'s' if self.waited != 1 else ''}"
        return f"after epoch {epochs}: {name} did not improve in {times} ({best})"
