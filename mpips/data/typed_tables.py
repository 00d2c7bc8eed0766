"""Reader of Parquet and Arrow files with columns of numbers and text, as of CSV (`csv_table.py`).

A cell has the key that it has in a CSV file, so a model that was trained on one format reads the other. Text
columns are those of type string, or a dictionary of strings. A null is an empty cell, and so is NaN in a
column of numbers. Only the columns that are used are read, a few thousand rows at a time.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from glob import escape
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.cells import (
    EMPTY,
    Codes,
    ColumnCells,
    NotInNotation,
    NumberCells,
    SampleBuilder,
    TextCells,
    text_keys,
    text_numbers,
)
from mpips.data.column_signs import Sample, notes_on, without_indices
from mpips.data.columns import (
    FLOAT32_MAX,
    Column,
    TableColumns,
    UnusableColumnsError,
    as_json,
    as_text,
    choose_columns,
    exactly,
    finds_text,
    hash_key,
    listed,
    logarithms_of,
    part_of,
    with_types,
)
from mpips.data.conversions import EXAMPLES
from mpips.data.csv_dialect import SAMPLE_ROWS
from mpips.data.dataset import Dataset
from mpips.data.info import MAX_CLASSES, MOST_LABEL, Part
from mpips.data.missing import Missing
from mpips.data.options import ReadOptions, Share
from mpips.data.sources import SIZE, BlockSize, Converted, Span, every_turn
from mpips.data.table_files import OPENED_TABLES, TableFile, is_text
from mpips.data.words import TEXTS, texts_of
from mpips.errors import DataError

Float64: TypeAlias = npt.NDArray[np.float64]
Int64: TypeAlias = npt.NDArray[np.int64]

_ROWS = 1 << 16  # rows that are read at a time
_CELL_BYTES = 20  # of a cell in memory


class TableSource:
    """A Parquet or Arrow file, whose spans are groups of its rows; see `mpips.data.sources.SampleSource`."""

    def __init__(
        self, kind: str, path: str, options: ReadOptions, size: BlockSize = SIZE, bad: object = None
    ) -> None:
        """Read nothing yet.

        Args:
            kind: The format, a key of `OPENED_TABLES`.
            path: The file.
            options: Options of the reader.
            size: Size of blocks.
            bad: Is not used: tables have no lines.
        """
        self.done = 0.0
        self._kind = kind
        self._path = path
        self._options = options
        self._size = size
        self._columns: TableColumns | None = None
        self._starts: Int64 | None = None  # first row of each group, and the end of the last

    @property
    def columns(self) -> TableColumns:
        """The columns that are used."""
        if self._columns is None:
            with self._table():
                pass
        assert self._columns is not None
        return self._columns

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user."""
        return self.columns.notes

    @contextlib.contextmanager
    def _table(self) -> Iterator[TypedTable]:
        """Open the file."""
        with OPENED_TABLES[self._kind](self._path) as file:
            table = TypedTable(self._path, self._options, file)
            self._columns = table.columns
            yield table

    def read(self, share: Share) -> Part:
        """Read a share of the rows."""
        with self._table() as table:
            return table.read(share)

    def ends(self) -> list[int]:
        """Return the groups of rows."""
        with OPENED_TABLES[self._kind](self._path) as file:
            return list(range(len(file.group_rows()) + 1))

    def blocks(
        self,
        span: Span | None = None,
        inside: tuple[bool, bool] = (False, False),
        turns: Iterator[bool] | None = None,
    ) -> Iterator[Converted | None]:
        """Yield the samples of a span."""
        turns = every_turn(turns)
        with self._table() as table:
            start, groups = 0, None
            if span is not None:
                if self._starts is None:
                    self._starts = np.cumsum([0, *table.file.group_rows()])
                start, last = self._starts[[span.start, span.stop]].tolist()
                first, groups = start, range(span.start, span.stop)
            names = table.wanted
            n_rows = min(_ROWS, self._size.rows(len(names), _CELL_BYTES * len(names)))
            for batch in table.file.batches(n_rows, names, groups):
                before, start = start, start + batch.num_rows
                if span is not None:
                    self.done = (start - first) / max(last - first, 1)
                if next(turns):
                    data, labels, _ = table.samples([batch], before)
                    yield Converted(data, labels)
                else:
                    yield None


