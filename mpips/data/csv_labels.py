"""Labels of a CSV file: numbers, or all of them are text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data.columns import FLOAT32_MAX, Float64, listed
from mpips.data.csv_dialect import is_text, number
from mpips.data.csv_plan import CsvPlan
from mpips.data.csv_rows import CsvRows, complaint
from mpips.data.info import MAX_CLASSES, MOST_LABEL, TOO_MANY
from mpips.errors import DataError

Int64: TypeAlias = npt.NDArray[np.int64]


class LineUnknown(Exception):
    """A label is wrong in records whose lines are unknown; `PlainRows` must read them."""


class CsvLabels:
    """The distinct labels in the records that were read so far.

    Attributes:
        known: The number of each text, in the order of first occurrence; nan for one that is not a number.
    """

    def __init__(self, plan: CsvPlan) -> None:
        """Begin with no records."""
        self._plan = plan
        self.known: dict[str, float] = {}
        self._codes: dict[str, int] = {}

    def copy(self) -> CsvLabels:
        """Return the same labels, to which `add` adds without a change of these."""
        found = CsvLabels(self._plan)
        found.known, found._codes = dict(self.known), dict(self._codes)
        return found

    def add(self, rows: CsvRows) -> Float64:
        """Return the labels of records as numbers, float64, shape (n,).

        They are targets, or places in `known`; `values` turns the latter into labels. 0 if labels are not
        read.

        Raises:
            DataError: A label is wrong; names the line.
            LineUnknown: A label is wrong.
        """
        plan = self._plan
        if plan.label is None:
            return np.zeros(rows.n)
        if plan.options.wants == "targets":
            targets = rows.targets()
            wrong = ~(np.abs(targets) <= FLOAT32_MAX)
            if wrong.any():
                self._refuse(rows, int(np.argmax(wrong)))
            return targets
        texts, codes = rows.labels()
        places = np.zeros(len(texts), np.float64)
        for i, text in enumerate(texts):
            if text not in self.known:
                self._check(text, rows, codes, i)
                self._codes[text] = len(self.known)
                self.known[text] = math.nan if self._is_text(text) else number(text)
            places[i] = self._codes[text]
        return places[codes]

    def names(self) -> tuple[str, ...]:
        """Return the labels that are text, sorted, or those of the training data; (): labels are numbers."""
        given = self._plan.options.label_names
        if given or self._plan.label is None:
            return given
        return tuple(sorted(self.known)) if any(map(math.isnan, self.known.values())) else ()

    def values(self, places: Float64, names: Sequence[str]) -> Float64:
        """Return labels, float64: numbers as in the file, or places in `names`.

        Args:
            places: The array that `add` returned.
            names: The labels that are text; (): numbers.
        """
        if self._plan.label is None or self._plan.options.wants == "targets":
            return places
        place = {name: float(i) for i, name in enumerate(names)}
        table = [place[text] for text in self.known] if names else list(self.known.values())
        return np.array(table, np.float64).take(places.astype(np.int64))

    def _check(self, text: str, rows: CsvRows, codes: Int64, code: int) -> None:
        """Check a label that was not seen before.

        Raises:
            DataError, LineUnknown: Labels are numbers and this one is not a finite number, or it is not one
                of the texts of the training data, or there are too many labels.
        """
        names = self._plan.options.label_names
        beyond = False
        text_here = self._is_text(text)
        if names:
            if text in names:
                return
        else:
            mixed = bool(self.known) and text_here != math.isnan(next(iter(self.known.values())))
            wrong = not text_here and not abs(number(text)) <= FLOAT32_MAX
            beyond = not text_here and not wrong and abs(number(text)) > MOST_LABEL
            wrong = wrong or beyond
            if not wrong and not mixed and len(self.known) < MAX_CLASSES:
                return
        lines = rows.lines
        if lines is None:
            raise LineUnknown
        line = lines[int(np.argmax(codes == code))]
        where = f"{self._plan.path}:{line}"
        if names:
            raise DataError(
                f"{where}: label '{text}' does not occur in the training data, whose labels are "
                f"{listed(names)}"
            )
        assert self._plan.label is not None
        if beyond:
            raise DataError(
                f"{where}: label {text} is beyond 2**53, where different whole numbers are one float64: set "
                'data.label_kind = "text"'
            )
        if wrong or mixed:
            raise DataError(complaint(self._plan, text, self._plan.label, line))
        kind = "texts as labels" if text_here else "labels, which are too many to be classes"
        raise DataError(f"{where}: more than {MAX_CLASSES} distinct {kind}; {TOO_MANY}")

    def _is_text(self, text: str) -> bool:
        """Return True for a label that is not a number, or not to be read as one."""
        return bool(text) if self._plan.options.label_kind == "text" else is_text(text)

    def _refuse(self, rows: CsvRows, place: int) -> None:
        """Raise the error of a target that is not a finite number."""
        lines = rows.lines
        if lines is None:
            raise LineUnknown
        assert self._plan.label is not None
        texts, codes = rows.labels()
        text = texts[int(codes[place])]
        raise DataError(complaint(self._plan, text, self._plan.label, lines[place]))
