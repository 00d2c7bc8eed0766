"""The curves of a run from metrics.jsonl: rows of progress with a bounded number, and evaluations.

A row stands for one line or for several that were merged, as `mpips.rundir.thinning` merges them: sums at
the end of its time, means weighted by samples or by time. So the page draws a long run as fast as a short
one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from mpips.monitor.about import VALIDATION, EvaluatedStep, best_of, higher_is_better, metric_of
from mpips.rundir.files import Event
from mpips.rundir.reading import DAMAGED
from mpips.rundir.series import settled
from mpips.rundir.thinning import even_places, gathered, weighted_mean

_MOST_ROWS = 3000  # rows above which neighbours are merged, to half of it
_MOST_TESTS = 2000  # evaluations that are held; the page draws no more
_MOST_METRICS = 12  # metrics whose best evaluations are always held


LATEST_S = 1e11  # Unix time; a later one, and one before 0, is none that a clock has shown
_Whole = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]  # a number that the page can represent


class _Line(msgspec.Struct):
    """A line of metrics.jsonl: of progress, or with `test` or `validation` of an evaluation."""

    time_s: float
    generation: _Whole
    step: _Whole = 0
    epoch: _Whole = 0
    samples: _Whole = 0
    loss: float | None = None
    samples_per_s: float | None = None
    staleness: float | None = None
    push_bytes_per_s: float | None = None
    pull_bytes_per_s: float | None = None
    learning_rate: float | None = None
    test: dict[str, float | None] | None = None
    validation: dict[str, float | None] | None = None

    @property
    def evaluated(self) -> dict[str, float | None] | None:
        """Metrics of an evaluation; the names of those of validation data begin with `VALIDATION`."""
        if self.validation is None:
            return self.test
        return {f"{VALIDATION}{name}": value for name, value in self.validation.items()}


# Columns of a row that is sent to the page.
COLUMNS = (
    "time_s",
    "step",
    "samples",
    "loss",
    "samples_per_s",
    "staleness",
    "push",
    "pull",
    "generation",
    "learning_rate",
)
_LOSS = 3
_MEANS = (
    (3, 0),
    (4, 1),
    (5, 0),
    (6, 1),
    (7, 1),
    (9, 0),
)  # column, and index of its weight in a row's weights
Row = tuple[Any, ...]
Test = tuple[float, int, int, dict[str, float | None], int, int]
Weights = tuple[float, float]  # samples and seconds of a row


class Curve:
    """Rows of one run. One thread uses it at a time.

    Attributes:
        rows: Rows in the order of COLUMNS, the oldest first.
        tests: Evaluations: time, step, samples, metrics by name, generation, complete epochs.
        epoch: A number that changes when rows other than new ones have changed.
        n_lines: Lines of progress that were read.
    """

    def __init__(self, epoch: int = 0) -> None:
        """Begin without rows. `epoch`: the first one."""
        self.rows: list[Row] = []
        self.tests: list[Test] = []
        self.epoch = epoch
        self.n_lines = 0
        self._weights: list[Weights] = []  # of each row
        self._decode = msgspec.json.Decoder(_Line).decode
        self._generation = -1
        self._offset = 0  # samples before this attempt; steps that an attempt repeats count once
        self._last = 0  # samples of the last line of this attempt
        self._n_tests = 0  # evaluations that were read
        self._settled: tuple[int, tuple[tuple[int, int], ...]] = (0, ())  # see `settle`

    def add(self, lines: Iterable[bytes], group: int = 1) -> None:
        """Add lines of the file; those that are damaged or of another form are skipped.

        Args:
            lines: The lines.
            group: Number of lines of progress that become one row, to read a long file quickly.
        """
        pending = list[tuple[Row, Weights]]()
        for encoded in lines:
            try:
                line = self._decode(encoded)
            except DAMAGED:
                continue
            if not is_sane(line.time_s):
                continue
            if line.evaluated is not None:
                self._add_test(line, line.evaluated)
            elif line.samples_per_s is not None:
                if pending and (len(pending) == group or line.generation != self._generation):
                    self._append(pending)
                pending.append(self._row_of(line))
        self._append(pending)

    def _add_test(self, line: _Line, metrics: dict[str, float | None]) -> None:
        if len(self.tests) >= _MOST_TESTS:
            best = self._best_places()
            self.tests = [test for i, test in enumerate(self.tests) if i % 2 or i in best]
            self.epoch += 1
        samples = self.rows[-1][2] if self.rows else 0
        epochs = line.epoch + 1
        self.tests.append((line.time_s, line.step, samples, metrics, line.generation, epochs))
        self._n_tests += 1

    def _best_places(self) -> set[int]:
        """Return the places of the best evaluations by the first metrics, which are never left out."""
        evaluations = self.evaluations()
        names = list(self.tests[-1][3])[:_MOST_METRICS]
        best = [best_of(evaluations, n, higher_is_better(metric_of(n))) for n in names]
        return {i for i, each in enumerate(evaluations) if any(each is found for found in best)}

    def evaluations(self) -> list[EvaluatedStep]:
        """Return the evaluations."""
        return [EvaluatedStep(test[1], test[5], test[3]) for test in self.tests]

    def settle(self, events: Iterable[Event]) -> None:
        """Leave out evaluations that a later attempt has repeated; see `mpips.rundir.series`.

        Args:
            events: All events of the run.
        """
        began = [event for event in events if event.event == "began"]
        seen = self._n_tests, tuple((event.generation, event.step) for event in began)
        if seen == self._settled:
            return
        self._settled = seen
        lines: list[dict[str, Any]] = [
            {"step": step, "generation": generation, "test": metrics, "place": place}
            for place, (_, step, _, metrics, generation, _) in enumerate(self.tests)
        ]
        left = [
            (*self.tests[at][:3], line["test"], *self.tests[at][4:])
            for line in settled(lines, began)
            for at in (line["place"],)
        ]
        if left != self.tests:
            self.tests = left
            self.epoch += 1

    def _row_of(self, line: _Line) -> tuple[Row, Weights]:
        """Return the row of a line, and its weights."""
        if line.generation != self._generation:
            self._begin(line)
        n = max(line.samples - self._last, 0)
        self._last = line.samples
        rate = line.samples_per_s or 0.0
        row = (
            line.time_s,
            line.step,
            self._offset + line.samples,
            line.loss,
            line.samples_per_s if line.samples else None,  # a script may count none
            line.staleness,
            line.push_bytes_per_s,
            line.pull_bytes_per_s,
            line.generation,
            line.learning_rate,
        )
        self.n_lines += 1
        return row, (float(n), n / rate if rate > 0 else 0.0)

    def _append(self, pending: list[tuple[Row, Weights]]) -> None:
        """Add a row that stands for all of these, and empty the list."""
        if not pending:
            return
        self._add_merged(pending)
        pending.clear()
        if len(self.rows) > _MOST_ROWS:
            self._merge()

    def _add_merged(self, together: list[tuple[Row, Weights]]) -> None:
        """Add a row that stands for all of these."""
        rows, weights = [row for row, _ in together], [of for _, of in together]
        self.rows.append(_merged(rows, weights) if len(rows) > 1 else rows[0])
        self._weights.append((sum(w[0] for w in weights), sum(w[1] for w in weights)))

    def _begin(self, line: _Line) -> None:
        """Begin an attempt: its samples follow those of the step that it started from.

        The file has no samples of that step. A step of this attempt has as many samples as one of those
        before.
        """
        self._offset = 0
        if self.rows and self.rows[-1][1] > 0:
            per_step = self.rows[-1][2] / self.rows[-1][1]
            self._offset = max(round(per_step * line.step) - line.samples, 0)
        self._generation, self._last = line.generation, 0

    def _merge(self) -> None:
        """Merge rows of one attempt that lie close together: those left are spread over time evenly."""
        places = even_places([(row[8], row[0]) for row in self.rows], _MOST_ROWS // 2)
        weighted = zip(self.rows, self._weights, strict=True)
        self.rows, self._weights = [], []
        for together in gathered(zip(weighted, places, strict=True)):
            self._add_merged(together)
        self.epoch += 1


def is_sane(time_s: float) -> bool:
    """Return True if this is a Unix time that a clock can have shown."""
    return 0.0 <= time_s <= LATEST_S


def _merged(rows: list[Row], weights: list[Weights]) -> Row:
    """Return the row that stands for neighbours: the last one, with weighted means."""
    found = list(rows[-1])
    for column, weight in _MEANS:
        values = [row[column] for row in rows]
        # A loss that is no number makes the mean none, too.
        is_known = column != _LOSS or None not in values
        found[column] = weighted_mean(values, [of[weight] for of in weights]) if is_known else None
    return tuple(found)
