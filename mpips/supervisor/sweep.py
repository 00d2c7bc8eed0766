"""A sweep: runs of one job with different options, in a folder that can be continued.

The folder has a run directory for each trial, made before the first one starts, and sweep.json. A trial is
`mpips run RUN` in a process of its own, so a trial that was interrupted continues from its checkpoint, and
the folder is read by `mpips ls`, `mpips diff` and all other commands for runs.
"""

from __future__ import annotations

import functools
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from msgspec.structs import replace

from mpips.config.schema import JobConfig
from mpips.data.quotients import Direction
from mpips.errors import ConfigError
from mpips.monitor.trials import (
    METRICS,
    SweepFile,
    Trial,
    TrialResult,
    chosen_metric,
    ranked,
    result_of,
    with_best,
)
from mpips.rundir.directory import RunFolder, read_json, replace_json
from mpips.rundir.view import view_or_damage
from mpips.supervisor import child
from mpips.supervisor.plan import make_run

FILE = "sweep.json"
LOG = "sweep.log"  # in the folder of a run's logs: what its supervisor printed
_LOOK_S = 0.5  # s between two looks at a trial that runs
PREEMPTED = 75  # exit code of a run that wrote a checkpoint and ended because it was asked to


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
        run = RunFolder(self.path / self.content.trials[number - 1].run)
        return result_of(self.content, number, self.path, view_or_damage(run).state)

    def with_best(self, result: TrialResult, metric: str) -> TrialResult:
        """Return a result with the best value of a metric over its epochs."""
        return with_best(result, metric, self.content.own_metrics)

    def results(self) -> list[TrialResult]:
        """Return the results of all runs, in their order."""
        return [self.result(i + 1) for i in range(len(self.content.trials))]

    def metric(self, results: Sequence[TrialResult]) -> str:
        """Return the name of the metric that counts; "" if no trial has a result yet."""
        return chosen_metric(self.content, results)

    def ranked(self) -> list[TrialResult]:
        """Return the results by their best values, the best first; those without the metric last."""
        return ranked(self.content, self.results())

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
    if metric and metric not in (*METRICS, *own):
        raise ConfigError(f"--metric {metric}: must be one of {', '.join((*METRICS, *own))}")
    return metric
