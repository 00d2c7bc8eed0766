"""Records of CSV text, read by Python's csv module: slow, exact, with errors that name the line."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips._native import count_csv_lines
from mpips.data.cells import (
    ColumnCells,
    NotInNotation,
    NumberCells,
    TextCells,
    text_keys,
    text_numbers,
)
from mpips.data.columns import FLOAT32_MAX, Column, Float64, as_text, hash_key
from mpips.data.conversions import CANDIDATES, EXAMPLES, number_in, reads
from mpips.data.csv_dialect import number
from mpips.data.csv_plan import CsvPlan, Text
from mpips.data.words import truth
from mpips.errors import DataError

Int64: TypeAlias = npt.NDArray[np.int64]

_SHOWN = 80  # characters of a cell in an error
_DELIMITER_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}


class CellError(DataError):
    """A cell of a feature column cannot be read."""


class CsvRows(Protocol):
    """Some consecutive records of a file.

    Attributes:
        n: Number of records.
        n_lines: Number of line ends in them.
    """

    n: int
    n_lines: int

    @property
    def lines(self) -> Sequence[int] | None:
        """Number of the line that each record ends with; None if unknown."""

    def labels(self) -> tuple[list[str], Int64]:
        """Return the distinct texts in the label's column, and the place among them for each record.

        Texts have no white space around them, and may be there twice.
        """

    def targets(self) -> Float64:
        """Return the numbers in the label's column, shape (n,); nan for any other cell."""

    def cells(self) -> list[ColumnCells]:
        """Return the cells of each feature.

        Raises:
            DataError: A cell that must be a number is empty or not a number.
        """


class PlainRows:
    """Records that Python's csv module has divided; see CsvRows."""

    def __init__(self, plan: CsvPlan, text: Text, line: int) -> None:
        """Divide the text into cells.

        Args:
            plan: Meaning of the file.
            text: Whole records.
            line: Lines of the file before the text.

        Raises:
            DataError: A record has too many cells, or too few.
            UnicodeDecodeError, csv.Error: The text is not UTF-8, or not CSV.
        """
        self._plan = plan
        self._rows: list[list[str]] = []
        self._lines: list[int] = []
        reader = csv.reader(
            io.StringIO(str(text, "utf-8"), newline=""), strict=True, delimiter=plan.delimiter
        )
        width = len(plan.header)
        for row in reader:
            if not row:
                continue
            if len(row) != width:
                where = f"{plan.path}:{line + reader.line_num}: {len(row)} cells"
                if not plan.n_header_lines:
                    raise DataError(f"{where}, lines of this file have {width}")
                raise DataError(
                    f"{where}, the header names {width}; quote cells that contain "
                    f"{_DELIMITER_NAMES[plan.delimiter]}"
                )
            self._rows.append(row)
            self._lines.append(line + reader.line_num)
        self.n = len(self._rows)
        self.n_lines = count_csv_lines(text)

    @property
    def lines(self) -> Sequence[int]:
        """Number of the line that each record ends with."""
        return self._lines

    def labels(self) -> tuple[list[str], Int64]:
        """Return the distinct texts of labels, and the place among them for each record."""
        assert self._plan.label is not None
        place = self._plan.label.place
        codes: dict[str, int] = {}
        found = [codes.setdefault(row[place].strip(), len(codes)) for row in self._rows]
        return list(codes), np.array(found, np.int64)

    def targets(self) -> Float64:
        """Return the numbers in the label's column; nan for any other cell."""
        label = self._plan.label
        assert label is not None
        cells = [row[label.place].strip() for row in self._rows]
        read = partial(number_in, label.convert) if label.convert else number
        return np.array(list(map(read, cells)), np.float64)

    def cells(self) -> list[ColumnCells]:
        """Return the cells of each feature."""
        columns = list(zip(*self._rows, strict=True)) or [()] * len(self._plan.header)
        found: list[ColumnCells] = []
        for feature in self._plan.columns.features:
            cells = columns[feature.place]
            if feature.categorical:
                found.append(self._coded(cells, feature))
                continue
            read = self._converted if feature.convert else self._numbers
            found.append(NumberCells(hash_key(feature.name), read(_stripped(cells), feature)))
        return found

    def _numbers(self, cells: list[str], column: Column) -> Float64:
        """Return the cells of a column of numbers; nan for a missing one."""
        values = _plain_numbers(cells)
        if values is None:
            values = np.zeros(len(cells))
            for i, cell in enumerate(cells):
                if self._plan.missing.has(cell):
                    values[i] = np.nan
                    continue
                values[i] = number(cell)
                if math.isnan(values[i]):
                    values[i] = truth(cell)
                if not abs(values[i]) <= FLOAT32_MAX:
                    raise self._error(cell, column, i)
        return self._checked(self._plan.missing.blanked(values), cells, column)

    def _converted(self, cells: list[str], column: Column) -> Float64:
        """Return the cells of a column with a notation as numbers; nan for a missing one."""
        try:
            values = text_numbers(column, cells)
        except NotInNotation as error:
            raise self._error(cells[error.place], column, error.place) from None
        return self._checked(values, cells, column)

    def _coded(self, cells: Sequence[str], column: Column) -> TextCells:
        """Return the cells of a categorical column."""
        codes: dict[str, int] = {}
        places = np.array([codes.setdefault(cell, len(codes)) for cell in cells], np.int32)
        texts = list(codes)
        try:
            return TextCells(text_keys(column, texts), places)
        except NotInNotation as error:
            line = int(np.argmax(places == error.place))
            raise self._error(texts[error.place].strip(), column, line) from None

    def _checked(self, values: Float64, cells: list[str], column: Column) -> Float64:
        """Return numbers after a check that none is missing where none may be."""
        if not self._plan.allows_missing and np.isnan(values).any():
            place = int(np.argmax(np.isnan(values)))
            raise self._error(cells[place], column, place)
        return values

    def _error(self, cell: str, column: Column, place: int) -> CellError:
        return CellError(complaint(self._plan, cell, column, self._lines[place]))


