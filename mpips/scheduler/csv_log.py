"""The metrics of a run as CSV files: metrics.csv and evaluations.csv in the run directory.

The columns are always the same. An unknown value is an empty cell. The files have the lines of metrics.jsonl
that make one series, see `mpips.rundir.series`, so they are written anew at the beginning of an attempt,
after old lines have been merged and when an evaluation of an earlier attempt is repeated, each by a rename.
In between a row is added in one write.
"""

from __future__ import annotations

import csv
import io
import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mpips.rundir.directory import RunFolder
from mpips.rundir.series import evaluations_of, metrics_of, series

COLUMNS = (
    "time_s",
    "generation",
    "epoch",
    "step",
    "samples",
    "loss",
    "samples_per_s",
    "staleness",
    "push_bytes_per_s",
    "pull_bytes_per_s",
)
EVALUATION_COLUMNS = ("time_s", "generation", "epoch", "step", "metric", "value", "data")


class CsvLog:
    """The CSV files of a run; see `mpips.scheduler.logs.MetricsLog`."""

    def __init__(self, run: RunFolder) -> None:
        """Write nothing yet."""
        self._run = run
        self._metrics = run.path / "metrics.csv"
        self._evaluations = run.path / "evaluations.csv"
        self._evaluated: set[tuple[int, str, str]] = set()  # see evaluations_of; at `begin`

    def begin(self) -> None:
        """Write both files anew from metrics.jsonl; see MetricsLog."""
        lines = series(self._run)
        self._evaluated = {key for line in lines for key in evaluations_of(line)}
        _replace(self._metrics, COLUMNS, (row for line in lines for row in _progress(line)))
        _replace(
            self._evaluations,
            EVALUATION_COLUMNS,
            (row for line in lines for row in _evaluation(line)),
        )

    def add(self, line: dict[str, Any], staleness: Sequence[int]) -> None:
        """Add the rows of a line, which metrics.jsonl has already; see MetricsLog."""
        if not self._evaluated.isdisjoint(evaluations_of(line)):
            self.begin()
            return
        for path, rows in (
            (self._metrics, _progress(line)),
            (self._evaluations, _evaluation(line)),
        ):
            if rows:
                with path.open("ab", buffering=0) as file:
                    file.write(_encoded(rows))

    def thinned(self) -> None:
        """Write both files anew; see MetricsLog."""
        self.begin()

    def close(self) -> None:
        """Do nothing: all rows are written."""


def _progress(line: dict[str, Any]) -> list[list[Any]]:
    """Return the row of metrics.csv for a line; none for an evaluation."""
    return [] if metrics_of(line)[0] else [[line.get(name) for name in COLUMNS]]


def _evaluation(line: dict[str, Any]) -> list[list[Any]]:
    """Return the rows of evaluations.csv for a line."""
    data, metrics = metrics_of(line)
    head = [line.get(name) for name in EVALUATION_COLUMNS[:4]]
    return [[*head, *pair, data] for pair in metrics.items()]


def _encoded(rows: Iterable[Sequence[Any]]) -> bytes:
    """Return rows as CSV; None is an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _replace(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Replace a file in one step, by a rename; a failure leaves the old one."""
    new = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        with new.open("xb") as file:
            file.write(_encoded([columns]))
            file.write(_encoded(rows))
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
