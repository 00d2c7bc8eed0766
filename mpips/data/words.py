"""The word of a cell in a categorical column: the text that is hashed, whatever form the cell comes in.

One value comes as `7` in CSV, as `7.0` in a frame in which another cell is missing, as `7e+00` where NumPy
wrote the text, as `007` where zeros were put in front, as a number in JSON or Parquet. All of them are one
word:

- a whole number is the word of its value, without zeros in front, without a fraction, without an exponent;
- `true` and `false` are the words of a truth value in small and capital letters;
- an empty cell, and the texts that stand for a missing one (`MISSING`), are not words;
- any other text is the word itself, without white space around it: `3.1` and `3.10` are two words.

A checkpoint has the number of the rule with which its model was trained (`DataInfo.words`). Rule 0 is that of
early versions: each text that is not empty is a word. Rule 2 has the words of rule 1, and all tasks
standardise the numbers that are beside words; with earlier rules only `wide_deep`, `deepfm` and `dcnv2` do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

TEXTS, VALUES, SCALED = 0, 1, 2  # numbers of the rules

# Cells, in small letters, that stand for a missing one.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
# Texts of the missing values of pandas, which are longer or have other meanings in small letters.
PANDAS_MISSING = frozenset({"<NA>", "NaT"})
_TRUTH = {"true": 1.0, "false": 0.0}
# An exponent has a sign, as Python, NumPy and C write it: hexadecimal digits such as 12e3 are no number.
NUMBER = re.compile(r"([+-]?)([0-9]+)(?:\.([0-9]*))?(?:[eE]([+-][0-9]{1,3}))?")


def is_missing(cell: str) -> bool:
    """Return True if a cell stands for a missing number; white space around it is removed already."""
    return len(cell) <= 4 and cell.lower() in MISSING


def truth(cell: str) -> float:
    """Return 1 for the text of a true value, 0 for that of a false one, else nan."""
    return _TRUTH.get(cell.lower(), math.nan) if len(cell) <= 5 else math.nan


def word_of(text: str, rule: int = VALUES) -> str:
    """Return the word of a cell; "": it has none.

    Args:
        text: The cell.
        rule: Number of the rule.
    """
    text = text.strip()
    if rule == TEXTS or not text:
        return text
    if len(text) <= 5:
        lower = text.lower()
        if lower in MISSING or text in PANDAS_MISSING:
            return ""
        if lower in _TRUTH:
            return lower
    return whole(text)


def whole(text: str) -> str:
    """Return the digits of a text that is a whole number, such as 7 of 7.0 and 007; any other text itself."""
    # Most texts end with a letter.
    if text[-1:] not in "0123456789.":
        return text
    found = NUMBER.fullmatch(text)
    return _whole(text, *found.groups(default="")) if found is not None else text


def _whole(text: str, sign: str, digits: str, fraction: str, exponent: str) -> str:
    """Return the digits of a number if it is whole, else its text."""
    shift = int(exponent) if exponent else 0
    if shift > 0:
        fraction = fraction.ljust(shift, "0")
        digits, fraction = digits + fraction[:shift], fraction[shift:]
    elif shift < 0:
        digits = digits.rjust(1 - shift, "0")
        digits, fraction = digits[:shift], digits[shift:] + fraction
    if fraction.strip("0"):
        return text
    digits = digits.lstrip("0") or "0"
    return f"-{digits}" if sign == "-" and digits != "0" else digits


def text_of(value: Any) -> str:
    """Return a value of Python or NumPy as text, of which `word_of` makes a word; "" for a missing one.

    A float has the fewest digits that distinguish it from other numbers of its own precision.
    """
    if value is None:
        return ""
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else str(value)
    return str(value)


def texts_of(values: Iterable[Any]) -> list[str]:
    """Return values as text; see `text_of`."""
    return [text_of(value) for value in values]
