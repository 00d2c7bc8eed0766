"""Find out how a CSV file is written from its beginning: the delimiter, and which columns contain text."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from typing import TextIO

from mpips.data.missing import Missing

DELIMITERS = (",", ";", "\t", "|")
SAMPLE_CHARACTERS = 1 << 16  # beginning of a file from which the delimiter is found
SAMPLE_ROWS = 1000  # rows in which columns of text are found
NONE_MISSING = Missing()  # none but the usual ones
_WIDTH_ROWS = 50  # rows whose numbers of cells are compared


def number(cell: str) -> float:
    """Return the number in a cell; nan for text, nan and infinity.

    2021_05 and digits of other scripts, which Python reads as numbers, are text.
    """
    try:
        value = float(cell) if cell.isascii() and "_" not in cell else math.nan
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def find_delimiter(file: TextIO) -> str:
    """Return the delimiter of a file, and go back to its beginning.

    It is the one that divides the first lines into the same number of cells, two or more; of several the one
    with the most cells. Without such a one, it is the one with the most cells in the first line.
    """
    sample = file.read(SAMPLE_CHARACTERS)
    file.seek(0)
    widths = {d: _widths(sample, d) for d in DELIMITERS}
    regular = [d for d in DELIMITERS if widths[d] and len(set(widths[d])) == 1 and widths[d][0] > 1]
    # max returns the first of equal ones, so a comma precedes.
    return max(regular or DELIMITERS, key=lambda d: widths[d][0] if widths[d] else 0)


def _widths(sample: str, delimiter: str) -> list[int]:
    """Return the numbers of cells of the first rows, without the last one, which may be cut off."""
    rows = csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter)
    found: list[int] = []
    try:
        found.extend(len(row) for row in itertools.islice(rows, _WIDTH_ROWS) if row)
    except csv.Error:
        return found
    return found[:-1] if len(sample) == SAMPLE_CHARACTERS else found


def is_text(cell: str) -> bool:
    """Return True for a cell that is not empty and not a number in any notation of Python."""
    # Numbers begin with a digit, a sign, a point, "inf" or "nan".
    if cell[:1].isalpha() and cell[0] not in "iInN":
        return True
    try:
        float(cell)
    except ValueError:
        return bool(cell)
    return False


def text_columns(
    rows: Iterable[Sequence[str]], width: int, missing: Missing = NONE_MISSING
) -> list[int]:
    """Return the places of the columns that contain only text, apart from missing cells.

    A column with numbers and text is not among them: the text is rather a mistake.

    Args:
        rows: The first rows behind the header; those of another width are left out.
        width: Number of columns.
        missing: Texts that mean an empty cell.
    """
    first = [row for row in itertools.islice(rows, SAMPLE_ROWS) if len(row) == width]
    return [
        i
        for i, cells in enumerate(zip(*first, strict=True))
        if is_text_column([set(cells)], missing)
    ]


def is_text_column(groups: Iterable[Collection[str]], missing: Missing = NONE_MISSING) -> bool:
    """Return True if the cells of a column contain text, and no number.

    Args:
        groups: Its distinct cells; no more groups are taken than needed.
        missing: Texts that mean an empty cell.
    """
    found = False
    for cells in groups:
        # Mostly the first letters tell: see `is_text`.
        firsts = {cell[:1] for cell in cells}
        if all(first.isalpha() and first not in "iInN" for first in firsts):
            found = found or bool(firsts)
            continue
        for raw in cells:
            cell = raw.strip()
            if not missing.has(cell):
                if not is_text(cell):
                    return False
                found = True
    return found
