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
from types import FrameType
from typing import Any

import msgspec

from mpips.config.schema import JobConfig
from mpips.data.metrics import BY_DEFAULT, HIGHER_IS_BETTER
from mpips.data.quotients import Direction
from mpips.errors import ConfigError
from mpips.monitor.top import look
from mpips.rundir.directory import RunFolder, read_json, replace_json
from mpips.rundir.reading import DAMAGED
from mpips.supervisor import child
from mpips.supervisor.plan import make_run

FILE = "sweep.json"
LOG = "sweep.log"  # in the folder of a run's logs: what its supervisor printed
_LOOK_S = 0.5  # s between two looks at a trial that runs
PREEMPTED = 75  # exit code of a run that wrote a checkpoint and ended because it was asked to
_FIRST = (*BY_DEFAULT, "loss")
_METRICS = (*_FIRST, "mae", *sorted(HIGHER_IS_BETTER))


class Trial(msgspec.Struct, frozen=True):
    """A trial. `run`: name of its run directory; `assignments`: its options, as for --set."""

    run: str
    assignments: tuple[str, ...]


class SweepFile(msgspec.Struct, frozen=True):
    """Content of sweep.json.

    Attributes:
        job: The job, for messages.
        metric: Name of the metric that counts; "": the loss of the task.
        trials: The trials.
        own_metrics: Metrics of the task's own, with their better values.
    """

    job: str
    metric: str
    trials: tuple[Trial, ...]
    own_metrics: dict[str, Direction] = {}


class TrialResult(msgspec.Struct, frozen=True):
    """The result of a trial.

    Attributes:
        number: Number of the trial, from 1.
        run: Path of its run directory.
        assignments: Its options, as for --set.
        state: State of the run, as `mpips top` shows it; "done": it has a result.
        epochs: Epochs that are complete; 0: no result yet.
        seconds: Seconds of training.
        metrics: Metrics by name, finite ones only.
    """

    number: int
    run: str
    assignments: tuple[str, ...]
    state: str
    epochs: int = 0
    seconds: float = 0.0
    metrics: dict[str, float] = {}


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
    ) -> Sweep:
        """Make the folder and a run directory for each trial.

        Args:
            path: The folder; must not have a sweep yet.
            job: The job, for messages.
            metric: Name of the metric that counts; "": the loss of the task.
            trials: Assignments and configuration of each trial; the configurations are valid.
            own_metrics: Metrics of the task's own, with their better values; None: none.

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
            run = make_run(config, path, f"trial-{i + 1:0{digits}}")
            made.append(Trial(run.path.name, assignments))
        content = SweepFile(job, metric, tuple(made), dict(own_metrics or {}))
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
        """Return the result, or the state, of trial `number`, counted from 1."""
        trial = self.content.trials[number - 1]
        run = RunFolder(self.path / trial.run)
        state, found = look(run).state, _read_result(run)
        path = str(self.path / trial.run)
        if found is None or run.finished() is None:
            state = "ended" if state == "done" else state
            return TrialResult(number, path, trial.assignments, state)
        finite = {
            name: float(found[name])
            for name in (*_METRICS, *self.content.own_metrics)
            if isinstance(found.get(name), int | float) and math.isfinite(found[name])
        }
        return TrialResult(
            number,
            path,
            trial.assignments,
            "done",
            int(found.get("epochs", 0)),
            float(found.get("seconds", 0.0)),
            finite,
        )

    def results(self) -> list[TrialResult]:
        """Return the results of all trials, in their order."""
        return [self.result(i + 1) for i in range(len(self.content.trials))]

    def metric(self, results: Sequence[TrialResult]) -> str:
        """Return the name of the metric that counts; "" if no trial has a result yet."""
        if self.content.metric:
            return self.content.metric
        there = {name for result in results for name in result.metrics}
        own = [name for name, better in self.content.own_metrics.items() if better != "none"]
        return next((name for name in (*own, *_FIRST) if name in there), "")

    def ranked(self) -> list[TrialResult]:
        """Return the results, the best first; those without the metric last, in the order of the trials."""
        results = self.results()
        metric = self.metric(results)
        higher = metric in HIGHER_IS_BETTER or self.content.own_metrics.get(metric) == "higher"
        sign = -1.0 if higher else 1.0
        return sorted(results, key=lambda r: sign * r.metrics.get(metric, sign * math.inf))

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
                run = RunFolder(self.path / trial.run)
                run.logs.mkdir(exist_ok=True)
                process = child.start(run, run.logs / LOG, ["--quiet", *options])
                code = forwarding.wait(process, functools.partial(watch, i + 1))
                tell(self.result(i + 1), code)
                if forwarding.received:
                    return 128 + forwarding.received
                if code == PREEMPTED:
                    return code
        return 0


class _Forwarding:
    """Passes signals on to the supervisor of the present trial, which writes a checkpoint.

    Attributes:
        received: Number of the first SIGINT or SIGTERM, which end the sweep; 0: none.
    """

    def __init__(self) -> None:
        self.received = 0
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

    def wait(self, process: subprocess.Popen[bytes], watch: Callable[[], None]) -> int:
        """Wait for the end of a supervisor; return its exit code. `watch`: called about twice a second."""
        self._process = process
        # A signal that came between the start and now was not passed on.
        if self.received:
            process.send_signal(self.received)
        while True:
            try:
                code = process.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                watch()
                continue
            self._process = None
            return code


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
