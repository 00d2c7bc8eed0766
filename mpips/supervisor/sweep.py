"""A sweep: runs of one job with different options, in a folder that can be continued.

The folder has a run directory for each trial, made before the first one starts, and sweep.json. A trial is
`mpips run RUN` in a process of its own, so a trial that was interrupted continues from its checkpoint, and
the folder is read by `mpips ls`, `mpips diff` and all other commands for runs.
"""

from __future__ import annotations

import functools
import math
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from types import FrameType
from typing import Any

import msgspec
from msgspec.structs import replace

from mpips.config.schema import JobConfig
from mpips.data.metrics import BY_DEFAULT, HIGHER_IS_BETTER
from mpips.data.quotients import Direction
from mpips.errors import ConfigError
from mpips.monitor.best_epoch import BestEpoch, best_epoch, is_higher, rows_of
from mpips.rundir.directory import RunFolder, read_json, replace_json
from mpips.rundir.reading import DAMAGED
from mpips.rundir.view import view_or_damage
from mpips.supervisor import child
from mpips.supervisor.plan import make_run

FILE = "sweep.json"
LOG = "sweep.log"  # in the folder of a run's logs: what its supervisor printed
_LOOK_S = 0.5  # s between two looks at a trial that runs
PREEMPTED = 75  # exit code of a run that wrote a checkpoint and ended because it was asked to
_FIRST = (*BY_DEFAULT, "loss")
_METRICS = (*_FIRST, "mae", *sorted(HIGHER_IS_BETTER))


class Trial(msgspec.Struct, frozen=True):
    """A run of a trial.

    Attributes:
        run: Name of its run directory.
        assignments: Options of the trial, as for --set.
        fold: Number of the fold that it holds out, from 1; 0: the sweep has no folds.
    """

    run: str
    assignments: tuple[str, ...]
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


