"""Records of CSV text, read by pyarrow: fast, and exactly as `csv_rows.py` reads them, or not at all.

`ArrowRows.of` returns None for text that pyarrow refuses, or reads in another way than Python's csv module:
quotes inside a cell, numbers in an unusual notation, numbers that are not finite, missing numbers where none
may be missing. The caller then reads the text with `PlainRows`, which also names the line of an error.
"""

from __future__ import annotations

import importlib.util
import itertools
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips._native import scan_csv, signed_log
from mpips.data.columns import FLOAT32_MAX, Cells, Column, Float64, hash_key
from mpips.data.csv_dialect import MISSING
from mpips.data.csv_plan import CsvPlan

Int64: TypeAlias = npt.NDArray[np.int64]


@lru_cache(maxsize=1)
def has_arrow() -> bool:
    """Return True if pyarrow is installed."""
    return importlib.util.find_spec("pyarrow") is not None


class ArrowRows:
    """Records that pyarrow has divided; see `mpips.data.csv_rows.CsvRows`."""

    def __init__(self, plan: CsvPlan, table: Any) -> None:
        """Wrap the table that `of` has read."""
        self._plan = plan
        self._table = table
        self.n: int = table.num_rows

    @property
    def lines(self) -> None:
        """Return None: the lines are unknown."""
        return None

    @classmethod
    def of(cls, plan: CsvPlan, text: bytes) -> ArrowRows | None:
        """Return the records in `text`, which are whole; None if `PlainRows` must read them."""
        import pyarrow
        from pyarrow import csv

        quoted, wrong = scan_csv(text, 0, len(text), plan.delimiter, False)
        if quoted or wrong >= 0 or not text.strip(b"\r\n"):
            return None
        words = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
        types = {
            column.name: words if column.categorical else pyarrow.float64()
            for column in plan.columns.features
        }
        label = plan.label
        if label is not None:
            numbers = plan.options.wants == "targets"
            types[label.name] = pyarrow.float64() if numbers else words
        try:
            table = csv.read_csv(
                pyarrow.BufferReader(text),
                csv.ReadOptions(
                    use_threads=False, column_names=plan.header, block_size=len(text) + 1
                ),
                csv.ParseOptions(delimiter=plan.delimiter, newlines_in_values=b'"' in text),
                csv.ConvertOptions(
                    column_types=types,
                    include_columns=list(types),
                    null_values=_missing_texts(),
                    strings_can_be_null=False,
                ),
            )
        except pyarrow.ArrowException:
            return None
        return cls(plan, table)

    def labels(self) -> tuple[list[str], Int64]:
        """Return the distinct texts of labels, and the place among them for each record."""
        assert self._plan.label is not None
        array = _one_chunk(self._table.column(self._plan.label.name))
        texts = [str(text).strip() for text in array.dictionary.to_pylist()]
        return texts, array.indices.to_numpy(zero_copy_only=False).astype(np.int64)

    def targets(self) -> Float64:
        """Return the numbers in the label's column; nan for any other cell."""
        assert self._plan.label is not None
        values = _one_chunk(self._table.column(self._plan.label.name))
        found: Float64 = values.to_numpy(zero_copy_only=False).copy()
        found[~np.isfinite(found)] = np.nan
        return found

    def cells(self, own: Int64 | None) -> list[Cells] | None:
        """Return the cells of each feature."""
        import pyarrow

        table = self._table
        if own is not None and len(own) < self.n:
            table = table.take(pyarrow.array(own))
        found = []
        for feature in self._plan.columns.features:
            array = _one_chunk(table.column(feature.name))
            if feature.categorical:
                found.append(hashed_cells(array, feature))
                continue
            cells = self._scaled(array, feature)
            if cells is None:
                return None
            found.append(cells)
        return found

    def _scaled(self, array: Any, column: Column) -> Cells | None:
        if array.null_count and not self._plan.allows_missing:
            return None
        filled = np.ones(len(array), np.bool_)
        if array.null_count:
            filled = array.is_valid().to_numpy(zero_copy_only=False)
            array = array.fill_null(0.0)
        values = array.to_numpy(zero_copy_only=False)
        if not (np.abs(values) <= FLOAT32_MAX).all():
            return None
        if self._plan.takes_logarithms:
            values = signed_log(values)
        return Cells(np.full(len(values), hash_key(column.name), np.int64), values, filled)


def hashed_cells(array: Any, column: Column) -> Cells:
    """Return the cells of a categorical column from a dictionary array of pyarrow; a null is empty."""
    texts = ["" if text is None else str(text).strip() for text in array.dictionary.to_pylist()]
    # Nulls have the place behind the last text.
    hashes = np.array([hash_key(column.name, text) for text in texts] + [0], np.int64)
    known = np.array([bool(text) for text in texts] + [False])
    indices = array.indices.fill_null(len(texts)) if array.indices.null_count else array.indices
    places = indices.to_numpy(zero_copy_only=False)
    return Cells(hashes.take(places), np.ones(len(places)), known.take(places))


def _one_chunk(column: Any) -> Any:
    """Return a column of a table as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


@lru_cache(maxsize=1)
def _missing_texts() -> list[str]:
    """Return the cells that stand for a missing number, in all mixtures of small and capital letters."""
    return sorted(
        "".join(letters)
        for text in MISSING
        for letters in itertools.product(*({c.lower(), c.upper()} for c in text))
    )
