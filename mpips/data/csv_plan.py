"""The meaning of a CSV file: its delimiter and header, the columns that are used, and how cells are read."""

from __future__ import annotations

import contextlib
import csv
import io
import math
from collections.abc import Iterator, Sequence
from typing import IO, TypeAlias

import msgspec

from mpips._native import CsvParser, csv_last_end, csv_record_end
from mpips.data.column_signs import Sample, is_asked, notes_on, without_indices
from mpips.data.columns import FOUND, Column, TableColumns, choose_columns, finds_text, sources_of
from mpips.data.csv_dialect import SAMPLE_ROWS, find_delimiter, is_text_column, number, text_columns
from mpips.data.missing import Missing
from mpips.data.options import ReadOptions
from mpips.data.sources import MAX_RECORD_BYTES
from mpips.errors import DataError

Text: TypeAlias = bytes | memoryview

# Columns of Criteo's click logs; see `mpips.data.criteo`.
CRITEO_TEXT = tuple(f"C{i}" for i in range(1, 27))
CRITEO_COLUMNS = ("label", *(f"I{i}" for i in range(1, 14)), *CRITEO_TEXT)

_BLOCK = 1 << 18  # bytes of the beginning in which the header and the first rows are sought first
_WORDS = 64  # distinct texts that are looked at together
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class CsvPlan(msgspec.Struct, frozen=True):
    """The meaning of a CSV file, from its beginning.

    Attributes:
        path: The file.
        options: Options of the reader.
        delimiter: The character between cells.
        header: Names of all columns.
        columns: The columns that are used.
        start: Place of the first byte behind the header.
        n_header_lines: Lines of the header.
    """

    path: str
    options: ReadOptions
    delimiter: str
    header: tuple[str, ...]
    columns: TableColumns
    start: int
    n_header_lines: int

    @property
    def label(self) -> Column | None:
        """The label's column; None if labels are not read."""
        return self.columns.label if self.options.labelled else None

    @property
    def is_hashed(self) -> bool:
        """Samples are lists of keys and values; else they are rows of numbers."""
        return bool(self.options.categorical) or any(c.categorical for c in self.columns.features)

    @property
    def allows_missing(self) -> bool:
        """A number may be missing."""
        return self.is_hashed or self.options.empty == "zero"

    @property
    def missing(self) -> Missing:
        """Texts that mean an empty cell, beside the usual ones."""
        return Missing.of(self.options.missing)

    @classmethod
    def of(cls, path: str, file: IO[bytes], options: ReadOptions) -> CsvPlan:
        """Return the plan of an open file, and go back to its beginning.

        Raises:
            DataError: The header is missing, or lacks a column.
            UnicodeDecodeError, csv.Error: The beginning is not text, or not CSV.
        """
        if options.format == "criteo":
            return cls._without_header(path, file, options)
        # Bad records that are left out later say nothing about the columns.
        strict = options.on_bad == "error"
        with _rows(file, strict) as text:
            delimiter = find_delimiter(text)
            rows = csv.reader(text, strict=strict, delimiter=delimiter)
            header = tuple(name.strip() for name in next(rows, []))
            n_lines = rows.line_num
            if options.header:
                _check_header(path, header)
        if options.header:
            start = _header_end(file, delimiter)
        else:
            header, start, n_lines = _numbered(path, len(header), options), _mark_end(file), 0
        found: list[str] = []
        if finds_text(options):
            places = _text_columns(file, start, delimiter, len(header), options)
            found = [header[place] for place in places]
        asked_for = [p for p in options.categorical if p != FOUND]
        text_places = [
            i for i, name in enumerate(header) if name in found or is_asked(name, asked_for)
        ]
        samples = (
            _samples(file, start, delimiter, header, text_places) if not options.columns else []
        )
        asked, left_out = without_indices(path, samples, options)
        chosen = choose_columns(path, header, asked, found)
        notes = (*chosen.notes, *left_out, *notes_on(path, samples, chosen.features, options))
        chosen = msgspec.structs.replace(chosen, notes=notes)
        return cls(path, options, delimiter, header, chosen, start, n_lines)

    @classmethod
    def _without_header(cls, path: str, file: IO[bytes], options: ReadOptions) -> CsvPlan:
        """Return the plan of a file of Criteo's click logs; see `mpips.data.criteo`."""
        file.seek(0)
        first = file.readline(_BLOCK)
        start = _mark_end(file)
        width = first.count(b"\t") + 1
        header = CRITEO_COLUMNS
        if width == len(CRITEO_COLUMNS) - 1 and not options.labelled:
            header = CRITEO_COLUMNS[1:]
        elif width != len(CRITEO_COLUMNS):
            without = ", so it has no labels" if width == len(CRITEO_COLUMNS) - 1 else ""
            raise DataError(
                f"{path}: its first line has {width} cells{without}: lines of Criteo's click logs have a "
                "label, 13 numbers and 26 categories, with tabs between them"
            )
        found = CRITEO_TEXT if finds_text(options) else []
        chosen = choose_columns(path, header, options, found)
        return cls(path, options, "\t", header, chosen, start, 0)

    def texts(self, file: IO[bytes], size: int) -> Iterator[memoryview]:
        """Yield the text behind the header in pieces of whole records, of about `size` bytes each.

        A piece is valid until the next one is asked for.

        Args:
            file: The file, at its beginning.
            size: Bytes that are read at a time.

        Raises:
            DataError: A record has more than `MAX_RECORD_BYTES` bytes.
        """
        file.seek(self.start)
        # The first `n_left` bytes of the buffer are the beginning of a record.
        buffer, n_left = bytearray(2 * size), 0
        while True:
            if n_left + size > len(buffer):
                # Others may hold views of the old buffer, so it cannot grow in place.
                buffer = buffer + bytes(len(buffer))
            n_read = file.readinto(memoryview(buffer)[n_left : n_left + size])  # type: ignore[attr-defined]
            text = memoryview(buffer)[: n_left + n_read]
            if not n_read:
                break
            end = csv_last_end(text, 0, self.delimiter)
            if end:
                yield text[:end]
            n_left = len(text) - end
            buffer[:n_left] = bytes(text[end:])
            if n_left > MAX_RECORD_BYTES:
                raise self.too_long()
        if n_left:
            yield text

    def too_long(self) -> DataError:
        """Return the error of a record that is too long."""
        return DataError(
            f"{self.path}: a record is longer than {MAX_RECORD_BYTES >> 20} MiB; look for a quote that is "
            "not closed"
        )