class Sweep:
    """The folder of a sweep. One process at a time runs it; others may read it."""

    def __init__(self, path: Path, content: SweepFile) -> None:
        """Take the content of a folder; see `create` and `open`."""
        self.path = path
        self.content = content

    @classmethod
    def create(
        cls,
        path: Path,
        job: str,
        metric: str,
        trials: Sequence[tuple[tuple[str, ...], JobConfig]],
        own_metrics: Mapping[str, Direction] | None = None,
        folds: int = 0,
    ) -> Sweep:
        """Make the folder and a run directory for each trial.

        Args:
            path: The folder; must not have a sweep yet.
            job: The job, for messages.
            metric: Name of the metric that counts; "": the loss of the task.
            trials: Assignments and configuration of each trial; the configurations are valid.
            own_metrics: Metrics of the task's own, with their better values; None: none.
            folds: Number of folds, each of which is a run of each trial; 0: none.

        Raises:
            ConfigError: The folder has a sweep, or cannot be written to.
        """
        if (path / FILE).exists():
            raise ConfigError(
                f"{path}: has a sweep already; continue it with `mpips sweep {path}`, or use another --folder"
            )
        digits = len(str(len(trials)))
        made = []
        for i, (assignments, config) in enumerate(trials):
            for fold in range(1, folds + 1) if folds else (0,):
                data = replace(config.data, folds=folds, fold=fold) if fold else config.data
                name = f"trial-{i + 1:0{digits}}" + (f"-fold-{fold}" if fold else "")
                run = make_run(replace(config, data=data), path, name)
                made.append(Trial(run.path.name, assignments, fold))
        content = SweepFile(job, metric, tuple(made), dict(own_metrics or {}), folds)
        try:
            replace_json(path / FILE, content, durable=True)
        except OSError as error:
            raise ConfigError(f"{path / FILE}: cannot be written: {error.strerror}") from None
        return cls(path, content)

    @classmethod
    def open(cls, path: Path) -> Sweep:
        """Read a folder that `create` made.

        Raises:
            ConfigError: It has no sweep.
        """
        content = read_json(path / FILE, SweepFile)
        if content is None:
            raise ConfigError(f"{path}: has no {FILE}; give the folder of a sweep, or a job")
        return cls(path, content)

    def result(self, number: int) -> TrialResult:
        """Return the result, or the state, of run `number`, counted from 1; with folds, a run is one fold."""
        trial = self.content.trials[number - 1]
        number = (number - 1) // max(self.content.folds, 1) + 1
        run = RunFolder(self.path / trial.run)
        state, found = view_or_damage(run).state, _read_result(run)
        path = str(self.path / trial.run)
        if found is None or state != "done":
            state = "ended" if state == "done" else state
            return TrialResult(number, path, trial.assignments, state, fold=trial.fold)
        data = str(found.get("evaluated_data") or "")
        tested = found.get("test_metrics") if data == "validation" else None
        return TrialResult(
            number,
            path,
            trial.assignments,
            "done",
            int(found.get("epochs", 0)),
            float(found.get("seconds", 0.0)),
            self._finite(found),
            {e: self._finite(row) for e, row in rows_of(_history(found), data, run).items()},
            self._finite(tested or {}),
            fold=trial.fold,
        )

    def _finite(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics that are finite numbers."""
        return {
            name: float(metrics[name])
            for name in (*_METRICS, *self.content.own_metrics)
            if isinstance(metrics.get(name), int | float) and math.isfinite(metrics[name])
        }

    def with_best(self, result: TrialResult, metric: str) -> TrialResult:
        """Return a result with the best value of a metric over its epochs.

        The loss of the training falls while a model overfits, so its value at the end counts.
        """
        if metric not in result.metrics:
            return result
        rows = {result.epochs: {metric: result.metrics[metric]}}
        if metric != "loss":
            rows = {**result.by_epoch, **rows}
        return replace(result, best=best_epoch(rows, metric, self.content.own_metrics))

    def results(self) -> list[TrialResult]:
        """Return the results of all runs, in their order."""
        return [self.result(i + 1) for i in range(len(self.content.trials))]

    def metric(self, results: Sequence[TrialResult]) -> str:
        """Return the name of the metric that counts; "" if no trial has a result yet."""
        if self.content.metric:
            return self.content.metric
        there = {name for result in results for name in result.metrics}
        own = [name for name, better in self.content.own_metrics.items() if better != "none"]
        return next((name for name in (*own, *_FIRST) if name in there), "")

    def ranked(self) -> list[TrialResult]:
        """Return the results by their best values, the best first; those without the metric last."""
        results = self.results()
        metric = self.metric(results)
        sign = -1.0 if is_higher(metric, self.content.own_metrics) else 1.0
        results = [self.with_best(result, metric) for result in results]
        folds = self.content.folds
        if folds:
            results = [of_folds(results[i : i + folds]) for i in range(0, len(results), folds)]
        return sorted(
            results, key=lambda r: sign * r.best.value if r.best is not None else math.inf
        )

    def run(
        self,
        options: Sequence[str],
        tell: Callable[[TrialResult, int], None],
        watch: Callable[[int], None] = lambda number: None,
    ) -> int:
        """Run all trials that are not done, one after the other; blocks. Main thread only.

        Args:
            options: Options of `mpips run` for each trial.
            tell: Called after each trial with its result and the exit code of its run.
            watch: Called about twice a second with the number of the trial that runs.

        Returns:
            0; 128 plus the number of the signal that ended the sweep; or 75 if SIGUSR1 asked a trial to write
            a checkpoint and to end. A trial that fails does not end the sweep.
        """
        with _Forwarding() as forwarding:
            for i, trial in enumerate(self.content.trials):
                if self.result(i + 1).state == "done":
                    continue
                if forwarding.waiting:
                    return PREEMPTED
                run = RunFolder(self.path / trial.run)
                run.logs.mkdir(exist_ok=True)
                process = child.start(run, run.logs / LOG, ["--quiet", *options])
                code = forwarding.wait(process, functools.partial(watch, i + 1))
                tell(self.result(i + 1), code)
                if forwarding.received:
                    return 128 + forwarding.received
                # A run that SIGUSR1 ended before it could take the signal has nothing to write.
                if code in (PREEMPTED, -signal.SIGUSR1):
                    return PREEMPTED
        return 0


class _Forwarding:
    """Passes signals on to the supervisor of the present trial, which writes a checkpoint.

    A signal may come before the supervisor's process is known: between two trials, or while the process is
    started. It waits in `waiting` then, and `wait` passes it on. The handler runs in the main thread, between
    two statements of `wait`: it appends before the process is known and sends afterwards, so each signal is
    passed on exactly once.

    Attributes:
        received: Number of the first SIGINT or SIGTERM, which end the sweep; 0: none.
        waiting: Numbers of the signals that no supervisor has been sent yet.
    """

    def __init__(self) -> None:
        self.received = 0
        self.waiting: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> _Forwarding:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGUSR1:
            self.received = self.received or number
        # At a terminal the supervisor has the signal already; two within 0.3 s count as one there.
        if self._process is not None:
            self._process.send_signal(number)
        else:
            self.waiting.append(number)

    def wait(self, process: subprocess.Popen[bytes], watch: Callable[[], None]) -> int:
        """Wait for the end of a supervisor; return its exit code. `watch`: called about twice a second."""
        self._process = process
        for number in self.waiting:
            process.send_signal(number)
        self.waiting.clear()
        while True:
            try:
                code = process.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                watch()
                continue
            self._process = None
            return code


def of_folds(results: Sequence[TrialResult]) -> TrialResult:
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
        spread=stdev(values),
    )


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric that all rows have."""
    return {
        name: fmean(row[name] for row in rows) for name in rows[0] if all(name in r for r in rows)
    }


def _history(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the history of a report that have an epoch."""
    rows = found.get("history")
    rows = rows if isinstance(rows, list) else []
    return [
        row for row in rows if isinstance(row, dict) and isinstance(row.get("epoch"), int | float)
    ]


def _read_result(run: RunFolder) -> dict[str, Any] | None:
    """Return the report of a finished training; None if it is missing or damaged."""
    try:
        found = msgspec.json.decode(run.result_file.read_bytes())
    except (OSError, *DAMAGED):
        return None
    return found if isinstance(found, dict) else None


def why(run: Path) -> str:
    """Return why the run of a trial did not finish."""
    return child.reason(RunFolder(run), run / "logs" / LOG)


def check_metric(metric: str, own_metrics: Mapping[str, Direction] | None = None) -> str:
    """Return `metric`.

    Args:
        metric: Name of a metric; "": any.
        own_metrics: Metrics of the task's own, with their better values; None: none.

    Raises:
        ConfigError: No training reports such a metric, or it has no better values.
    """
    own = [name for name, better in (own_metrics or {}).items() if better != "none"]
    if metric and metric not in (*_METRICS, *own):
        raise ConfigError(f"--metric {metric}: must be one of {', '.join((*_METRICS, *own))}")
    return metric
