"""First lines that name columns, in text that mostly has none: triples of a graph, pairs of user and item."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mpips.data.csv_dialect import number

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