def _check_header(path: str, header: tuple[str, ...]) -> None:
    if not header:
        raise DataError(f"{path}: contains no header line; the first line must name the columns")
    if not any(math.isnan(number(name)) for name in header):
        raise DataError(
            f"{path}: its first line has only numbers; put a line above it that names the columns, or set "
            "data.header = false, and they are called c1, c2, ..."
        )


def _numbered(path: str, width: int, options: ReadOptions) -> tuple[str, ...]:
    """Return the names of the columns of a file without a header: c1, c2, ...

    Samples to be predicted may lack the label's cell; others may follow it.

    Raises:
        DataError: The file is empty.
    """
    if not width:
        raise DataError(f"{path}: contains no samples")
    names = [f"c{i + 1}" for i in range(width)]
    last = f"c{width + 1}"
    needed = sources_of(options.columns, options)
    if not options.labelled and last in needed and options.label in names:
        names = [*(name for name in names if name != options.label), last]
    return tuple(names)


def _mark_end(file: IO[bytes]) -> int:
    """Return the place behind the byte order mark of a file, or 0."""
    file.seek(0)
    mark = file.read(len(_BYTE_ORDER_MARK))
    return len(mark) if mark == _BYTE_ORDER_MARK else 0


@contextlib.contextmanager
def _rows(file: IO[bytes], strict: bool) -> Iterator[io.TextIOWrapper]:
    """Return the text of a file from its beginning on; the file stays open.

    Args:
        file: The file.
        strict: Bytes that are not UTF-8 are an error; else they are replaced.
    """
    file.seek(0)
    text = io.TextIOWrapper(file, "utf-8-sig", "strict" if strict else "replace", newline="")
    try:
        yield text
    finally:
        text.detach()


def _text_columns(
    file: IO[bytes], start: int, delimiter: str, width: int, options: ReadOptions
) -> list[int]:
    """Return the places of the columns that contain only text, by the first rows behind the header."""
    file.seek(start)
    sample = file.read(_BLOCK)
    is_whole = len(sample) < _BLOCK
    if not is_whole:
        sample = sample[: csv_last_end(sample, 0, delimiter)]
    strict, missing = options.on_bad == "error", Missing.of(options.missing)
    parser = CsvParser("t" * width, delimiter)
    found = parser.parse(sample, SAMPLE_ROWS)
    if found is not None and (is_whole or found[0] == SAMPLE_ROWS):
        try:
            return [i for i in range(width) if is_text_column(_words(parser, i), missing)]
        except UnicodeDecodeError:
            if strict:
                raise
    # The text is not plain, or its rows are long.
    with _rows(file, strict) as text:
        rows = csv.reader(text, strict=strict, delimiter=delimiter)
        if options.header:
            next(rows)
        return text_columns(rows, width, missing)


def _samples(
    file: IO[bytes], start: int, delimiter: str, header: Sequence[str], text: Sequence[int]
) -> list[Sample]:
    """Return the cells of the columns in the first rows; `text`: places of those of text."""
    file.seek(start)
    block = file.read(_BLOCK)
    if len(block) == _BLOCK:
        block = block[: csv_last_end(block, 0, delimiter)]
    lines = io.StringIO(block.decode("utf-8", "replace"), newline="")
    rows: list[list[str]] = []
    with contextlib.suppress(csv.Error):
        for row in csv.reader(lines, delimiter=delimiter):
            if len(row) == len(header):
                rows.append(row)
            if len(rows) == SAMPLE_ROWS:
                break
    columns = list(zip(*rows, strict=True)) or [()] * len(header)
    return [
        Sample(name, [cell.strip() for cell in columns[i]], i in text)
        for i, name in enumerate(header)
    ]


def _words(parser: CsvParser, column: int) -> Iterator[list[str]]:
    """Yield the distinct texts of a column in groups."""
    first = 0
    while words := parser.words(column, first, _WORDS):
        yield words
        first += len(words)


def _header_end(file: IO[bytes], delimiter: str) -> int:
    """Return the place of the first byte behind the header."""
    size = _BLOCK
    while True:
        file.seek(0)
        text = file.read(size)
        end = csv_record_end(text, 0, delimiter, False)
        # At the end of the text a \r may be half of a line end.
        if end < len(text) or len(text) < size:
            return end
        size *= 2
