"""The trials of a sweep, for its page: options, state and result of each, the best first.

`mpips sweep` writes sweep.json into the folder of the trials' run directories; see `mpips.supervisor.sweep`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mpips.data.quotients import Direction
from mpips.monitor.best_epoch import is_higher
from mpips.monitor.summary_text import metric_names
from mpips.monitor.trials import (
    SweepFile,
    Trial,
    TrialResult,
    chosen_metric,
    ranked,
    result_of,
)
from mpips.rundir.directory import RunFolder, version_of
from mpips.rundir.reading import DAMAGED, read_regular
from mpips.rundir.view import view_or_damage

_MOST_RUNS = 1000  # runs of trials that are read


class _Sweep(msgspec.Struct, frozen=True):
    """The part of sweep.json that the page shows; a file of an earlier version may lack some of it."""

    trials: tuple[Trial, ...]
    job: str = ""
    metric: str = ""
    own_metrics: dict[str, Direction] = {}
    folds: int = 0


class SweepData:
    """The trials of one sweep. One thread uses it at a time."""

    def __init__(self, folder: Path) -> None:
        """Read nothing yet. `folder`: the folder of the sweep; it need not have a sweep.json."""
        self._folder = folder
        # Result of each run that is done, with the version of its file.
        self._results: dict[str, tuple[Any, TrialResult]] = {}

    def read(self, states: Mapping[str, str]) -> dict[str, Any] | None:
        """Return the table of the trials, as `mpips sweep` prints it; None: no sweep can be read.

        Args:
            states: State of each run by its name, as `mpips top` shows it.

        Returns:
            `job`; `metric`, the one that counts, or ""; `higher`, True if higher values of it are better;
            `keys`, the options that vary; `metrics`, names of the results; `folds`, the number of folds;
            `trials`, a list with the number, the run, the values of the options, the state, epochs, seconds
            and metrics of each trial. Metrics are those of its best epoch, `epoch`; with folds, their means,
            and `spread` is the standard deviation of the one that counts.
        """
        try:
            content = read_regular(self._folder / "sweep.json")
            found = msgspec.json.decode(content, type=_Sweep)
        except (OSError, ValueError, *DAMAGED):
            return None
        folds = max(found.folds, 0)
        named = [trial for trial in found.trials if _is_name(trial.run)]
        runs = named[: _MOST_RUNS - _MOST_RUNS % max(folds, 1)]
        sweep = SweepFile(found.job, found.metric, tuple(runs), found.own_metrics, folds)
        results = [self._result(sweep, i + 1, states) for i in range(len(runs))]
        metric, best_first = chosen_metric(sweep, results), ranked(sweep, results)
        shown = [result.at(metric) for result in best_first]
        there = {name for metrics in shown for name in metrics}
        return {
            "job": sweep.job,
            "metric": metric,
            "higher": is_higher(metric, sweep.own_metrics),
            "keys": [text.partition("=")[0] for text in (runs[0].assignments if runs else ())],
            "metrics": [name for name in metric_names(shown) if name in there],
            "folds": folds,
            "trials": [
                _row(result, metrics) for result, metrics in zip(best_first, shown, strict=True)
            ],
        }

    def _result(self, sweep: SweepFile, number: int, states: Mapping[str, str]) -> TrialResult:
        """Return the result of a run, or its state; a result is read again when its file has changed."""
        name = sweep.trials[number - 1].run
        run = RunFolder(self._folder / name)
        state = states.get(name, "")
        # The list of states has the newest runs of the folder only.
        if not state and any(version_of(run.finished_file)):
            state = view_or_damage(run).state
        # A trial that is continued has the result of its last end until it is done.
        if state != "done":
            return result_of(sweep, number, self._folder, state)
        version = (sweep.own_metrics, number, version_of(run.result_file))
        known = self._results.get(name)
        if known is None or known[0] != version:
            known = self._results[name] = version, result_of(sweep, number, self._folder, state)
        return known[1]


def _row(result: TrialResult, metrics: Mapping[str, float]) -> dict[str, Any]:
    """Return a trial in one line."""
    return {
        "number": result.number,
        "run": Path(result.run).name,
        "values": [text.partition("=")[2] for text in result.assignments],
        "state": result.state,
        "epoch": result.best.epoch if result.best is not None else None,
        "epochs": result.epochs or None,
        "seconds": result.seconds or None,
        "spread": result.spread,
        "metrics": metrics,
    }


def _is_name(name: str) -> bool:
    """Return True for the name of a folder in a folder, False for a path that leads elsewhere."""
    return name not in ("", "..") and "\0" not in name and Path(name).name == name
