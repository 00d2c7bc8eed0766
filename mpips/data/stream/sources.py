"""Files that are converted in spans: bytes of text, rows of arrays, groups of rows of Parquet.

A span is a range of one file, and the spans of a file cover it. One worker converts a span without reading
the others. A span of text that is not compressed has the records that end in it: it begins behind the end of
the record that contains its first byte, and ends behind the record that contains the first byte of the next
span. A line end within quotes ends no record of CSV, so a worker must know whether a span begins within
quotes. For this, each span is surveyed first: `CsvSource.survey` returns what follows for the end of a span
from each assumption about its beginning; `mpips.data.stream.conversion` composes the answers of all spans.

A compressed file is one span.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from mpips._native import count_csv_lines, csv_record_end, csv_shift, scan_csv
from mpips.data.columns import TableColumns
from mpips.data.compressed import PackedPlace, compression_of, opened
from mpips.data.csv_labels import CsvLabels
from mpips.data.csv_plan import MAX_RECORD_BYTES, CsvPlan, Text
from mpips.data.csv_quick import QuickReader
from mpips.data.csv_table import builder_of, csv_errors, read_records
from mpips.data.label_sets import numbered
from mpips.data.libsvm import is_of_array, parse_text, whole_lines
from mpips.data.options import ReadOptions
from mpips.data.stream.bad_lines import BadLines, good_csv, good_libsvm
from mpips.data.stream.cache import Converted
from mpips.errors import DataError

_READ = 1 << 20  # bytes that are read at a time where only the end of a record is sought


class Span(msgspec.Struct, frozen=True):
    """A range of a file.

    Attributes:
        file: Place of the file in the list of files.
        start, stop: First byte or row, and the one behind the last. A compressed file has 0, 0.
        is_last: No span of the file follows.
    """

    file: int
    start: int
    stop: int
    is_last: bool


class SpanSource(Protocol):
    """A file whose spans are converted.

    Attributes:
        columns: The columns that are used; None for formats without names.
        notes: Sentences for the user.
        done: Share of the present span that was read, 0 to 1; of compressed text, of the compressed bytes.
    """

    columns: TableColumns | None
    notes: tuple[str, ...]
    done: float

    def pieces(self, span: Span, inside: tuple[bool, bool]) -> Iterator[Converted]:
        """Yield the samples of a span in order, in pieces of bounded size. Blocks.

        Args:
            span: The span.
            inside: CSV: whether its beginning and its end are within quotes.

        Raises:
            DataError: The file is malformed; names the place.
            OSError: It cannot be read.
        """


def cut(file: int, path: str, piece_bytes: int) -> list[Span]:
    """Return the spans of a text file: of about `piece_bytes` bytes, or one if it is compressed."""
    if compression_of(path):
        return [Span(file, 0, 0, True)]
    size = os.path.getsize(path)
    n = max(1, -(-size // piece_bytes))
    ends = [size * i // n for i in range(n + 1)]
    return [Span(file, ends[i], ends[i + 1], i == n - 1) for i in range(n)]


class TextFile:
    """Bytes of a text file by place, of which few are in memory at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._file).st_size

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> TextFile:
        """Return this file, which the block closes."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes; fewer at the end of the file."""
        parts = []
        while start < stop and (part := os.pread(self._file, stop - start, start)):
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def find(self, start: int, end_in: Callable[[bytes], int]) -> int:
        """Return the place that a function finds in the text from `start` on, or the end of the file.

        Args:
            start: Where the text begins.
            end_in: Returns a place in a text, or its length if there is none.

        Raises:
            DataError: The place is more than `MAX_RECORD_BYTES` behind `start`.
        """
        n = _READ
        while True:
            text = self.read(start, start + n)
            place = end_in(text)
            if place < len(text) or start + len(text) >= self.size:
                return start + place
            if n >= MAX_RECORD_BYTES:
                raise DataError(
                    f"{self._path}: a line or record is longer than {MAX_RECORD_BYTES >> 20} MiB"
                )
            n *= 4

    def lines_before(self, end: int) -> int:
        """Return the number of line ends before a place."""
        blocks = range(0, end, _READ)
        return sum(count_csv_lines(self.read(at, min(at + _READ, end))) for at in blocks)


