"""Records of plain CSV text, read by the native parser: fast, and exactly as `csv_rows.py` reads them.

`QuickReader.rows` returns None for text that the parser refuses: quotes inside a cell, numbers in an unusual
notation, numbers that are not finite, missing numbers where none may be missing, records of another width,
cells that are not in the notation that data.convert names.
The caller then reads the text with `PlainRows`, which also names the line of an error.

pyarrow's streaming reader (`pyarrow.csv.open_csv`, pyarrow 26.0) was measured in the place of the parser, on
a busy machine, seconds of CPU of one process:

| file | this parser | pyarrow |
|---|---|---|
| 212 MB, 51 columns of numbers; in turns, best of 4 | 0.70 | 2.0 to 2.2 |
| 242 MB, 13 columns of numbers, 26 of text, 20,000 words; parsing alone, not in turns | 6.5 | 4.7 |
| the same file with the keys of the words; pyarrow once, in batches of 512 KiB | 8.7 | 43 |

So pyarrow parses columns of many words faster, and the keys take more than that. Larger batches with keys
were not measured.

Each of its batches has a new dictionary, so the keys of words are computed anew. It gives no place in the
file. An error of the number of cells names neither line nor row; one of a number names a row, not the line,
and with threads neither. A record that is longer than a block is an error. It reads a quote that is not
closed, and text behind a closed quote, without an error. True, `?` and `none` are neither numbers nor missing
ones for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mpips._native import CsvParser
from mpips.data.cells import (
    Codes,
    ColumnCells,
    NotInNotation,
    NumberCells,
    TextCells,
    text_keys,
    text_numbers,
)
from mpips.data.columns import Column, Float64, Int64, hash_key
from mpips.data.csv_plan import CsvPlan, Text

Values: TypeAlias = Int64 | Float64
Arrays: TypeAlias = Sequence[npt.NDArray[np.float64] | npt.NDArray[np.int32] | None]

_MOST_TEXTS = 1 << 16  # texts of a column that are remembered from one piece of text to the next


class QuickReader:
    """The native parser of one file, with the texts that it has found. Not thread-safe."""

    def __init__(self, plan: CsvPlan) -> None:
        """Say which columns are numbers and which are text."""
        self._plan = plan
        kinds = ["-"] * len(plan.header)
        # The columns whose texts become keys or numbers one by one.
        self._texts = [c for c in plan.columns.features if c.categorical or c.convert]
        for column in plan.columns.features:
            kinds[column.place] = "m" if plan.allows_missing else "n"
        for column in self._texts:
            kinds[column.place] = "t"
        self._has_targets = plan.label is not None and plan.options.wants == "targets"
        if plan.label is not None:
            is_number = self._has_targets and not plan.label.convert
            kinds[plan.label.place] = "n" if is_number else "t"
            if self._has_targets and plan.label.convert:
                self._texts.append(plan.label)
        self._parser = CsvParser("".join(kinds), plan.delimiter, plan.missing.ascii_texts)
        # By the name of the column: for each text its key, int64, or its number, float64.
        self._values: dict[str, Values] = {c.name: _values_of(c, []) for c in self._texts}
        self._labels: list[str] = []

    def rows(self, text: Text) -> QuickRows | None:
        """Return the records in `text`, which are whole; None if `PlainRows` must read them."""
        self._forget()
        found = self._parser.parse(text)
        if found is None:
            return None
        n, n_lines, is_ascii, arrays = found
        if not (is_ascii or _is_utf8(text)):
            self._parser.undo()
            return None
        if not n:
            return None
        try:
            added = {c.name: self._new_values(c) for c in self._texts}
        except NotInNotation:
            self._parser.undo()
            return None
        for name, values in added.items():
            if len(values):
                self._values[name] = np.concatenate([self._values[name], values])
        label = self._plan.label
        if label is not None and not self._has_targets:
            new = self._parser.words(label.place, len(self._labels))
            self._labels += [word.strip() for word in new]
        rows = QuickRows(self._plan, n, n_lines, arrays, dict(self._values), self._labels)
        return rows if rows.allows_missing() else None

    def _new_values(self, column: Column) -> Values:
        """Return the keys or numbers of the texts of a column that have come with the last piece."""
        return _values_of(column, self._parser.words(column.place, len(self._values[column.name])))

    def _forget(self) -> None:
        """Forget the texts of columns that have many, so that they do not fill the memory."""
        for column in self._texts:
            if len(self._values[column.name]) > _MOST_TEXTS:
                self._parser.clear(column.place)
                self._values[column.name] = _values_of(column, [])


class QuickRows:
    """Records that the native parser has divided; see `mpips.data.csv_rows.CsvRows`."""

    def __init__(
        self,
        plan: CsvPlan,
        n: int,
        n_lines: int,
        arrays: Arrays,
        values: dict[str, Values],
        labels: list[str],
    ) -> None:
        """Wrap what `QuickReader.rows` has read: for each column of the file its numbers or codes."""
        self._plan = plan
        self._arrays = arrays
        self._values = values
        self._labels = labels
        self.n = n
        self.n_lines = n_lines

    @property
    def lines(self) -> None:
        """Return None: the lines are unknown."""
        return None

    def labels(self) -> tuple[list[str], Int64]:
        """Return the distinct texts of labels, and the place among them for each record."""
        assert self._plan.label is not None
        codes = self._codes(self._plan.label.place)
        # Texts of other records are no labels of these.
        present = np.flatnonzero(np.bincount(codes, minlength=1))
        places = np.zeros(present[-1] + 1 if len(present) else 0, np.int64)
        places[present] = np.arange(len(present))
        return [self._labels[code] for code in present.tolist()], places[codes]

    def targets(self) -> Float64:
        """Return the numbers in the label's column."""
        assert self._plan.label is not None
        return self._numbers(self._plan.label)

    def cells(self) -> list[ColumnCells]:
        """Return the cells of each feature."""
        return [
            TextCells(
                self._values[column.name].astype(np.int64, copy=False), self._codes(column.place)
            )
            if column.categorical
            else NumberCells(hash_key(column.name), self._numbers(column))
            for column in self._plan.columns.features
        ]

    def allows_missing(self) -> bool:
        """Return False if a number is missing where none may be."""
        plan = self._plan
        if plan.allows_missing:
            return True
        numbers = [c for c in plan.columns.features if c.convert or plan.missing.numbers]
        return not any(np.isnan(self._numbers(column)).any() for column in numbers)

    def _codes(self, place: int) -> Codes:
        found = self._arrays[place]
        assert found is not None
        return found.astype(np.int32, copy=False)

    def _numbers(self, column: Column) -> Float64:
        found = self._arrays[column.place]
        assert found is not None
        if column.convert:
            return self._values[column.name][found].astype(np.float64, copy=False)
        numbers = found.astype(np.float64, copy=False)
        return numbers if column is self._plan.label else self._plan.missing.blanked(numbers)


def _values_of(column: Column, texts: Sequence[str]) -> Values:
    """Return the keys of texts, or their numbers; raises NotInNotation."""
    return text_keys(column, texts) if column.categorical else text_numbers(column, texts)


def _is_utf8(text: Text) -> bool:
    try:
        str(text, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
