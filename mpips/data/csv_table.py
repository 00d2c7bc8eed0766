"""Reader of CSV with a header: a dense matrix of numbers, or hashed keys if there are categorical columns.

The delimiter is found from the first lines, and so are columns of text, which are categorical
(`csv_dialect.py`). Labels are numbers, or all of them are text: then the classes are the texts, sorted. Every
worker reads the labels of all lines, so that all number the classes alike.

A hashed sample is a list of (key, value). For a categorical cell the key is the hash of column name and cell
text, and the value is 1. For a numeric cell the key is the hash of the column name, and the value is the
number. Empty cells have no entry. Keys are uniform in 0..2**62-1, so that no collision is to be expected
below a billion distinct keys. They are equal on all machines.

The text is read in pieces of whole records: by pyarrow if it is installed and the file is not small
(`csv_arrow.py`), else by Python's csv module (`csv_rows.py`), with the same result.
"""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data.columns import Cells, Float64, join_cells, part_of
from mpips.data.compressed import opened
from mpips.data.csv_arrow import ArrowRows, has_arrow
from mpips.data.csv_labels import CsvLabels, LineUnknown
from mpips.data.csv_plan import CsvPlan, count_lines
from mpips.data.csv_rows import CsvRows, PlainRows
from mpips.data.info import Part
from mpips.data.options import ReadOptions, Share
from mpips.errors import DataError

Int64: TypeAlias = npt.NDArray[np.int64]

_PIECE = 4 << 20  # bytes of text that are converted at once
ARROW_FROM = 1 << 20  # bytes of a file from which on loading pyarrow pays


def read_csv(path: str, options: ReadOptions, share: Share) -> Part:
    """Read a share of a CSV file whose first line names the columns.

    Raises:
        DataError: A column is unknown, or a cell that must be a number is empty or none; names file, line,
            column and cell.
        OSError: The file cannot be opened.
    """
    with opened(path) as file, csv_errors(path):
        plan = CsvPlan.of(path, file, options)
        fast = uses_arrow(path)
        labels = CsvLabels(plan)
        blocks: list[list[Cells]] = []
        own_labels: list[Float64] = []
        n_samples, line = 0, plan.n_header_lines
        for text in plan.texts(file, _PIECE):
            rows, places = read_records(plan, text, line, labels, fast)
            own = share.numbers(n_samples, n_samples + rows.n) - n_samples
            blocks.append(cells_of(plan, rows, own, text, line))
            own_labels.append(places[own])
            n_samples += rows.n
            line += count_lines(text)
        if not n_samples:
            raise DataError(f"{path}: contains no samples")
        names = labels.names()
        numbers = labels.values(np.concatenate(own_labels), names)
        data = join_cells(blocks, numbers, plan.is_hashed)
        return part_of(path, data, n_samples, options, plan.columns, names)


def uses_arrow(path: str) -> bool:
    """Return True if a file is to be read with pyarrow."""
    return os.path.getsize(path) >= ARROW_FROM and has_arrow()


def read_records(
    plan: CsvPlan, text: bytes, line: int, labels: CsvLabels, fast: bool
) -> tuple[CsvRows, Float64]:
    """Divide text into records and add their labels; return both.

    Args:
        plan: Meaning of the file.
        text: Whole records.
        line: Lines of the file before the text.
        labels: The labels of the records before.
        fast: Try pyarrow first.

    Raises:
        DataError, UnicodeDecodeError, csv.Error: The text is wrong.
    """
    quick = ArrowRows.of(plan, text) if fast else None
    if quick is not None:
        with contextlib.suppress(LineUnknown):
            return quick, labels.add(quick)
    rows = PlainRows(plan, text, line)
    return rows, labels.add(rows)


def cells_of(
    plan: CsvPlan, rows: CsvRows, own: Int64 | None, text: bytes, line: int
) -> list[Cells]:
    """Return the cells of some of the records that `read_records` returned.

    Args:
        plan: Meaning of the file.
        rows: The records.
        own: Places of the records whose cells are returned; None: all.
        text: Their text.
        line: Lines of the file before the text.

    Raises:
        DataError: A cell that must be a number is empty or none.
    """
    found = rows.cells(own)
    return PlainRows(plan, text, line).cells(own) if found is None else found


@contextlib.contextmanager
def csv_errors(path: str) -> Iterator[None]:
    """Turn errors of decoding and of the csv module into a DataError that names the file."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text: {error}; convert it to UTF-8") from error
    except csv.Error as error:
        raise DataError(
            f"{path}: is not CSV: {error}; look for a quote that is not closed"
        ) from error
