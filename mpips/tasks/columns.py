"""Samples with columns of text and of numbers: cells of text by unique key, numbers as a matrix."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data.dataset import Batch, Fields, SparseBatch
from mpips.data.info import DataInfo
from mpips.data.moments import Moments
from mpips.errors import DataError
from mpips.tasks.features import MAX_DEVIATION, Entries, SparseFeatures, columns_of, only

Float32: TypeAlias = npt.NDArray[np.float32]
Int64: TypeAlias = npt.NDArray[np.int64]


class ColumnBatch:
    """A batch of n samples with C columns of text and D inputs that are numbers.

    Attributes:
        texts: The cells of text, as entries of value 1; an empty cell has none.
        places: Column of each entry of `texts`, 0 to C - 1, int64, shape (nnz,).
        numbers: float32, shape (n, D).
    """

    def __init__(self, texts: Entries, places: Int64, numbers: Float32, n_texts: int) -> None:
        """Store the parts; `n_texts` is C."""
        self.texts = texts
        self.places = places
        self.numbers = numbers
        self._n_texts = n_texts

    @property
    def n(self) -> int:
        """Number of samples."""
        return len(self.numbers)

    def inputs(self, rows: Float32) -> Float32:
        """Return the inputs of a network: the rows of the cells of text, column by column, then the numbers.

        Args:
            rows: The rows of `texts.keys`, shape (m, dim).

        Returns:
            float32, shape (n, C * dim + D); the values of an empty cell are 0.
        """
        dim = rows.shape[1]
        cells = np.zeros((self.n, self._n_texts, dim), np.float32)
        cells[self.texts.row_ids, self.places] = rows[self.texts.key_ids]
        return np.concatenate([cells.reshape(self.n, self._n_texts * dim), self.numbers], axis=1)

    def cells(self, inputs: Float32, dim: int) -> Float32:
        """Return the part of the inputs, or of a gradient by them, that rows are in: shape (n, C, dim)."""
        return inputs[:, : self._n_texts * dim].reshape(self.n, self._n_texts, dim)

    def sum_by_key(self, cells: Float32) -> Float32:
        """Sum the gradients by the cells, shape (n, C, dim), for each key: shape (m, dim)."""
        return self.texts.sum_by_key(cells[self.texts.row_ids, self.places])


class ColumnFeatures:
    """Makes `ColumnBatch` of batches; stores the entries of the batch that was announced.

    Numbers are standardised by mean and standard deviation over the cells that are not empty, and clipped. An
    empty cell counts as the mean; a column with empty cells in the training data has a second input, which is
    1 where the cell is empty, else 0.

    Attributes:
        n_texts: Number C of columns of text.
        n_numbers: Number of columns of numbers.
        n_inputs: Greatest number of inputs that are numbers, 2 * `n_numbers`; those of columns without empty
            cells are 0.
        mean, scale: Number that is subtracted from the cells of each column of numbers, and factor of the
            difference, float64, shape (n_numbers,).
        has_empty: bool, shape (n_numbers,): the training data has empty cells in the column.
    """

    def __init__(self, info: DataInfo, task: str) -> None:
        """Raise DataError for data that has no columns of text."""
        if not info.n_fields:
            found = "columns of numbers alone" if info.columns else "no named columns"
            raise DataError(
                f"task '{task}' takes CSV in which some columns are text or are set in data.categorical, the "
                f"data has {found}; use task 'mlp' for numbers, or for LIBSVM"
            )
        self._keys = SparseFeatures(info, task, has_numbers=False)
        is_text = np.array([name in info.categorical for name in info.columns])
        self._all_names = np.array(info.columns)
        self._names = self._all_names[~is_text]
        self._has_no_word = self._all_names[:0]  # columns of text with empty cells
        self._is_text = is_text
        # Place of a column among those of its kind.
        self._place = np.where(is_text, np.cumsum(is_text), np.cumsum(~is_text)) - 1
        self.n_texts = int(is_text.sum())
        self.n_numbers = len(is_text) - self.n_texts
        self.n_inputs = 2 * self.n_numbers
        self.mean = np.zeros(self.n_numbers)
        self.scale = np.ones(self.n_numbers)
        self.has_empty = np.zeros(self.n_numbers, np.bool_)
        self._announced: tuple[Batch, SparseBatch] | None = None

    def prepare(self, moments: Moments) -> None:
        """Take the scale of the numbers, and the number of samples with each cell of text.

        Raises:
            DataError: The moments are not those of data with columns.
        """
        columns = moments.columns
        if columns is None or columns.n_features != len(self._is_text):
            raise DataError("the moments of the columns of the training data are missing")
        self._keys.prepare(moments)
        present = columns.present[~self._is_text]
        mean, scale = columns.standardise_filled()
        self.mean, self.scale = mean[~self._is_text], scale[~self._is_text]
        self.has_empty = present < columns.count
        texts = np.flatnonzero(self._is_text)
        self._has_no_word = self._all_names[texts[columns.present[texts] < columns.count]]

    def announce(self, batch: Batch) -> Int64:
        """Return the unique keys of the text in a batch, and store them for the call of `of` with it."""
        texts = self._texts(batch)
        self._announced = batch, texts
        return self._keys.announce(texts)

    def of(self, batch: Batch) -> ColumnBatch:
        """Return a batch of the training data."""
        held, self._announced = self._announced, None
        texts = held[1] if held is not None and held[0] is batch else self._texts(batch)
        return self._made(batch, texts, self._keys.of(texts))

    def of_unseen(self, batch: Batch) -> ColumnBatch:
        """Return a batch to be predicted."""
        texts = self._texts(batch)
        return self._made(batch, texts, self._keys.of_unseen(texts))

    def report(self) -> str:
        """Return a line: numbers of columns, those with empty cells, and those without influence."""
        constant = self._names[self.scale == 0]
        empty = self._names[self.has_empty]
        parts = [f"{self.n_texts} columns of text, {self.n_numbers} of numbers (standardised)"]
        if len(empty):
            parts.append(f"with empty cells, which are inputs of their own: {_listed(empty)}")
        if len(self._has_no_word):
            parts.append(f"with empty cells, which are no words: {_listed(self._has_no_word)}")
        if len(constant):
            parts.append(f"constant, without influence: {_listed(constant)}")
        return "; ".join(parts)

    def _texts(self, batch: Batch) -> SparseBatch:
        found, fields = _with_fields(batch)
        return only(found, self._is_text[fields])

    def _made(self, batch: Batch, texts: SparseBatch, entries: Entries) -> ColumnBatch:
        found, fields = _with_fields(batch)
        is_number = ~self._is_text[fields]
        samples = found.row_ids[is_number]
        places = self._place[fields[is_number]]
        values = (found.values[is_number] - self.mean[places]) * self.scale[places]
        numbers = np.zeros((batch.n, 2, self.n_numbers), np.float32)
        numbers[samples, 0, places] = np.clip(values, -MAX_DEVIATION, MAX_DEVIATION)
        numbers[:, 1] = self.has_empty
        numbers[samples, 1, places] = 0
        text_places = self._place[fields[~is_number]].astype(np.int64)
        return ColumnBatch(
            entries, text_places, numbers.reshape(batch.n, self.n_inputs), self.n_texts
        )


def _with_fields(batch: Batch) -> tuple[SparseBatch, Fields]:
    """Return the batch and the columns of its entries.

    Raises:
        DataError: The entries do not come from named columns.
    """
    fields = columns_of(batch)
    assert isinstance(batch, SparseBatch)
    return batch, fields


def _listed(names: npt.NDArray[np.str_]) -> str:
    """Return the names in quotes, at most the first ten."""
    more = f" and {len(names) - 10:,} more" if len(names) > 10 else ""
    return ", ".join(f"'{name}'" for name in names[:10]) + more