def complaint(plan: CsvPlan, cell: str, column: Column, line: int) -> str:
    """Return the sentence about a cell that is not a number."""
    wayout = ""
    if column is plan.label:
        wayout = (
            "labels are finite numbers, or all of them are text; set data.label to their column"
        )
        if not cell:
            wayout += '; to leave such lines out, set data.on_bad = "skip"'
        elif column.convert:
            wayout = f"labels are numbers such as {EXAMPLES[column.convert]} (data.convert)"
    elif plan.missing.has(cell):
        wayout = 'set data.empty = "zero" to read missing numbers as 0'
    elif column.convert:
        wayout = (
            f"data.convert reads it as {column.convert}, such as {EXAMPLES[column.convert]}; leave the cell "
            "empty if its value is missing"
        )
        # The texts of a model are what they were in its training.
        if not plan.options.columns:
            wayout += ", or name its text in data.missing"
    elif math.isfinite(number(cell)):
        wayout = "features are numbers of float32, up to 3.4e38; scale the column"
    elif any(reads(notation)(cell) for notation in CANDIDATES):
        wayout = (
            "features are plain numbers here, and this is a number or a date in another notation"
        )
        # The columns of a model are what they were in its training.
        if not plan.options.columns:
            wayout += ", which data.convert names"
    elif cell:
        wayout = "features are finite numbers"
        if plan.allows_missing:
            wayout += "; leave the cell empty (or NA) if its number is missing"
        # The columns of a model are what they were in its training.
        if not plan.options.columns:
            wayout += f"; to hash text, set {as_text(plan.columns.features, [column.name])}"
    shown = cell if len(cell) <= _SHOWN else f"{cell[:_SHOWN]}..."
    found = f"'{shown}'" if cell else "an empty cell"
    return f"{plan.path}:{line}: column '{column.source}' contains {found}: {wayout}"


def _stripped(cells: Sequence[str]) -> list[str]:
    """Return the cells without white space around them."""
    text = "".join(cells)
    # Mostly there is no white space in any of them.
    if not text or text.split() == [text]:
        return list(cells)
    return [cell.strip() for cell in cells]


def _plain_numbers(cells: list[str]) -> Float64 | None:
    """Return the numbers in cells; None if a cell is empty, or not a finite number in plain notation."""
    text = "".join(cells)
    if not text.isascii() or "_" in text:
        return None
    try:
        values = np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        return None
    return values if (np.abs(values) <= FLOAT32_MAX).all() else None
