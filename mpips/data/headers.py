"""First lines that name columns, or do not: in tables, triples of a graph, pairs of user and item."""

from __future__ import annotations

import contextlib
import csv
import io
import math
from collections.abc import Sequence

from mpips.data.columns import LABEL_NAMES
from mpips.data.compressed import beginning
from mpips.data.csv_dialect import SAMPLE_CHARACTERS, find_delimiter, number
from mpips.data.words import is_missing

LOOKED_AT = 100  # lines of a file that are compared with the first one
_LEAST = 3  # lines with numbers below a name


def plain(name: str) -> str:
    """Return a name in small letters, without what is neither letter nor digit: userid for User_ID."""
    return "".join(c for c in name.lower() if c.isalnum())


def stands_above_numbers(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Return True if the first line has no number, and a column below it has nothing else.

    Args:
        first: Cells of the first line.
        others: Cells of some lines below it; an empty cell counts for nothing.
    """
    if any(not math.isnan(number(cell)) for cell in first):
        return False
    for place in range(len(first)):
        cells = [line[place] for line in others if place < len(line) and line[place]]
        if len(cells) >= _LEAST and all(not math.isnan(number(cell)) for cell in cells):
            return True
    return False


def is_sample(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Return True if the first line of a table is a sample like those below it, not the columns' names.

    Args:
        first: Cells of the first line.
        others: Cells of some lines below it, of the same number.
    """
    if not first:
        return False
    values = list(map(number, first))
    if not any(map(math.isnan, values)):
        return True
    n_text = n_again = 0
    for place, cell in enumerate(first):
        below = {line[place] for line in others if not is_missing(line[place])}
        if cell.lower() in LABEL_NAMES and cell not in below:
            return False
        if not below:
            continue
        are_numbers = all(not math.isnan(number(text)) for text in below)
        if are_numbers and math.isnan(values[place]) and not is_missing(cell):
            return False
        if not are_numbers:
            n_text += 1
            n_again += cell in below
    # Years are names of columns, fractions are not; and a name hardly occurs below itself.
    has_fraction = any(not value.is_integer() for value in values if not math.isnan(value))
    return has_fraction or (n_again > 0 and 2 * n_again >= n_text)


def lacks_header(path: str) -> bool:
    """Return True if the first line of a CSV file is a sample. Blocks for reading its beginning.

    Raises:
        OSError: The file cannot be read.
    """
    text = beginning(path, SAMPLE_CHARACTERS).decode("utf-8-sig", "replace")
    lines = io.StringIO(text, newline="")
    rows: list[list[str]] = []
    with contextlib.suppress(csv.Error):
        for row in csv.reader(lines, delimiter=find_delimiter(lines)):
            rows.append([cell.strip() for cell in row])
    if len(text) >= SAMPLE_CHARACTERS:
        # The last line may be cut off.
        rows = rows[:-1]
    first = rows[0] if rows else []
    return is_sample(first, [row for row in rows[1:] if len(row) == len(first)])
