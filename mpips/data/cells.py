"""Cells of columns, and the samples that they make.

Readers of CSV and Parquet return the cells of each column of some records. A `SampleBuilder` turns them into
samples, record by record, in native code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips._native import interleave, signed_log
from mpips.data.columns import FLOAT32_MAX, KEY_BITS, Column, Float64, Int64, hash_key
from mpips.data.conversions import number_in, part_in, year_in
from mpips.data.dataset import Dataset, DenseData, Labels, SparseData
from mpips.data.info import narrow
from mpips.data.missing import Missing
from mpips.data.words import word_of

Codes: TypeAlias = npt.NDArray[np.int32]

EMPTY = -1  # in the place of the key of a text without a word


class NumberCells(NamedTuple):
    """Cells of a column of numbers.

    Attributes:
        key: Key of the column in hashed data.
        numbers: float64, shape (n,), finite, below float32's greatest number; nan for a missing one.
    """

    key: int
    numbers: Float64


class TextCells(NamedTuple):
    """Cells of a categorical column.

    Attributes:
        keys: Key of the word of each text, int64, shape (n_texts,); EMPTY for a text without one.
        codes: Place of each cell's text in `keys`, int32, shape (n,).
    """

    keys: Int64
    codes: Codes


ColumnCells: TypeAlias = NumberCells | TextCells


class NotInNotation(Exception):
    """A text of a column is not in the notation that data.convert names.

    Attributes:
        place: Its place among the texts.
    """

    def __init__(self, place: int) -> None:
        """Set the place."""
        super().__init__(place)
        self.place = place


def text_keys(column: Column, texts: Sequence[str]) -> Int64:
    """Return the keys of the words of texts in a categorical column; EMPTY for a text without a word.

    Raises:
        NotInNotation: A text is not in the notation of the column.
    """
    words = [word_of(text, column.words) for text in texts]
    if column.convert:
        words = _parts(column, texts)
    elif column.missing:
        missing = Missing.of(column.missing)
        words = ["" if missing.has_word(word) else word for word in words]
    keys = [hash_key(column.name, word) if word else EMPTY for word in words]
    return np.array(keys, np.int64)


def text_numbers(column: Column, texts: Sequence[str]) -> Float64:
    """Return the numbers of texts in a column with a notation, shape (n_texts,); nan for an empty one.

    Raises:
        NotInNotation: A text is not in the notation, or beyond float32.
    """
    missing = Missing.of(column.missing)
    read = year_in if column.part else number_in
    found = np.full(len(texts), np.nan)
    for place, raw in enumerate(texts):
        text = raw.strip()
        if missing.has(text):
            continue
        found[place] = read(column.convert, text)
        if not abs(found[place]) <= FLOAT32_MAX:
            raise NotInNotation(place)
    return missing.blanked(found)


def _parts(column: Column, texts: Sequence[str]) -> list[str]:
    """Return a part of the dates in texts; "" for an empty text, and for a date without the part."""
    missing = Missing.of(column.missing)
    words = []
    for place, raw in enumerate(texts):
        text = raw.strip()
        word = "" if missing.has(text) else part_in(column.convert, column.part, text)
        if word is None:
            raise NotInNotation(place)
        words.append(word)
    return words


class SampleBuilder:
    """The samples of blocks of records, which are added in order.

    A hashed sample is a list of keys and values, in which missing numbers and empty texts have no entry.
    Otherwise a sample is a row of numbers, in which a missing number is 0.
    """

    def __init__(self, hashed: bool, logarithms: Sequence[bool]) -> None:
        """Begin without samples.

        Args:
            hashed: Samples are lists of keys and values.
            logarithms: For each feature: a number v becomes sign(v) log(1 + |v|).
        """
        self._n_columns = len(logarithms)
        self._hashed = hashed
        self._logarithms = list(logarithms)
        self._rows: list[Float64] = []
        # Of the entries the first `_n_entries` are used, of the lengths the first `_n_samples`.
        self._keys = np.zeros(0, np.int64)
        self._values = np.zeros(0, np.float32)
        self._fields = np.zeros(0, np.int32)
        self._lengths = np.zeros(0, np.int64)
        self._n_entries = self._n_samples = 0

    def expect(self, n: int) -> None:
        """Get memory for n more samples, which spares copies; more or fewer may come."""
        if self._hashed:
            self._make_room(n)

    def add(self, columns: Sequence[ColumnCells], n: int, own: Int64 | None = None) -> None:
        """Add records.

        Args:
            columns: The cells of each feature, in the order of the features.
            n: Number of records.
            own: Places of the records that are added, int64, shape (n_own,); None: all.
        """
        if not self._hashed:
            self._rows.append(self._dense(columns, n, own))
            return
        n_own = n if own is None else len(own)
        self._make_room(n_own)
        found = [
            (c.numbers, c.key, None, None)
            if isinstance(c, NumberCells)
            else (None, 0, c.codes, c.keys)
            for c in columns
        ]
        self._n_entries += interleave(
            found,
            n,
            own,
            self._logarithms,
            self._keys[self._n_entries :],
            self._values[self._n_entries :],
            self._fields[self._n_entries :],
            self._lengths[self._n_samples : self._n_samples + n_own],
        )
        self._n_samples += n_own

    def samples(self, labels: Labels) -> Dataset:
        """Return the samples with labels, shape (n,); the builder is not to be used afterwards."""
        if not self._hashed:
            return DenseData(narrow(np.concatenate(self._rows)), labels)
        indptr = np.zeros(self._n_samples + 1, np.int64)
        np.cumsum(self._lengths[: self._n_samples], out=indptr[1:])
        n = self._n_entries
        keys, values, fields = self._keys[:n], self._values[:n], self._fields[:n]
        if 2 * n < len(self._keys):
            # Give the memory back that is not needed.
            keys, values, fields = keys.copy(), values.copy(), fields.copy()
        return SparseData(indptr, keys, values, labels, 1 << KEY_BITS, fields, self._n_columns)

    def _dense(self, columns: Sequence[ColumnCells], n: int, own: Int64 | None) -> Float64:
        """Return records as rows of numbers."""
        rows = np.zeros((n if own is None else len(own), self._n_columns))
        for place, column in enumerate(columns):
            assert isinstance(column, NumberCells)
            numbers = column.numbers if own is None else column.numbers[own]
            rows[:, place] = signed_log(numbers) if self._logarithms[place] else numbers
        rows[np.isnan(rows)] = 0
        return rows

    def _make_room(self, n: int) -> None:
        """Make room for all cells of n more samples."""
        self._lengths = _grown(self._lengths, self._n_samples, n)
        cells = n * self._n_columns
        self._keys = _grown(self._keys, self._n_entries, cells)
        self._values = _grown(self._values, self._n_entries, cells)
        self._fields = _grown(self._fields, self._n_entries, cells)


def _grown(array: npt.NDArray[Any], used: int, more: int) -> npt.NDArray[Any]:
    """Return an array with the first `used` elements and room for `more` behind them."""
    needed = used + more
    if needed <= len(array):
        return array
    # Pages that are never written take no memory.
    grown = np.empty(max(needed, used + used // 2), array.dtype)
    grown[:used] = array[:used]
    return grown