class TypedTable:
    """The reader of one open file, with the meaning of its columns.

    Attributes:
        file: The file.
        columns: The columns that are used.
        is_hashed: Samples are lists of keys and values; else they are rows of numbers.
    """

    def __init__(self, path: str, options: ReadOptions, file: TableFile) -> None:
        """Choose the columns of an open file.

        Raises:
            DataError: A column is unknown, or of a type that is neither numbers nor text.
        """
        schema = file.schema
        self._path = path
        self.file = file
        self._types = dict(zip(schema.names, schema.types, strict=True))
        options = with_types(
            options,
            [name for name, kind in self._types.items() if _is_number(kind)],
            [name for name, kind in self._types.items() if _is_date(kind)],
        )
        self._options = options
        text = [name for name in schema.names if is_text(self._types[name])]
        left_out: tuple[str, ...] = ()
        samples: list[Sample] = []
        if not options.columns:
            options, left_out = _without_metadata_index(path, schema, options)
            samples = self._first_cells(text)
        asked, unnamed = without_indices(path, samples, options)
        chosen = choose_columns(path, schema.names, asked, text if finds_text(options) else [])
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
            options.labelled
            and label is not None
            and not label.convert
            and (label.name in text or as_text)
        )
        self._missing = Missing.of(options.missing)

    @property
    def wanted(self) -> list[str]:
        """Names of the columns that are read."""
        label = self.columns.label if self._options.labelled else None
        names = list(dict.fromkeys(column.source for column in self.columns.features))
        return [*names, label.name] if label is not None else names

    def read(self, share: Share) -> Part:
        """Read the samples of a share."""
        data, names, n = self.samples(self.file.batches(_ROWS, self.wanted), 0, share)
        return part_of(self._path, data, n, self._options, self.columns, names)

    def samples(
        self, batches: Iterable[Any], start: int, share: Share | None = None
    ) -> tuple[Dataset, tuple[str, ...], int]:
        """Return samples in batches of rows, the labels that are text (sorted; (): numbers), and the rows.

        Args:
            batches: The rows, with the columns `wanted`.
            start: Number of the first row in the file.
            share: The share of the rows; None: all.

        Raises:
            DataError: A cell is empty or no finite number; names file, row, column and cell.
        """
        label = self.columns.label if self._options.labelled else None
        builder = SampleBuilder(self.is_hashed, self._logarithms)
        if share is not None:
            builder.expect(sum(self.file.group_rows()) // share.stride + 1)
        labels: list[Any] = []
        rows: list[Int64] = []
        all_labels: set[str] = set()
        first = start
        for batch in batches:
            n = batch.num_rows
            own = np.arange(start, start + n) if share is None else share.numbers(start, start + n)
            taken = batch.take(_indices(own - start)) if len(own) < n else batch
            builder.add(self._cells(taken, own), len(own))
            rows.append(own)
            if label is not None:
                place = batch.schema.get_field_index(label.name)
                labels.append(taken.column(place))
                if self._text_label:
                    all_labels.update(_texts(batch.column(place).unique()))
                    self._check_names(all_labels)
            start += n
        if share is not None and start == first:
            raise DataError(f"{self._path}: contains no samples")
        numbers, names = np.zeros(sum(map(len, rows))), self._options.label_names
        if label is not None:
            numbers, names = self._label_numbers(label, labels, rows, all_labels)
        return builder.samples(numbers), names, start - first

    def _cells(self, batch: Any, rows: Int64) -> list[ColumnCells]:
        """Return the cells of each feature; `rows`: numbers of the rows in the file."""
        found: list[ColumnCells] = []
        for feature in self.columns.features:
            array = batch.column(batch.schema.get_field_index(feature.source))
            if feature.categorical:
                found.append(self._words(array, feature, rows))
            else:
                found.append(
                    NumberCells(hash_key(feature.name), self._checked(array, feature, rows))
                )
        return found

    def _checked(self, array: Any, column: Column, rows: Int64) -> Float64:
        """Return the cells of a column of numbers; nan for an empty one."""
        if column.convert:
            values = self._converted(array, column, rows)
        else:
            values = self._missing.blanked(_numbers(array))
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

    def _words(self, array: Any, column: Column, rows: Int64) -> TextCells:
        """Return the cells of a categorical column."""
        coded = array.dictionary_encode()
        try:
            return _text_cells(coded, column)
        except NotInNotation as error:
            raise self._not_in_notation(coded, error.place, column, rows) from None

    def _converted(self, array: Any, column: Column, rows: Int64) -> Float64:
        """Return the cells of a column with a notation as numbers; nan for an empty one."""
        coded = array.dictionary_encode()
        try:
            values = np.append(text_numbers(column, _texts(coded.dictionary)), np.nan)
        except NotInNotation as error:
            raise self._not_in_notation(coded, error.place, column, rows) from None
        found: Float64 = values[_codes(coded, len(values) - 1)]
        return found

    def _not_in_notation(self, coded: Any, place: int, column: Column, rows: Int64) -> DataError:
        wrong = _codes(coded, len(coded.dictionary)) == place
        return DataError(
            f"{self._cell(column, rows, wrong)} contains '{coded.dictionary[place]}': data.convert reads it "
            f"as {column.convert}, such as {EXAMPLES[column.convert]}; leave the cell empty if its value is "
            "missing, or name its text in data.missing"
        )

    def _cell(self, column: Column, rows: Int64, wrong: npt.NDArray[np.bool_]) -> str:
        return f"{self._path}: row {rows[np.argmax(wrong)] + 1:,}, column '{column.source}'"

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
            values = self._converted(array, label, own) if label.convert else _numbers(array)
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
        batch = next(self.file.batches(SAMPLE_ROWS, names), None)
        if batch is None:
            return []
        return [
            Sample(name, _texts(batch.column(batch.schema.get_field_index(name))), name in text)
            for name in names
        ]

    def _unusable(self, names: Sequence[str]) -> UnusableColumnsError:
        """Return an error that names columns and what they contain."""
        several = len(names) > 1
        what = ", ".join(f"column '{name}' is {self._types[name]}" for name in names)
        ignored = as_json([escape(name) for name in names])
        how = f"leave {'them' if several else 'it'} out: data.ignore = {ignored}"
        dates = [name for name in names if _is_date(self._types[name])]
        if dates:
            parts = ", ".join(f'"{name}" = "time_ymd"' for name in dates)
            of = "the parts of dates" if several else "its parts"
            how += f", or read {of}: data.convert = {{ {parts} }}"
        label = self.columns.label
        return UnusableColumnsError(
            f"{self._path}: {what}, neither numbers nor text; {how}",
            [] if label is not None and label.source in names else names,
        )

    def _check_types(self, text: Sequence[str]) -> None:
        """Raise DataError for a column whose type cannot be used as it is meant to be."""
        label = self.columns.label
        used = [*self.columns.features, *([label] if label and self._options.labelled else [])]
        kinds = {column.source: self._types[column.source] for column in used if not column.convert}
        strange = [n for n, kind in kinds.items() if n not in text and not _is_number(kind)]
        if strange:
            raise self._unusable(strange)
        for column in used:
            name = column.source
            if column.convert:
                continue
            if name in text and column is not label and not column.categorical:
                raise DataError(
                    f"{self._path}: column '{name}' contains text: features are finite numbers; to hash "
                    f"text, set {as_text(self.columns.features, [name])}"
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
    ignore = (*options.ignore, *map(exactly, names))
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


def _is_date(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_timestamp(kind) or types.is_date(kind))


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
    return TextCells(keys, _codes(array, len(texts)))


def _codes(array: Any, null: int) -> Codes:
    """Return the places of the cells of a dictionary array, int32, shape (n,); `null`: that of a null."""
    indices = array.indices.fill_null(null) if array.indices.null_count else array.indices
    codes: Codes = indices.to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
    return codes


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
