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
import os
from collections.abc import Iterator

import numpy as np

from mpips.data.cells import SampleBuilder
from mpips.data.columns import Float64, logarithms_of, part_of
from mpips.data.compressed import opened
from mpips.data.csv_labels import CsvLabels, LineUnknown
from mpips.data.csv_plan import CsvPlan, Text
from mpips.data.csv_quick import QuickReader
from mpips.data.csv_rows import CsvRows, PlainRows
from mpips.data.info import Part
from mpips.data.options import ReadOptions, Share
from mpips.errors import DataError

_PIECE = 1 << 19  # bytes of text that are converted at once


def read_csv(path: str, options: ReadOptions, share: Share) -> Part:
    """Read a share of a CSV file whose first line names the columns.

    Raises:
        DataError: A column is unknown, or a cell that must be a number is empty or none; names file, line,
            column and cell.
        OSError: The file cannot be opened.
    """
    with opened(path) as file, csv_errors(path):
        plan = CsvPlan.of(path, file, options)
        quick, labels = QuickReader(plan), CsvLabels(plan)
        builder, size = builder_of(plan), os.path.getsize(path)
        own_labels: list[Float64] = []
        n_samples, line = 0, plan.n_header_lines
        for text in plan.texts(file, _PIECE):
            rows, places = read_records(plan, text, line, labels, quick)
            own = share.own(n_samples, rows.n)
            own_labels.append(places if own is None else places[own])
            if not n_samples:
                # The other records are about as long as the first ones.
                builder.expect(len(own_labels[0]) * (size + size // 50) // len(text))
            builder.add(rows.cells(), rows.n, own)
            n_samples += rows.n
            line += rows.n_lines
        if not n_samples:
            raise DataError(f"{path}: contains no samples")
        names = labels.names()
        numbers = labels.values(np.concatenate(own_labels), names)
        data = builder.samples(numbers)
        return part_of(path, data, n_samples, options, plan.columns, names)


def builder_of(plan: CsvPlan) -> SampleBuilder:
    """Return a builder of the samples of a file."""
    logarithms = logarithms_of(plan.columns.features, plan.options, plan.is_hashed)
    return SampleBuilder(plan.is_hashed, logarithms)


def read_records(
    plan: CsvPlan, text: Text, line: int, labels: CsvLabels, quick: QuickReader
) -> tuple[CsvRows, Float64]:
    """Divide text into records and add their labels; return both.

    Args:
        plan: Meaning of the file.
        text: Whole records.
        line: Lines of the file before the text.
        labels: The labels of the records before.
        quick: The native parser of the file, which is tried first.

    Raises:
        DataError, UnicodeDecodeError, csv.Error: The text is wrong.
    """
    rows = quick.rows(text)
    if rows is not None:
        with contextlib.suppress(LineUnknown):
            return rows, labels.add(rows)
    plain = PlainRows(plan, text, line)
    return plain, labels.add(plain)


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
