"""Reader of CSV with a header: a dense matrix of numbers, or hashed keys if there are categorical columns.

The delimiter is found from the first lines, and so are columns of text, which are categorical
(`csv_dialect.py`). Labels are numbers, or all of them are text: then the classes are the texts, sorted. Every
worker reads the labels of all lines, so that all number the classes alike.

A hashed sample is a list of (key, value). For a categorical cell the key is the hash of column name and cell
text, and the value is 1. For a numeric cell the key is the hash of the column name, and the value is the
number. Empty cells have no entry. Keys are uniform in 0..2**62-1, so that no collision is to be expected
below a billion distinct keys. They are equal on all machines.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from typing import TextIO

import numpy as np

from mpips.data.columns import (
    FLOAT32_MAX,
    Cells,
    Column,
    Float64,
    choose_columns,
    hash_key,
    join_cells,
    listed,
    part_of,
    signed_log,
)
from mpips.data.compressed import opened_text
from mpips.data.csv_dialect import find_delimiter, is_missing, is_text, number, text_columns
from mpips.data.dataset import Dataset, Labels
from mpips.data.info import MAX_CLASSES, Part
from mpips.data.options import ReadOptions, Share
from mpips.errors import DataError

_BLOCK = 4096  # rows whose cells are converted at once
_DELIMITER_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}


def read_csv(path: str, options: ReadOptions, share: Share) -> Part:
    """Read a share of a CSV file whose first line names the columns.

    Raises:
        DataError: A column is unknown, or a cell that must be a number is empty or none; names file, line,
            column and cell.
        OSError: The file cannot be opened.
    """
    with opened_text(path) as file:
        try:
            return _Table(path, options, file).read(share)
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: is not UTF-8 text: {error}; convert it to UTF-8") from error
        except csv.Error as error:
            raise DataError(
                f"{path}: is not CSV: {error}; look for a quote that is not closed"
            ) from error


class _Table:
    """The reader of one open file, with the meaning of its columns."""

    def __init__(self, path: str, options: ReadOptions, file: TextIO) -> None:
        self._path = path
        self._delimiter = find_delimiter(file)
        self._reader = csv.reader(file, strict=True, delimiter=self._delimiter)
        header = [name.strip() for name in next(self._reader, [])]
        if not header:
            raise DataError(
                f"{path}: contains no header line; the first line must name the columns"
            )
        if not any(math.isnan(number(name)) for name in header):
            raise DataError(
                f"{path}: its first line has only numbers; put a line above it that names the columns"
            )
        self._width = len(header)
        text = self._find_text(file) if options.finds_text and not options.categorical else []
        chosen = choose_columns(path, header, options, [header[place] for place in text])
        self._options, self._chosen = options, chosen
        self._label, self._features = chosen.label, chosen.features
        self._labelled = options.labelled
        self._label_names = options.label_names
        self._label_values: dict[
            str, float
        ] = {}  # number of each text of a label; nan for no number
        self._wants = options.wants
        self._sparse = bool(options.categorical) or any(c.categorical for c in self._features)
        auto = "log" if self._sparse else "raw"
        self._log = (auto if options.numeric == "auto" else options.numeric) == "log"
        self._zero_if_empty = options.empty == "zero"

    def read(self, share: Share) -> Part:
        """Read the samples of a share. Cells are converted column by column, `_BLOCK` rows at a time."""
        labels: list[str] = []
        blocks: list[list[Cells]] = []
        rows: list[list[str]] = []
        lines: list[int] = []
        n_samples = 0
        for row, wanted in zip(self._rows(), share.flags(), strict=False):
            label = self._label_of(row)
            if wanted:
                labels.append(label)
                rows.append(row)
                lines.append(self._reader.line_num)
                if len(rows) == _BLOCK:
                    blocks.append(self._converted(rows, lines))
                    rows, lines = [], []
            n_samples += 1
        blocks.append(self._converted(rows, lines))
        data = join_cells(blocks, self._numbers(labels), self._sparse)
        return self._part(data, n_samples)

    def _find_text(self, file: TextIO) -> list[int]:
        """Return the places of columns of text in the first rows, and go back to the first of them."""
        found = text_columns(self._reader, self._width)
        file.seek(0)
        self._reader = csv.reader(file, strict=True, delimiter=self._delimiter)
        next(self._reader)
        return found

    def _part(self, data: Dataset, n_samples: int) -> Part:
        return part_of(self._path, data, n_samples, self._options, self._chosen, self._label_names)

    def _rows(self) -> Iterator[list[str]]:
        """Yield the lines that are not empty, and check the number of their cells."""
        for row in self._reader:
            if not row:
                continue
            if len(row) != self._width:
                raise DataError(
                    f"{self._path}:{self._reader.line_num}: {len(row)} cells, the header names "
                    f"{self._width}; quote cells that contain {_DELIMITER_NAMES[self._delimiter]}"
                )
            yield row

    def _label_of(self, row: list[str]) -> str:
        """Return the label of a line as text, checked; "0" if labels are not read."""
        if self._label is None or not self._labelled:
            return "0"
        text = row[self._label.place].strip()
        if text not in self._label_values:
            self._check_label(text)
        return text

    def _check_label(self, text: str) -> None:
        """Check a label that was not seen before, and note its number, or nan for a text.

        Raises:
            DataError: It is no finite number among numbers, or not one of the texts of the training data.
        """
        known = self._label_values
        where = f"{self._path}:{self._reader.line_num}"
        if self._label_names and text not in self._label_names:
            raise DataError(
                f"{where}: label '{text}' does not occur in the training data, whose labels are "
                f"{listed(self._label_names)}"
            )
        value = number(text)
        text_here = is_text(text)
        if not self._label_names:
            mixed = bool(known) and text_here != math.isnan(next(iter(known.values())))
            wrong = not text_here and not abs(value) <= FLOAT32_MAX
            if wrong or mixed or (text_here and self._wants == "targets"):
                assert self._label is not None
                raise DataError(self._complaint(text, self._label, self._reader.line_num))
            if text_here and len(known) >= MAX_CLASSES:
                raise DataError(
                    f"{where}: more than {MAX_CLASSES} distinct texts as labels; check the label column "
                    "(data.label)"
                )
        if len(known) < MAX_CLASSES:
            known[text] = value

    def _numbers(self, texts: Sequence[str]) -> Labels:
        """Return the labels of the share, float64: numbers as they are, texts as places of their class.

        Sets the names of the classes if labels are text. All lines of the file have been read.
        """
        values = self._label_values
        if not self._labelled:
            return np.zeros(len(texts))
        if not self._label_names and any(map(math.isnan, values.values())):
            self._label_names = tuple(sorted(values))
        if self._label_names:
            place = {name: float(i) for i, name in enumerate(self._label_names)}
            return np.array([place[text] for text in texts], dtype=np.float64)
        return np.array([float(text) for text in texts], dtype=np.float64)

    def _converted(self, rows: Sequence[list[str]], lines: Sequence[int]) -> list[Cells]:
        """Return the cells of each feature; `lines`: number of the line that each row ends with."""
        columns = list(zip(*rows, strict=True)) if rows else [()] * self._width
        found = []
        for feature in self._features:
            cells = _stripped(columns[feature.place])
            convert = self._hashed if feature.categorical else self._scaled
            found.append(convert(cells, feature, lines))
        return found

    def _hashed(self, cells: list[str], column: Column, lines: Sequence[int]) -> Cells:
        """Return the cells of a categorical column."""
        distinct = {cell: hash_key(column.name, cell) for cell in set(cells)}
        keys = np.fromiter(map(distinct.__getitem__, cells), np.int64, len(cells))
        filled = np.fromiter(map(bool, cells), np.bool_, len(cells))
        return Cells(keys, np.ones(len(cells)), filled)

    def _scaled(self, cells: list[str], column: Column, lines: Sequence[int]) -> Cells:
        """Return the cells of a column of numbers."""
        values, filled = _plain_numbers(cells), np.ones(len(cells), np.bool_)
        if values is None:
            values = np.zeros(len(cells))
            for i, cell in enumerate(cells):
                if is_missing(cell) and (self._sparse or self._zero_if_empty):
                    filled[i] = False
                    continue
                values[i] = number(cell)
                if not abs(values[i]) <= FLOAT32_MAX:
                    raise DataError(self._complaint(cell, column, lines[i]))
        if self._log:
            values = signed_log(values)
        return Cells(np.full(len(cells), hash_key(column.name), np.int64), values, filled)

    def _complaint(self, cell: str, column: Column, line: int) -> str:
        if column is self._label:
            wayout = (
                "labels are finite numbers, or all of them are text; set data.label to the column of the "
                "labels"
            )
        elif is_missing(cell):
            wayout = 'set data.empty = "zero" to read missing numbers as 0'
        elif cell:
            wayout = f'features are finite numbers; to hash text, set data.categorical = ["{column.name}"]'
        found = f"'{cell}'" if cell else "an empty cell"
        return f"{self._path}:{line}: column '{column.name}' contains {found}: {wayout}"


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
