"""Criteo's click logs: lines of 40 cells with tabs between them and no header.

The cells are the label, 0 or 1, thirteen whole numbers and twenty-six categories of eight hexadecimal digits;
an empty cell is a missing one. Files of samples to be predicted lack the label. The columns are called label,
I1 to I13 and C1 to C26, as they are in the literature. Everything else is that of CSV (`csv_plan.py`).

Source: Criteo Labs, "Display Advertising Challenge" (2014) and "Terabyte Click Logs" (2013).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from mpips.data.bad_lines import BadLines
from mpips.data.csv_table import CsvSource
from mpips.data.options import ReadOptions
from mpips.data.sources import SIZE, BlockSize

_LINE = re.compile(r"(?:[01]\t)?(?:-?\d*\t){13}(?:[0-9a-f]{8}|)(?:\t(?:[0-9a-f]{8}|)){25}")


def is_criteo(lines: Sequence[str]) -> bool:
    """Return True if all lines of a text are such samples; False for a text without lines."""
    return bool(lines) and all(map(_LINE.fullmatch, lines))


def criteo_source(
    path: str, options: ReadOptions, size: BlockSize = SIZE, bad: BadLines | None = None
) -> CsvSource:
    """Return the source of such a file."""
    return CsvSource(path, msgspec.structs.replace(options, format="criteo"), size, bad)
