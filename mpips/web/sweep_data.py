"""The trials of a sweep, for its page: options, state and result of each, the best first.

`mpips sweep` writes sweep.json into the folder of the trials' run directories; see `mpips.supervisor.sweep`.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import msgspec

from mpips.data.metrics import BY_DEFAULT
from mpips.monitor.about import higher_is_better
from mpips.monitor.summary_text import metric_names
from mpips.rundir.directory import RunFolder, version_of
from mpips.rundir.reading import DAMAGED, read_regular
from mpips.rundir.view import view_or_damage

_FIRST = (*BY_DEFAULT, "loss")  # metrics that count where sweep.json names none
_MOST_TRIALS = 1000  # trials that are shown


class _Trial(msgspec.Struct, frozen=True):
    run: str
    assignments: tuple[str, ...] = ()


class _Sweep(msgspec.Struct, frozen=True):
    """The part of sweep.json that the page shows."""

    trials: tuple[_Trial, ...]
    job: str = ""
    metric: str = ""
    own_metrics: dict[str, str] = {}


class SweepData:
    """The trials of one sweep. One thread uses it at a time."""

    def __init__(self, folder: Path) -> None:
        """Read nothing yet. `folder`: the folder of the sweep; it need not have a sweep.json."""
        self._folder = folder
        self._results: dict[
            str, tuple[Any, dict[str, Any]]
        ] = {}  # by run, with the version of its file

    def read(self, states: dict[str, str]) -> dict[str, Any] | None:
        """Return the table of the trials; None: the folder has no sweep that can be read.

        Args:
            states: State of each run by its name, as `mpips top` shows it.

        Returns:
            `job`; `metric`, the one that counts, or ""; `higher`, True if higher values of it are better;
            `keys`, the options that vary; `metrics`, names of the results; `trials`, a list with the number,
            the run, the values of the options, the state, epochs, seconds and metrics of each trial.
        """
        try:
            content = read_regular(self._folder / "sweep.json")
            sweep = msgspec.json.decode(content, type=_Sweep)
        except (OSError, ValueError, *DAMAGED):
            return None
        trials = [
            self._trial(i + 1, trial, states.get(trial.run, ""))
            for i, trial in enumerate(sweep.trials[:_MOST_TRIALS])
            if _is_name(trial.run)
        ]
        there = {name for trial in trials for name in trial["metrics"]}
        own = {name: better for name, better in sweep.own_metrics.items() if better != "none"}
        order = (sweep.metric, *own, *_FIRST)
        metric = next((name for name in order if name in there), "")
        higher = own[metric] == "higher" if metric in own else higher_is_better(metric) is True
        sign = -1.0 if higher else 1.0
        trials.sort(key=lambda trial: sign * trial["metrics"].get(metric, sign * math.inf))
        names = metric_names([trial["metrics"] for trial in trials])
        return {
            "job": sweep.job,
            "metric": metric,
            "higher": higher,
            "keys": [
                text.partition("=")[0] for text in (sweep.trials or (_Trial(""),))[0].assignments
            ],
            "metrics": [name for name in names if name in there],
            "trials": trials,
        }

    def _trial(self, number: int, trial: _Trial, state: str) -> dict[str, Any]:
        run = RunFolder(self._folder / trial.run)
        version = version_of(run.result_file)
        known = self._results.get(trial.run)
        if known is None or known[0] != version:
            known = self._results[trial.run] = version, _result(run)
        # The list of states has the newest runs of the folder only.
        if not state and any(version_of(run.finished_file)):
            state = view_or_damage(run).state
        # A trial that is continued has the result of its last end until it is done.
        result = known[1] if state == "done" else {}
        return {
            "number": number,
            "run": trial.run,
            "values": [text.partition("=")[2] for text in trial.assignments],
            "state": state,
            "epochs": result.get("epochs"),
            "seconds": result.get("seconds"),
            "metrics": result.get("metrics", {}),
        }


def _is_name(name: str) -> bool:
    """Return True for the name of a folder in a folder, False for a path that leads elsewhere."""
    return name not in ("", "..") and "\0" not in name and Path(name).name == name


def _result(run: RunFolder) -> dict[str, Any]:
    """Return epochs, seconds and finite metrics of a finished training; empty without a result."""
    try:
        found = msgspec.json.decode(read_regular(run.result_file), type=dict[str, Any])
    except (OSError, ValueError, *DAMAGED):
        return {}
    history = found.get("history")
    rows = [row for row in history if isinstance(row, dict)] if isinstance(history, list) else []
    metrics = {name: found.get(name) for name in metric_names(rows)}
    return {
        "epochs": _number(found.get("epochs")),
        "seconds": _number(found.get("seconds")),
        "metrics": {name: value for name, value in metrics.items() if _number(value) is not None},
    }


def _number(value: Any) -> float | None:
    """Return a finite number; None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # JSON has integers that no float holds.
    return value if is_number and abs(value) <= sys.float_info.max else None
