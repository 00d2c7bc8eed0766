"""Reader of Parquet and Arrow files with columns of numbers and text, as of CSV (`csv_table.py`).

A cell has the key that it has in a CSV file, so a model that was trained on one format reads the other. Text
columns are those of type string, or a dictionary of strings. A null is an empty cell, and so is NaN in a
column of numbers. Only the columns that are used are read, a few thousand rows at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from glob import escape
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.cells import EMPTY, ColumnCells, NumberCells, SampleBuilder, TextCells, text_keys
from mpips.data.column_signs import Sample, notes_on, without_indices
from mpips.data.columns import (
    FLOAT32_MAX,
    Column,
    as_text,
    choose_columns,
    hash_key,
    listed,
    logarithms_of,
    part_of,
)
from mpips.data.csv_dialect import SAMPLE_ROWS
from mpips.data.dataset import Dataset
from mpips.data.info import MAX_CLASSES, MOST_LABEL, Part
from mpips.data.options import ReadOptions, Share
from mpips.data.table_files import (
    OPENED_TABLES,
    TableFile,
    is_text,
    opened_arrow,
    opened_parquet,
)
from mpips.data.words import TEXTS, texts_of
from mpips.errors import DataError

Float64: TypeAlias = npt.NDArray[np.float64]
Int64: TypeAlias = npt.NDArray[np.int64]

_ROWS = 1 << 16  # rows that are read at a time


def read_parquet(path: str, options: ReadOptions, share: Share) -> Part:
    """Read a share of a Parquet file.

    Raises:
        DataError: A column is unknown or of a type that is neither numbers nor text, or a cell is empty or no
            finite number; names file, row, column and cell.
        CapabilityError: pyarrow is missing.
        OSError: The file cannot be opened.
    """
    with opened_parquet(path) as file:
        return TypedTable(path, options, file).read(share)


def read_arrow(path: str, options: ReadOptions, share: Share) -> Part:
    """Read a share of an Arrow file; see `read_parquet`."""
    with opened_arrow(path) as file:
        return TypedTable(path, options, file).read(share)


def table_blocks(
    kind: str,
    path: str,
    options: ReadOptions,
    turns: Iterator[bool],
    n_rows: Callable[[int], int],
) -> Iterator[tuple[Dataset, tuple[str, ...], tuple[str, ...]] | None]:
    """Read the samples of a file in blocks; raises as `read_parquet` does.

    Args:
        kind: The format, a key of `OPENED_TABLES`.
        path: The file.
        options: Options of the reader.
        turns: For each block whether it is read; None is yielded in the place of one that is not.
        n_rows: Returns the rows of a block from the number of columns.

    Yields:
        The samples, the labels that are text (see `TypedTable.convert`), and sentences for the user.
    """
    with OPENED_TABLES[kind](path) as file:
        yield from TypedTable(path, options, file).blocks(turns, n_rows)


class TypedTable:
    """The reader of one open file, with the meaning of its columns."""

    def __init__(self, path: str, options: ReadOptions, file: TableFile) -> None:
        """Choose the columns of an open file; raises DataError as `read_parquet`."""
        schema = file.schema
        self._path = path
        self._file = file
        self._options = options
        self._types = dict(zip(schema.names, schema.types, strict=True))
        text = [name for name in schema.names if is_text(self._types[name])]
        finds_text = options.finds_text and not options.categorical
        left_out: tuple[str, ...] = ()
        samples: list[Sample] = []
        if not options.columns:
            options, left_out = _without_metadata_index(path, schema, options)
            samples = self._first_cells(text)
        asked, unnamed = without_indices(path, samples, options)
        chosen = choose_columns(path, schema.names, asked, text if finds_text else [])
        notes = (
            *chosen.notes,
            *left_out,
            *unnamed,
            *notes_on(path, samples, chosen.features, options),
        )
        self.columns = msgspec.structs.replace(chosen, notes=notes)
        self._check_types(text)
        self.is_hashed = any(column.categorical for column in self.columns.features)
        self._logarithms = logarithms_of(self.columns.features, options, self.is_hashed)
        label = self.columns.label
        # Targets are numbers, whatever the option says.
        as_text = options.label_kind == "text" and options.wants == "classes"
        self._text_label = (
            options.labelled and label is not None and (label.name in text or as_text)
        )

    @property
    def wanted(self) -> list[str]:
        """Names of the columns that are read."""
        label = self.columns.label if self._options.labelled else None
        names = [column.name for column in self.columns.features]
        return [*names, label.name] if label is not None else names

    def convert(self, batch: Any, start: int) -> tuple[Dataset, tuple[str, ...]]:
        """Return the samples in a batch of rows, and its labels that are text, sorted; (): numbers.

        Args:
            batch: The rows, with the columns `wanted`.
            start: Number of the first row in the file.

        Raises:
            DataError: See `read_parquet`.
        """
        label = self.columns.label if self._options.labelled else None
        rows = np.arange(start, start + batch.num_rows)
        cells, numbers = self._cells(batch, rows), np.zeros(len(rows))
        names: tuple[str, ...] = ()
        if label is not None:
            own = batch.column(batch.schema.get_field_index(label.name))
            texts = set(_texts(own.unique())) if self._text_label else set()
            self._check_names(texts)
            numbers, names = self._label_numbers(label, [own], [rows], texts)
        return self._samples(cells, len(rows), numbers), names

    def read(self, share: Share) -> Part:
        """Read the samples of a share."""
        label = self.columns.label if self._options.labelled else None
        wanted = self.wanted
        builder = self._builder()
        builder.expect(sum(self._file.group_rows()) // share.stride + 1)
        labels: list[Any] = []
        rows: list[Int64] = []
        all_labels: set[str] = set()
        start = 0
        for batch in self._file.batches(_ROWS, wanted):
            own = share.numbers(start, start + batch.num_rows)
            taken = batch.take(_indices(own - start)) if len(own) < batch.num_rows else batch
            builder.add(self._cells(taken, own), len(own))
            rows.append(own)
            if label is not None:
                place = batch.schema.get_field_index(label.name)
                labels.append(taken.column(place))
                if self._text_label:
                    all_labels.update(_texts(batch.column(place).unique()))
                    self._check_names(all_labels)
            start += batch.num_rows
        if not start:
            raise DataError(f"{self._path}: contains no samples")
        if label is None:
            numbers, label_names = np.zeros(sum(map(len, rows))), self._options.label_names
        else:
            numbers, label_names = self._label_numbers(label, labels, rows, all_labels)
        data = builder.samples(numbers)
        return part_of(self._path, data, start, self._options, self.columns, label_names)

    def blocks(
        self, turns: Iterator[bool], n_rows: Callable[[int], int]
    ) -> Iterator[tuple[Dataset, tuple[str, ...], tuple[str, ...]] | None]:
        """Read the samples in blocks; see `table_blocks`."""
        names, start = self.wanted, 0
        for batch in self._file.batches(n_rows(len(names)), names):
            yield (*self.convert(batch, start), self.columns.notes) if next(turns) else None
            start += batch.num_rows

    def _builder(self) -> SampleBuilder:
        return SampleBuilder(self.is_hashed, self._logarithms)

    def _samples(self, cells: list[ColumnCells], n: int, labels: Float64) -> Dataset:
        """Return n rows as samples."""
        builder = self._builder()
        builder.add(cells, n)
        return builder.samples(labels)

    def _cells(self, batch: Any, rows: Int64) -> list[ColumnCells]:
        """Return the cells of each feature; `rows`: numbers of the rows in the file."""
        found: list[ColumnCells] = []
        for feature in self.columns.features:
            array = batch.column(batch.schema.get_field_index(feature.name))
            if feature.categorical:
                found.append(_text_cells(array.dictionary_encode(), feature))
            else:
                found.append(
                    NumberCells(hash_key(feature.name), self._checked(array, feature, rows))
                )
        return found

    def _checked(self, array: Any, column: Column, rows: Int64) -> Float64:
        """Return the cells of a column of numbers; nan for an empty one."""
        values = _numbers(array)
        empty = np.isnan(values)
        if empty.any() and not (self.is_hashed or self._options.empty == "zero"):
            raise DataError(
                f"{self._cell(column, rows, empty)} is empty: set data.empty = "
                '"zero" to read missing numbers as 0'
            )
        wrong = np.abs(values) > FLOAT32_MAX
        if wrong.any():
            raise DataError(
                f"{self._cell(column, rows, wrong)} contains {values[wrong][0]:g}: features are finite "
                "numbers"
            )
        return values

    def _cell(self, column: Column, rows: Int64, wrong: npt.NDArray[np.bool_]) -> str:
        return f"{self._path}: row {rows[np.argmax(wrong)] + 1:,}, column '{column.name}'"

    def _label_numbers(
        self, label: Column, labels: list[Any], rows: list[Int64], all_labels: set[str]
    ) -> tuple[Float64, tuple[str, ...]]:
        """Return the labels of the share as numbers, and the names of all labels if they are text."""
        if self._text_label:
            names = self._options.label_names or tuple(sorted(all_labels))
            place = {name: float(i) for i, name in enumerate(names)}
            found = [place[text] for array in labels for text in _texts(array)]
            return np.array(found, np.float64), names
        if self._options.label_names:
            raise DataError(
                f"{self._path}: column '{label.name}' contains numbers, the labels of the training data are "
                f"{listed(self._options.label_names)}"
            )
        parts = []
        for array, own in zip(labels, rows, strict=True):
            values = _numbers(array)
            wrong = ~(np.abs(values) <= FLOAT32_MAX)
            if wrong.any():
                raise DataError(
                    f"{self._cell(label, own, wrong)} contains {values[wrong][0]:g}: labels are finite "
                    "numbers, or all of them are text"
                )
            beyond = np.abs(values) > MOST_LABEL
            if beyond.any() and self._options.wants == "classes":
                raise DataError(
                    f"{self._cell(label, own, beyond)} contains {values[beyond][0]:.0f}, beyond 2**53, "
                    'where different whole numbers are one float64: set data.label_kind = "text"'
                )
            parts.append(values)
        return np.concatenate(parts), ()

    def _check_names(self, found: set[str]) -> None:
        """Check the labels that are text."""
        if not self._text_label:
            return
        label = self.columns.label
        assert label is not None
        where = f"{self._path}: column '{label.name}'"
        if self._options.wants == "targets":
            raise DataError(f"{where} contains text: targets are finite numbers")
        if "" in found:
            raise DataError(f"{where} contains an empty cell: each sample needs a label")
        strange = found - set(self._options.label_names) if self._options.label_names else set()
        if strange:
            raise DataError(
                f"{where}: label '{min(strange)}' does not occur in the training data, whose labels are "
                f"{listed(self._options.label_names)}"
            )
        if len(found) > MAX_CLASSES:
            raise DataError(
                f"{where}: more than {MAX_CLASSES} distinct texts as labels; check the label column "
                "(data.label)"
            )

    def _first_cells(self, text: Sequence[str]) -> list[Sample]:
        """Return the first cells of columns of whole numbers and of text; `text`: those of text."""
        from pyarrow import types

        names = [n for n, kind in self._types.items() if n in text or types.is_integer(kind)]
        if not names:
            return []
        batch = next(self._file.batches(SAMPLE_ROWS, names), None)
        if batch is None:
            return []
        return [
            Sample(name, _texts(batch.column(batch.schema.get_field_index(name))), name in text)
            for name in names
        ]

    def _check_types(self, text: Sequence[str]) -> None:
        """Raise DataError for a column whose type cannot be used as it is meant to be."""
        label = self.columns.label
        used = [*self.columns.features, *([label] if label and self._options.labelled else [])]
        for column in used:
            name, kind = column.name, self._types[column.name]
            if name not in text and not _is_number(kind):
                raise DataError(
                    f"{self._path}: column '{name}' is {kind}, neither numbers nor text; leave it out: "
                    f'data.ignore = ["{name}"]'
                )
            if name in text and column is not label and not column.categorical:
                raise DataError(
                    f"{self._path}: column '{name}' contains text: features are finite numbers; to hash "
                    f"text, set {as_text(self.columns.features, name)}"
                )


def _without_metadata_index(
    path: str, schema: Any, options: ReadOptions
) -> tuple[ReadOptions, tuple[str, ...]]:
    """Return the options without the columns that pandas had as its index, and a sentence on each."""
    try:
        content = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
        found = [n for n in content.get("index_columns", ()) if isinstance(n, str)]
    except (ValueError, AttributeError, TypeError):
        return options, ()
    asked = (options.label, *options.as_is, *options.categorical)
    names = [name for name in found if name in schema.names and name not in asked]
    names = [name for name in names if not any(fnmatchcase(name, p) for p in options.ignore)]
    if not names:
        return options, ()
    ignore = (*options.ignore, *map(escape, names))
    return msgspec.structs.replace(options, ignore=ignore), tuple(
        f"{path}: column '{name}' was the index of a frame of pandas, by the file's own metadata: left out "
        "(reset_index() makes it a column)"
        for name in names
    )


def _indices(rows: Int64) -> Any:
    import pyarrow

    return pyarrow.array(rows)


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    return any(test(kind) for test in tests)


def _text_cells(array: Any, column: Column) -> TextCells:
    """Return the cells of a categorical column from a dictionary array; a null is empty."""
    from pyarrow import types

    found = array.dictionary
    if column.words != TEXTS and types.is_floating(found.type):
        # A Python float has more digits than a float32.
        texts = texts_of(found.to_numpy(zero_copy_only=False))
    else:
        texts = ["" if text is None else str(text) for text in found.to_pylist()]
    # Nulls have the place behind the last text.
    keys = np.append(text_keys(column, texts), EMPTY)
    indices = array.indices.fill_null(len(texts)) if array.indices.null_count else array.indices
    return TextCells(keys, indices.to_numpy(zero_copy_only=False).astype(np.int32, copy=False))


def _numbers(array: Any) -> Float64:
    """Return a column of numbers as float64, a new array; a null is NaN."""
    import pyarrow

    if pyarrow.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pyarrow.types.is_boolean(array.type):
        array = array.cast(pyarrow.uint8())
    values: Float64 = array.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
    return values.copy()


def _texts(array: Any) -> list[str]:
    """Return cells as the text that they have in CSV, without white space around it; a null is empty."""
    return ["" if cell is None else str(cell).strip() for cell in array.to_pylist()]
