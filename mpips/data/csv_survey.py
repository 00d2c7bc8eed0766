"""The distinct texts of all columns of a CSV file, from which options of the readers can be chosen.

A file is surveyed by `mpips init`, and where a cell cannot be read, so that the error names all columns
that need an option, not the first one alone. A survey holds the texts of one piece of the file at a time.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from mpips._native import CsvParser
from mpips.data.compressed import compression_of, opened
from mpips.data.csv_plan import CsvPlan
from mpips.data.options import ReadOptions

_PIECE = 8 << 20  # bytes of text whose cells are in memory


class SurveyedColumn(msgspec.Struct, frozen=True):
    """A column of a piece of a file.

    Attributes:
        name: Its name.
        counts: Number of cells with each text, without white space around it.
        counts_rows: Its cells are whole numbers, each by one greater than the one above it.
    """

    name: str
    counts: dict[str, int]
    counts_rows: bool


class Survey(msgspec.Struct, frozen=True):
    """A piece of a file.

    Attributes:
        n_rows: Number of records.
        columns: All columns, in the order of the file.
    """

    n_rows: int
    columns: tuple[SurveyedColumn, ...]

    def column(self, name: str) -> SurveyedColumn:
        """Return a column by its name."""
        return next(own for own in self.columns if own.name == name)


def surveys(path: str, options: ReadOptions, n_bytes: int = _PIECE) -> Iterator[Survey]:
    """Yield the pieces of a file, one after the other. Blocks for reading them.

    Records with too many cells, or too few, are left out.

    Args:
        path: A CSV file.
        options: Options of the reader; the format, and whether there is a header.
        n_bytes: Bytes of text of a piece.

    Raises:
        DataError: The header is missing.
        OSError: The file cannot be read.
    """
    asked = ReadOptions(
        format=options.format,
        header=options.header,
        labelled=False,
        finds_text=False,
        on_bad="skip",
    )
    if not compression_of(path):
        # A buffer need not be larger than the file.
        n_bytes = min(n_bytes, os.path.getsize(path) + 1)
    with opened(path) as file:
        plan = CsvPlan.of(path, file, asked)
        for text in plan.texts(file, n_bytes):
            yield _surveyed(plan, bytes(text))


def _surveyed(plan: CsvPlan, text: bytes) -> Survey:
    """Return the survey of whole records."""
    width = len(plan.header)
    parser = CsvParser("t" * width, plan.delimiter)
    found = parser.parse(text)
    try:
        if found is not None:
            n, _, _, codes = found
            own = [
                _column(name, parser.words(i, 0), np.asarray(codes[i]).tolist())
                for i, name in enumerate(plan.header)
            ]
            return Survey(n, tuple(own))
    except UnicodeDecodeError:
        pass
    lines = io.StringIO(text.decode("utf-8", "replace"), newline="")
    rows = []
    # The readers name the line of an error.
    with contextlib.suppress(csv.Error):
        for row in csv.reader(lines, delimiter=plan.delimiter):
            if len(row) == width:
                rows.append(row)
    columns = list(zip(*rows, strict=True)) or [()] * width
    named = zip(plan.header, columns, strict=True)
    return Survey(
        len(rows), tuple(_column(name, cells, range(len(cells))) for name, cells in named)
    )


def _column(name: str, texts: Sequence[str], codes: Sequence[int]) -> SurveyedColumn:
    """Return a column; the text of cell i is `texts[codes[i]]`."""
    stripped = [text.strip() for text in texts]
    counts: dict[str, int] = {}
    cells = np.bincount(np.asarray(codes, np.int64), minlength=len(texts)).tolist()
    for text, n in zip(stripped, cells, strict=True):
        counts[text] = counts.get(text, 0) + n
    return SurveyedColumn(name, counts, _counts_rows(stripped, codes, len(counts)))


def _counts_rows(texts: Sequence[str], codes: Sequence[int], n_distinct: int) -> bool:
    """Return True if each cell is by one greater than the one before."""
    if n_distinct < len(codes) or not codes:
        return False
    first = texts[codes[0]]
    if not (first.isascii() and first.isdigit()):
        return False
    begin = int(first)
    return all(texts[code] == str(begin + i) for i, code in enumerate(codes))
