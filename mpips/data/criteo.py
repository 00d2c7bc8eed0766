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

from mpips.data.csv_table import read_csv
from mpips.data.info import Part
from mpips.data.options import ReadOptions, Share

_LINE = re.compile(r"(?:[01]\t)?(?:-?\d*\t){13}(?:[0-9a-f]{8}|)(?:\t(?:[0-9a-f]{8}|)){25}")


def is_criteo(lines: Sequence[str]) -> bool:
    """Return True if lines of text are such samples; False if there are none."""
    return bool(lines) and all(map(_LINE.fullmatch, lines))


def criteo_options(options: ReadOptions) -> ReadOptions:
    """Return the options with which the functions of CSV read such a file."""
    return msgspec.structs.replace(options, format="criteo")


def read_criteo(path: str, options: ReadOptions, share: Share) -> Part:
    """Read a share of a file of Criteo's click logs; see `read_csv`."""
    return read_csv(path, criteo_options(options), share)
