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
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from glob import escape
from hashlib import blake2b
from typing import TextIO

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.compressed import opened_text
from mpips.data.csv_dialect import find_delimiter, is_missing, is_text, number, text_columns
from mpips.data.dataset import Dataset, DenseData, Labels, SparseData
from mpips.data.info import MAX_CLASSES, Part, describe, narrow
from mpips.data.options import ReadOptions, Share
from mpips.errors import DataError

KEY_BITS = 62
# Label columns that are found without an option, in small letters; the first has precedence.
LABEL_NAMES = ("label", "y", "target", "class")
_DELIMITER_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
FLOAT32_MAX = float(np.finfo(np.float32).max)


class Column(msgspec.Struct, frozen=True):
    """A column of the file.

    Attributes:
        place: Index of the column, from 0.
        name: Name in the header.
        categorical: The cells are hashed as text; else they are numbers.
    """

    place: int
    name: str
    categorical: bool


@lru_cache(maxsize=1 << 20)
def hash_key(column: str, cell: str = "") -> int:
    """Return the key of a cell in a categorical column, or of a numeric column itself."""
    # Prepend the length, so that ("ab", "c") and ("a", "bc") differ.
    text = f"{len(column)}:{column}{cell}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> (64 - KEY_BITS)


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
        self._notes: tuple[str, ...] = ()
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
        self._label = self._find_label(header, options.label, options.labelled)
        self._labelled = options.labelled
        self._label_names = options.label_names
        self._label_values: dict[
            str, float
        ] = {}  # number of each text of a label; nan for no number
        self._features = self._find_features(header, self._with_text(options, header, text))
        self._wants = options.wants
        self._sparse = bool(options.categorical) or any(c.categorical for c in self._features)
        auto = "log" if self._sparse else "raw"
        self._log = (auto if options.numeric == "auto" else options.numeric) == "log"
        self._zero_if_empty = options.empty == "zero"

    def read(self, share: Share) -> Part:
        """Read the samples of a share."""
        return self._read_sparse(share) if self._sparse else self._read_dense(share)

    def _find_text(self, file: TextIO) -> list[int]:
        """Return the places of columns of text in the first rows, and go back to the first of them."""
        found = text_columns(self._reader, self._width)
        file.seek(0)
        self._reader = csv.reader(file, strict=True, delimiter=self._delimiter)
        next(self._reader)
        return found

    def _with_text(
        self, options: ReadOptions, header: list[str], places: Sequence[int]
    ) -> ReadOptions:
        """Return the options with the columns of text as categorical ones; notes them."""
        label = self._label.name if self._label is not None else None
        names = [header[place] for place in places if header[place] != label]
        names = [n for n in names if not any(fnmatchcase(n, p) for p in options.ignore)]
        if not names:
            return options
        self._notes += (
            f"{self._path}: {_plural(names)} with text: categorical (data.categorical sets which are)",
        )
        return msgspec.structs.replace(options, categorical=tuple(map(escape, names)))

    def _read_dense(self, share: Share) -> Part:
        labels: list[str] = []
        rows: list[npt.NDArray[np.float64]] = []
        n_samples = 0
        for row, wanted in zip(self._rows(), share.flags(), strict=False):
            label = self._label_of(row)
            if wanted:
                labels.append(label)
                cells = [self._number(row[c.place], c) for c in self._features]
                rows.append(np.array(cells, dtype=np.float64))
            n_samples += 1
        x = narrow(np.array(rows, dtype=np.float64).reshape(len(rows), len(self._features)))
        return self._part(DenseData(x, self._numbers(labels)), n_samples)

    def _read_sparse(self, share: Share) -> Part:
        labels: list[str] = []
        keys: list[int] = []
        values: list[float] = []
        fields: list[int] = []
        indptr = [0]
        n_samples = 0
        for row, wanted in zip(self._rows(), share.flags(), strict=False):
            label = self._label_of(row)
            if wanted:
                labels.append(label)
                for field, key, value in self._entries(row):
                    fields.append(field)
                    keys.append(key)
                    values.append(value)
                indptr.append(len(keys))
            n_samples += 1
        data = SparseData(
            np.array(indptr, dtype=np.int64),
            np.array(keys, dtype=np.int64),
            np.array(values, dtype=np.float32),
            self._numbers(labels),
            n_features=1 << KEY_BITS,
            fields=np.array(fields, dtype=np.int32),
            n_fields=len(self._features),
        )
        return self._part(data, n_samples)

    def _part(self, data: Dataset, n_samples: int) -> Part:
        part = describe(
            data,
            n_samples,
            self._path,
            wants=self._wants if self._labelled else "targets",
            columns=tuple(column.name for column in self._features),
            label_column=self._label.name if self._label is not None else "",
            notes=self._notes,
        )
        info = replace(
            part.info,
            label_names=self._label_names,
            categorical=tuple(column.name for column in self._features if column.categorical),
        )
        if self._label_names and self._labelled:
            # Describe all classes, also those that this share does not contain.
            counts = np.bincount(data.labels.astype(np.int64), minlength=len(self._label_names))
            labels = tuple(map(float, range(len(self._label_names))))
            info = replace(info, labels=labels, counts=tuple(counts.tolist()))
        return replace(part, info=info)

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
                f"{_listed(self._label_names)}"
            )
        value = number(text)
        text_here = is_text(text)
        if not self._label_names:
            mixed = bool(known) and text_here != math.isnan(next(iter(known.values())))
            wrong = not text_here and not abs(value) <= FLOAT32_MAX
            if wrong or mixed or (text_here and self._wants == "targets"):
                assert self._label is not None
                raise DataError(self._complaint(text, self._label, is_label=True))
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

    def _entries(self, row: list[str]) -> Iterator[tuple[int, int, float]]:
        """Yield place of the column, key and value of each cell of a hashed sample that is not empty."""
        for field, column in enumerate(self._features):
            cell = row[column.place].strip()
            if not cell or (not column.categorical and is_missing(cell)):
                continue
            if column.categorical:
                yield field, hash_key(column.name, cell), 1.0
            else:
                yield field, hash_key(column.name), self._number(cell, column)

    def _number(self, cell: str, column: Column) -> float:
        """Return the number in a cell of a feature, transformed if the option `numeric` is log."""
        cell = cell.strip()
        if self._zero_if_empty and is_missing(cell):
            return 0.0
        value = number(cell)
        if not abs(value) <= FLOAT32_MAX:
            raise DataError(self._complaint(cell, column, is_label=False))
        return math.copysign(math.log1p(abs(value)), value) if self._log else value

    def _complaint(self, cell: str, column: Column, is_label: bool) -> str:
        if is_label:
            wayout = (
                "labels are finite numbers, or all of them are text; set data.label to the column of the "
                "labels"
            )
        elif is_missing(cell):
            wayout = 'set data.empty = "zero" to read missing numbers as 0'
        elif cell:
            wayout = f'features are finite numbers; to hash text, set data.categorical = ["{column.name}"]'
        found = f"'{cell}'" if cell else "an empty cell"
        return f"{self._path}:{self._reader.line_num}: column '{column.name}' contains {found}: {wayout}"

    def _find_label(self, header: list[str], wanted: str | None, needed: bool) -> Column | None:
        """Return the label's column; None if there is none and none is `needed`."""
        if len(set(header)) < len(header):
            twin = next(name for name in header if header.count(name) > 1)
            raise DataError(f"{self._path}: the header names '{twin}' twice; rename one")
        if not needed and wanted is None:
            wanted = next((name for name in header if name.lower() in LABEL_NAMES), None)
        if not needed and wanted not in header:
            return None
        if wanted is None:
            wanted = self._default_label(header)
        if wanted not in header:
            raise DataError(
                f"{self._path}: no label column '{wanted}'; set data.label to one of {_listed(header)}"
            )
        return Column(header.index(wanted), wanted, categorical=False)

    def _default_label(self, header: list[str]) -> str:
        if LABEL_NAMES[0] in header:
            return LABEL_NAMES[0]
        likely = [name for name in header if name.lower() in LABEL_NAMES]
        if len(likely) == 1:
            return likely[0]
        found = f"columns {likely}" if likely else "no column is named 'label'"
        raise DataError(
            f"{self._path}: which column holds the label is not clear: {found}; "
            f"set data.label to one of {_listed(header)}"
        )

    def _find_features(self, header: list[str], options: ReadOptions) -> list[Column]:
        """Return the feature columns to read, in the order of a sample's features; sets `_notes`."""
        label = self._label.name if self._label is not None else None
        there = [
            name
            for name in header
            if name != label and not any(fnmatchcase(name, p) for p in options.ignore)
        ]
        names = options.columns or tuple(there)
        missing = [name for name in names if name not in there]
        if missing:
            raise DataError(
                f"{self._path}: the training data has {_plural(missing)} that this file lacks; add them or "
                f"correct the header: {_listed(header)}"
            )
        extra = [name for name in there if name not in names]
        if extra:
            self._notes += (f"{self._path}: {_plural(extra)} not in the training data: left out",)
        for pattern in options.categorical:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise DataError(
                    f"{self._path}: categorical '{pattern}' matches none of {list(names)}; give names or "
                    "patterns such as C*"
                )
        return [
            Column(
                header.index(name),
                name,
                any(fnmatchcase(name, pattern) for pattern in options.categorical),
            )
            for name in names
        ]


def _listed(names: Sequence[str]) -> str:
    """Return the names in quotes, at most the first ten."""
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(f"'{name}'" for name in names[:10]) + more


def _plural(names: Sequence[str]) -> str:
    return f"{'columns' if len(names) > 1 else 'column'} {_listed(names)}"
