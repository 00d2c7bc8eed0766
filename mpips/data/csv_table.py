"""Reader of CSV with a header: a dense matrix of numbers, or hashed keys if there are categorical columns.

The delimiter is found from the first lines, and so are columns of text, which are categorical
(`csv_dialect.py`). Labels are numbers, or all of them are text: then the classes are the texts, sorted. Every
worker reads the labels of all lines, so that all number the classes alike.

A hashed sample is a list of (key, value). For a categorical cell the key is the hash of column name and cell
text, and the value is 1. For a numeric cell the key is the hash of the column name, and the value is the
number. Empty cells have no entry. Keys are uniform in 0..2**62-1, so that no collision is to be expected
below a billion distinct keys. They are equal on all machines.

The text is read in pieces of whole records: plain ones by the native parser (`csv_quick.py`), others by
Python's csv module (`csv_rows.py`), with the same result.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator
from typing import IO, NamedTuple

import numpy as np

from mpips._native import count_csv_lines, csv_record_end, csv_shift, scan_csv
from mpips.data.bad_lines import BadLines, good_csv
from mpips.data.cells import SampleBuilder
from mpips.data.columns import Float64, TableColumns, logarithms_of, part_of
from mpips.data.compressed import PackedPlace, compression_of, opened
from mpips.data.csv_dialect import find_delimiter
from mpips.data.csv_labels import CsvLabels, LineUnknown
from mpips.data.csv_plan import CsvPlan, Text
from mpips.data.csv_quick import QuickReader
from mpips.data.csv_rows import CellError, CsvRows, PlainRows
from mpips.data.dataset import Dataset
from mpips.data.info import Part
from mpips.data.options import ReadOptions, Share
from mpips.data.sources import (
    SIZE,
    BlockSize,
    Converted,
    Span,
    TextFile,
    every_turn,
    text_ends,
)
from mpips.errors import DataError

UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")  # at the beginning of such a file
_PIECE = 1 << 19  # bytes of text that are converted at once where all samples stay in memory


class CsvSource:
    """A CSV file whose first line names the columns; see `mpips.data.sources.SampleSource`."""

    def __init__(
        self, path: str, options: ReadOptions, size: BlockSize = SIZE, bad: BadLines | None = None
    ) -> None:
        """Read nothing yet; `bad`: bad records are left out and added here; None: they are errors."""
        self.done = 0.0
        self._path = path
        self._options = options
        self._size = size
        self._bad = bad
        self._plan: CsvPlan | None = None
        self._n_lines = -1  # line ends of the text that was read last; -1: not counted

    @property
    def plan(self) -> CsvPlan:
        """The meaning of the file, from its beginning."""
        if self._plan is None:
            with opened(self._path) as file, csv_errors(self._path):
                return self._planned(file)
        return self._plan

    @property
    def columns(self) -> TableColumns | None:
        """The columns that are used."""
        return self.plan.columns

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user."""
        return self.plan.columns.notes

    def read(self, share: Share) -> Part:
        """Read a share of the file."""
        with csv_errors(self._path), self._cell_errors():
            found = self._samples(
                ((text, lines_before()) for text, lines_before in self._texts(None, _PIECE)), share
            )
        if found is None or not found.n:
            raise DataError(f"{self._path}: contains no samples")
        columns = self.plan.columns
        return part_of(self._path, found.data, found.n, self._options, columns, found.names)

    def ends(self) -> list[int]:
        """Return the ends of spans of text."""
        return text_ends(self._path, self._size.n_bytes)

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
        ends = [scan_csv(text, first, last, self.plan.delimiter, q)[0] for q in (False, True)]
        return ends[0], ends[1]

    def blocks(
        self,
        span: Span | None = None,
        inside: tuple[bool, bool] = (False, False),
        turns: Iterator[bool] | None = None,
    ) -> Iterator[Converted | None]:
        """Yield the samples of a span."""
        turns = every_turn(turns)
        # The blocks of a whole file are of one process, which names the line whose label is of another kind.
        labels: CsvLabels | None = None
        with csv_errors(self._path), self._cell_errors():
            for text, lines_before in self._texts(span, self._size.n_bytes, inside):
                if not next(turns):
                    yield None
                    continue
                if span is None and labels is None:
                    labels = CsvLabels(self.plan)
                before = labels.copy() if labels is not None else None
                try:
                    found = self._samples([(text, 0)], labels=labels)
                except (DataError, UnicodeDecodeError, csv.Error) as error:
                    if self._bad is not None:
                        text = good_csv(self.plan, bytes(text), self._bad, lines_before)
                    elif not isinstance(error, DataError):
                        raise
                    # The lines before a span are counted only where an error names its line.
                    labels = before
                    found = self._samples([(text, lines_before())], labels=labels)
                if found is not None:
                    yield Converted(found.data, found.names)

    def _texts(
        self, span: Span | None, n_bytes: int, inside: tuple[bool, bool] = (False, False)
    ) -> Iterator[tuple[Text, Callable[[], int]]]:
        """Yield whole records of a span, and a function that returns the number of lines before them."""
        if span is not None and not compression_of(self._path):
            with TextFile(self._path) as file:
                begin = self._record_end(file, span.start, inside[0])
                end = span.stop if span.is_last else self._record_end(file, span.stop, inside[1])
                yield file.read(begin, end), lambda: file.lines_before(begin)
            return
        with opened(self._path, place := PackedPlace()) as packed:
            plan = self._planned(packed)
            line = plan.n_header_lines
            for text in plan.texts(packed, n_bytes):
                self.done, self._n_lines = place.share, -1
                yield text, lambda before=line: before  # type: ignore[misc]
                line += count_csv_lines(text) if self._n_lines < 0 else self._n_lines

    @contextlib.contextmanager
    def _cell_errors(self) -> Iterator[None]:
        """Add the options that all columns of the file need to the error of a cell."""
        try:
            yield
        except CellError as error:
            plan = self.plan
            # The columns of a model are what they were in its training.
            options = "" if plan.options.columns else self._advice(plan)
            known = all(option in str(error) for option in options.split(", data."))
            more = f"; to read all columns, set {options}" if options and not known else ""
            raise DataError(f"{error}{more}") from None

    def _advice(self, plan: CsvPlan) -> str:
        """Return the options that let all columns be read; "": unknown."""
        from mpips.data.column_needs import advice
        from mpips.data.csv_survey import surveys

        label = plan.label.name if plan.label is not None else None
        return advice(surveys(self._path, self._options), self._options, label)

    def _planned(self, file: IO[bytes]) -> CsvPlan:
        """Return the meaning of the open file."""
        if self._plan is None:
            self._plan = CsvPlan.of(self._path, file, self._options)
            self._quick = QuickReader(self._plan)
        return self._plan

    def _samples(
        self,
        texts: Iterable[tuple[Text, int]],
        share: Share | None = None,
        labels: CsvLabels | None = None,
    ) -> _Samples | None:
        """Return the samples of whole records; None: there is no text.

        Args:
            texts: The records, and the number of lines before them.
            share: The share of them; None: all.
            labels: Labels of the records before; None: there are no such records.

        Raises:
            DataError, UnicodeDecodeError, csv.Error: The text is wrong.
        """
        builder: SampleBuilder | None = None
        own_labels: list[Float64] = []
        n = 0
        for text, line in texts:
            if builder is None:
                builder = builder_of(self.plan)
                labels = CsvLabels(self.plan) if labels is None else labels
            assert labels is not None
            rows, places = self._records(text, line, labels)
            self._n_lines = rows.n_lines
            own = share.own(n, rows.n) if share is not None else None
            own_labels.append(places if own is None else places[own])
            if share is not None and not n:
                # The other records are about as long as the first ones.
                size = os.path.getsize(self._path)
                builder.expect(len(own_labels[0]) * (size + size // 50) // len(text))
            builder.add(rows.cells(), rows.n, own)
            n += rows.n
        if builder is None or labels is None:
            return None
        names = labels.names()
        numbers = labels.values(np.concatenate(own_labels), names)
        return _Samples(builder.samples(numbers), names, n)

    def _records(self, text: Text, line: int, labels: CsvLabels) -> tuple[CsvRows, Float64]:
        """Divide text into records and add their labels; return both."""
        rows = self._quick.rows(text)
        if rows is not None:
            with contextlib.suppress(LineUnknown):
                return rows, labels.add(rows)
        plain = PlainRows(self.plan, text, line)
        return plain, labels.add(plain)

    def _shifted(self, file: TextFile, place: int) -> int:
        """Return the first place from `place` on that is not between two quotes in a row."""
        if place == 0:
            return 0
        return file.find(place - 1, lambda text: csv_shift(text, min(1, len(text))))

    def _record_end(self, file: TextFile, place: int, inside: bool) -> int:
        """Return the place behind the record that contains a place, or that of the first record."""
        at = self._shifted(file, place)
        if at == 0:
            return self.plan.start
        return file.find(
            at - 1,
            lambda text: csv_record_end(text, min(1, len(text)), self.plan.delimiter, inside),
        )


class _Samples(NamedTuple):
    """Samples of a share of some records, their labels that are text, and the number of all records."""

    data: Dataset
    names: tuple[str, ...]
    n: int


def builder_of(plan: CsvPlan) -> SampleBuilder:
    """Return a builder of the samples of a file."""
    logarithms = logarithms_of(plan.columns.features, plan.options, plan.is_hashed)
    return SampleBuilder(plan.is_hashed, logarithms)


@contextlib.contextmanager
def csv_errors(path: str) -> Iterator[None]:
    """Turn errors of decoding and of the csv module into a DataError that names the file."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(not_utf8(path)) from error
    except csv.Error as error:
        raise DataError(
            f"{_not_csv_at(path)}: is not CSV: {error}; look for a quote that is not closed"
        ) from error


def _not_csv_at(path: str) -> str:
    """Return a file with the line at which it is not CSV, if there is one. Blocks for reading."""
    with opened(path) as file, contextlib.suppress(UnicodeDecodeError):
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        rows = csv.reader(text, strict=True, delimiter=find_delimiter(text))
        try:
            for _ in rows:
                pass
        except csv.Error:
            return f"{path}:{rows.line_num}"
    return path


def not_utf8(path: str) -> str:
    """Return the sentence about a file that is not UTF-8 text, with the line. Blocks for reading."""
    where, what = path, "is not UTF-8 text"
    with opened(path) as file:
        for number, line in enumerate(file, 1):
            if number == 1 and line[:2] in UTF16_MARKS:
                what = "is UTF-16 text"
                break
            try:
                line.decode()
            except UnicodeDecodeError as error:
                where, what = f"{path}:{number}", f"{what} (byte {line[error.start]:#04x})"
                break
    return f"{where}: {what}: convert the file to UTF-8, such as with iconv -t UTF-8"