class LibsvmSource:
    """LIBSVM text; see SpanSource."""

    columns: TableColumns | None = None
    notes: tuple[str, ...] = ()

    def __init__(
        self, path: str, options: ReadOptions, piece_bytes: int, bad: BadLines | None = None
    ) -> None:
        """Read nothing yet; `bad`: bad lines are left out and added here; None: they are errors."""
        self.done = 0.0
        self._bad = bad
        self._path = path
        self._of_array = is_of_array(path)
        self._options = options
        self._piece_bytes = piece_bytes

    def pieces(self, span: Span, inside: tuple[bool, bool]) -> Iterator[Converted]:
        """Yield the samples of a span."""
        if compression_of(self._path):
            yield from self._unpacked()
            return
        with TextFile(self._path) as file:
            begin = file.find(span.start, _line_end) if span.start else 0
            end = span.stop if span.is_last else file.find(span.stop, _line_end)
            text = file.read(begin, end)
            if not text:
                return
            converted = self._converted(text, lambda: file.lines_before(begin))
        if converted.data.n:
            yield converted

    def _unpacked(self) -> Iterator[Converted]:
        """Yield the samples of a compressed file."""
        line = 0
        with opened(self._path, place := PackedPlace()) as file:
            for text in whole_lines(self._path, file, self._piece_bytes):
                self.done = place.share
                converted = self._converted(text, lambda before=line: before)  # type: ignore[misc]
                line += text.count(b"\n")
                if converted.data.n:
                    yield converted

    def _converted(self, text: bytes, lines_before: Callable[[], int]) -> Converted:
        """Return the samples of whole lines, with indices as they are written.

        The base may be found in another piece.
        """
        base = 1 if self._options.index_base == 1 and not self._of_array else 0
        several = self._options.wants == "several"
        if self._bad is not None:
            text = good_libsvm(self._path, text, base, self._bad, lines_before, several)
        data, low, high = parse_text(self._path, text, base, lines_before, several)
        indices = numbered(data.indices, data.fields, base)
        written = msgspec.structs.replace(data, indices=indices, n_features=high + 1)
        return Converted(written, (), low, high)


class CsvSource:
    """CSV; see SpanSource."""

    def __init__(
        self, path: str, options: ReadOptions, piece_bytes: int, bad: BadLines | None = None
    ) -> None:
        """Read the header, and the first rows for the columns with text.

        Args:
            path: The file.
            options: Options of the reader.
            piece_bytes: Bytes that are converted at once.
            bad: Bad records are left out and added here; None: they are errors.

        Raises:
            DataError: The header is missing, or lacks a column.
            OSError: The file cannot be read.
        """
        self._path = path
        self._piece_bytes = piece_bytes
        self._bad = bad
        with opened(path) as file, csv_errors(path):
            self._plan = CsvPlan.of(path, file, options)
        self.columns: TableColumns | None = self._plan.columns
        self.notes = self._plan.columns.notes
        self.done = 0.0
        self._quick = QuickReader(self._plan)

    def survey(self, span: Span) -> tuple[bool, bool]:
        """Return whether the end of a span is within quotes if its beginning is not, and if it is. Blocks."""
        if compression_of(self._path):
            return False, False
        with TextFile(self._path) as file:
            start, stop = self._shifted(file, span.start), self._shifted(file, span.stop)
            text = file.read(max(start - 1, 0), stop + 1)
        # The text begins with the byte before the span, which tells whether a quote opens a cell.
        first = min(start, 1)
        last = min(first + stop - start, len(text))
        ends = [scan_csv(text, first, last, self._plan.delimiter, q)[0] for q in (False, True)]
        return ends[0], ends[1]

    def pieces(self, span: Span, inside: tuple[bool, bool]) -> Iterator[Converted]:
        """Yield the samples of a span."""
        with csv_errors(self._path):
            if compression_of(self._path):
                line = self._plan.n_header_lines
                with opened(self._path, place := PackedPlace()) as packed:
                    for piece in self._plan.texts(packed, self._piece_bytes):
                        self.done = place.share
                        yield from self._readable(piece, lambda before=line: before)  # type: ignore[misc]
                        line += count_csv_lines(piece)
                return
            with TextFile(self._path) as file:
                begin = self._record_end(file, span.start, inside[0])
                end = span.stop if span.is_last else self._record_end(file, span.stop, inside[1])
                text = file.read(begin, end)
                yield from self._readable(text, lambda: file.lines_before(begin))

    def _readable(self, text: Text, lines_before: Callable[[], int]) -> Iterator[Converted]:
        """Yield the samples of whole records, without bad ones if these are to be left out."""
        try:
            yield from self._converted(text, 0)
        except (DataError, UnicodeDecodeError, csv.Error) as error:
            if self._bad is not None:
                text = good_csv(self._plan, bytes(text), self._bad, lines_before)
                yield from self._converted(text, lines_before())
                return
            if isinstance(error, DataError):
                # Find the line, and raise the error again with it.
                yield from self._converted(text, lines_before())
            raise

    def _converted(self, text: Text, line: int) -> Iterator[Converted]:
        """Yield the samples of whole records, if there are any; `line`: lines before them."""
        labels = CsvLabels(self._plan)
        rows, places = read_records(self._plan, text, line, labels, self._quick)
        names = labels.names()
        if rows.n:
            builder = builder_of(self._plan)
            builder.add(rows.cells(), rows.n)
            yield Converted(builder.samples(labels.values(places, names)), names)

    def _shifted(self, file: TextFile, place: int) -> int:
        """Return the first place from `place` on that is not between two quotes in a row."""
        if place == 0:
            return 0
        return file.find(place - 1, lambda text: csv_shift(text, min(1, len(text))))

    def _record_end(self, file: TextFile, place: int, inside: bool) -> int:
        """Return the place behind the record that contains a place, or that of the first record."""
        at = self._shifted(file, place)
        if at == 0:
            return self._plan.start
        return file.find(
            at - 1,
            lambda text: csv_record_end(text, min(1, len(text)), self._plan.delimiter, inside),
        )


def _line_end(text: bytes) -> int:
    found = text.find(b"\n")
    return found + 1 if found >= 0 else len(text)
