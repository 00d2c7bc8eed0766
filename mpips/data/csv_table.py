"""Reader of CSV with a header: a dense matrix of numbers, or hashed keys if there are categorical columns.

A hashed sample is a list of (key, value). For a categorical cell the key is the hash of column name and cell
text, and the value is 1. For a numeric cell the key is the hash of the column name, and the value is the
number. Empty cells have no entry. Keys are uniform in 0..2**62-1, so that no collision is to be expected
below a billion distinct keys. They are equal on all machines.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from mpips.data.dataset import Dataset, DenseData, SparseData
from mpips.data.info import Part, describe, narrow
from mpips.data.options import ReadOptions, Share
from mpips.errors import DataError

KEY_BITS = 62
# Label columns that are found without an option, in small letters; the first has precedence.
LABEL_NAMES = ("label", "y", "target", "class")
FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Column:
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
    with open(path, newline="", encoding="utf-8-sig") as file:
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

    def __init__(self, path: str, options: ReadOptions, file: Iterator[str]) -> None:
        self._path = path
        self._reader = csv.reader(file, strict=True)
        header = [name.strip() for name in next(self._reader, [])]
        if not header:
            raise DataError(
                f"{path}: contains no header line; the first line must name the columns"
            )
        self._width = len(header)
        self._label = self._find_label(header, options.label, options.labelled)
        self._labelled = options.labelled
        self._features = self._find_features(header, options)
        self._wants = options.wants
        self._sparse = bool(options.categorical)
        auto = "log" if self._sparse else "raw"
        self._log = (auto if options.numeric == "auto" else options.numeric) == "log"
        self._zero_if_empty = options.empty == "zero"

    def read(self, share: Share) -> Part:
        """Read the samples of a share."""
        return self._read_sparse(share) if self._sparse else self._read_dense(share)

    def _read_dense(self, share: Share) -> Part:
        labels: list[float] = []
        rows: list[npt.NDArray[np.float64]] = []
        n_samples = 0
        for row, wanted in zip(self._rows(), share.flags(), strict=False):
            if wanted:
                labels.append(self._label_of(row))
                cells = [self._number(row[c.place], c) for c in self._features]
                rows.append(np.array(cells, dtype=np.float64))
            n_samples += 1
        x = narrow(np.array(rows, dtype=np.float64).reshape(len(rows), len(self._features)))
        return self._part(DenseData(x, np.array(labels, dtype=np.float64)), n_samples)

    def _read_sparse(self, share: Share) -> Part:
        labels: list[float] = []
        keys: list[int] = []
        values: list[float] = []
        indptr = [0]
        n_samples = 0
        for row, wanted in zip(self._rows(), share.flags(), strict=False):
            if wanted:
                labels.append(self._label_of(row))
                for key, value in self._entries(row):
                    keys.append(key)
                    values.append(value)
                indptr.append(len(keys))
            n_samples += 1
        data = SparseData(
            np.array(indptr, dtype=np.int64),
            np.array(keys, dtype=np.int64),
            np.array(values, dtype=np.float32),
            np.array(labels, dtype=np.float64),
            n_features=1 << KEY_BITS,
        )
        return self._part(data, n_samples)

    def _part(self, data: Dataset, n_samples: int) -> Part:
        return describe(
            data,
            n_samples,
            self._path,
            wants=self._wants if self._labelled else "targets",
            columns=tuple(column.name for column in self._features),
            label_column=self._label.name if self._label is not None else "",
            notes=self._notes,
        )

    def _rows(self) -> Iterator[list[str]]:
        """Yield the lines that are not empty, and check the number of their cells."""
        for row in self._reader:
            if not row:
                continue
            if len(row) != self._width:
                raise DataError(
                    f"{self._path}:{self._reader.line_num}: {len(row)} cells, "
                    f"the header names {self._width}; quote cells that contain commas"
                )
            yield row

    def _label_of(self, row: list[str]) -> float:
        """Return the label of a line; 0 if labels are not read."""
        if self._label is None or not self._labelled:
            return 0.0
        return self._number(row[self._label.place], self._label)

    def _entries(self, row: list[str]) -> Iterator[tuple[int, float]]:
        """Yield key and value of each cell of a hashed sample that is not empty."""
        for column in self._features:
            cell = row[column.place].strip()
            if not cell:
                continue
            if column.categorical:
                yield hash_key(column.name, cell), 1.0
            else:
                yield hash_key(column.name), self._number(cell, column)

    def _number(self, cell: str, column: Column) -> float:
        """Return the number in a cell, transformed if it is a feature and the option `numeric` is log."""
        is_label = column is self._label
        cell = cell.strip()
        if not cell and self._zero_if_empty and not is_label:
            return 0.0
        try:
            # Refuse 2021_05 and digits of other scripts, which Python reads as numbers.
            value = float(cell) if cell.isascii() and "_" not in cell else math.nan
        except ValueError:
            value = math.nan
        if not abs(value) <= FLOAT32_MAX:
            raise DataError(self._complaint(cell, column, is_label))
        if self._log and not is_label:
            return math.copysign(math.log1p(abs(value)), value)
        return value

    def _complaint(self, cell: str, column: Column, is_label: bool) -> str:
        if is_label:
            wayout = "labels are finite numbers; set data.label to the column of the labels"
        elif cell:
            wayout = f'features are finite numbers; to hash text, set data.categorical = ["{column.name}"]'
        else:
            wayout = 'set data.empty = "zero" to read empty cells as 0'
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
        there = [name for name in header if name != label]
        names = options.columns or tuple(there)
        missing = [name for name in names if name not in there]
        if missing:
            raise DataError(
                f"{self._path}: the training data has {_plural(missing)} that this file lacks; add them or "
                f"correct the header: {_listed(header)}"
            )
        extra = [name for name in there if name not in names]
        self._notes: tuple[str, ...] = ()
        if extra:
            self._notes = (f"{self._path}: {_plural(extra)} not in the training data: left out",)
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
