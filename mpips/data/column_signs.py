"""Signs in the first rows of training data that columns are probably not features as they are.

- A column without a name that has a different whole number in each row is the index that pandas writes. It is
  left out, with a note: files are often sorted, and then the number of a row predicts its label.
- A column with a different value in each row, whole numbers or text, is named as an identifier.
- A column of text whose cells are numbers or dates in a notation that is not read as such is named, since its
  cells are words.
- In data with columns of text, numbers with leading zeros and whole numbers with more digits than float32 has
  are named, since they are probably codes. So are words that differ in upper and lower case only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec
import numpy as np

from mpips.data.columns import Column, as_text, exactly, toml_table
from mpips.data.conversions import find_notation
from mpips.data.options import ReadOptions
from mpips.data.words import is_missing, word_of

_UNNAMED = re.compile(r"(Unnamed: [0-9]+|__index_level_[0-9]+__)?")
_WHOLE = re.compile(r"[+-]?[0-9]+(?:\.0*)?")
_LEADING_ZERO = re.compile(r"0[0-9]+")
_LEAST_ROWS = 100  # in which all values of an identifier differ
_SHARE = 0.9  # of the cells of a column that have one notation

_PLAIN = r"[+-]?[0-9]+(?:[.,][0-9]+)*"
_MONEY = r"[$€£¥₹]|USD|EUR|GBP|CHF|JPY"
# Notations of cells, each with what it is and what to do about it.
_NOTATIONS = (
    (
        re.compile(
            r"[+-]?[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+(?:\.[0-9]+)?|(?:\.[0-9]{3}){2,}"
            r"|(?:[ '\u00a0\u202f][0-9]{3})+(?:[.,][0-9]+)?)"
        ),
        "numbers with separators of thousands",
    ),
    (
        re.compile(r"[+-]?[0-9]*,[0-9]+(?:[eE][+-]?[0-9]+)?|[+-]?[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]+"),
        "decimal commas",
    ),
    (re.compile(rf"{_PLAIN}\s*%"), "percentages"),
    (
        re.compile(rf"[+-]?\s*(?:{_MONEY})\s*{_PLAIN}|{_PLAIN}\s*(?:{_MONEY})"),
        "amounts of money",
    ),
    (
        re.compile(
            r"(?:[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}|[0-9]{1,2}[-/.][0-9]{1,2}[-/.](?:[0-9]{4}|[0-9]{2}))"
            r"(?:[ T][0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?\s*(?:Z|UTC|[+-][0-9]{2}:?[0-9]{2})?)?"
        ),
        "dates",
    ),
)


class Sample(msgspec.Struct, frozen=True):
    """The cells of a column in the first rows, as text without white space around them.

    Attributes:
        name: Name of the column.
        cells: The cells.
        is_text: It is a column of text.
    """

    name: str
    cells: Sequence[str]
    is_text: bool

    @property
    def is_distinct(self) -> bool:
        """True if each row has another value, and they are whole numbers or text."""
        if len(set(self.cells)) < len(self.cells) or any(map(is_missing, self.cells)):
            return False
        return self.is_text or all(map(_WHOLE.fullmatch, self.cells))

    @property
    def is_index(self) -> bool:
        """True for a column without a name with a different whole number in each row."""
        return (
            _UNNAMED.fullmatch(self.name) is not None
            and not self.is_text
            and len(self.cells) > 1
            and self.is_distinct
        )


def without_indices(
    path: str, samples: Sequence[Sample], options: ReadOptions
) -> tuple[ReadOptions, tuple[str, ...]]:
    """Return the options with row numbers left out, and sentences on them.

    Args:
        path: The file, for messages.
        samples: The columns of training data.
        options: Options of the reader.
    """
    asked = (options.label, *options.as_is, *options.categorical)
    found = [own.name for own in samples if own.is_index and own.name not in asked]
    found = [name for name in found if not any(fnmatchcase(name, p) for p in options.ignore)]
    if not found:
        return options, ()
    ignore = (*options.ignore, *map(exactly, found))
    notes = tuple(
        f"{path}: {f'column {name!r}' if name else 'the column without a name'} has the numbers of the rows, "
        "as pandas writes them: left out (a feature needs a name of its own)"
        for name in found
    )
    return msgspec.structs.replace(options, ignore=ignore), notes


def is_asked(name: str, patterns: Sequence[str]) -> bool:
    """Return True if one of the patterns of an option names a column."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def notes_on(
    path: str, samples: Sequence[Sample], features: Sequence[Column], options: ReadOptions
) -> tuple[str, ...]:
    """Return sentences on columns that look like identifiers, codes, or numbers or dates in other notations.

    Args:
        path: The file, for messages.
        samples: The columns.
        features: The columns that are features.
        options: Options of the reader.
    """
    notes = []
    used = {column.name: column for column in features if not column.convert}
    is_hashed = any(column.categorical for column in features)
    numbers = [own for own in samples if own.name in used and not used[own.name].categorical]
    codes = {own.name: _code_of(own.cells) for own in numbers} if is_hashed else {}
    coded = [name for name, sign in codes.items() if sign]
    notations: list[str] = []
    convert: dict[str, str] = {}
    for own in samples:
        if own.name not in used:
            continue
        ignore = f'data.ignore = ["{own.name}"]'
        is_text = used[own.name].categorical
        if sign := codes.get(own.name, ""):
            notes.append(
                f"{path}: column '{own.name}' {sign}: to read it as words, set "
                f"{as_text(features, coded)}; or leave it out: {ignore}"
            )
        if is_text and (pair := _other_case(own.cells)):
            notes.append(
                f"{path}: column '{own.name}' has words that differ in upper and lower case only "
                f"('{pair[0]}', '{pair[1]}'), and are different words here: write them alike if they mean "
                "the same"
            )
        # A column that the job names as categorical needs no note on the notation of its cells.
        asked = is_asked(own.name, options.categorical)
        notation = _notation_of(own.cells) if is_text and not asked else None
        if notation is not None:
            what, example = notation
            notations.append(f"column '{own.name}' has {what} ('{example}')")
            found = find_notation([cell for cell in set(own.cells) if not is_missing(cell)])
            if found:
                convert[own.name] = found
        if len(own.cells) >= _LEAST_ROWS and own.is_distinct:
            notes.append(
                f"{path}: column '{own.name}' has another value in each of the first {len(own.cells):,} rows,"
                f" like an identifier: leave it out ({ignore}) unless it says something about other samples"
            )
    if notations:
        # One option has the notations of all columns.
        known = {**dict(options.convert), **convert}
        way = f"set data.convert = {toml_table(known)}" if convert else "write plain numbers"
        notes.append(
            f"{path}: {', '.join(notations)}, which are words here, not numbers: {way}, or leave them out "
            "(data.ignore)"
        )
    return tuple(notes)


def _code_of(cells: Sequence[str]) -> str:
    """Return why cells of a column of numbers are probably codes; "": they are not."""
    there = [cell for cell in cells if not is_missing(cell)]
    if not there or not all(map(_WHOLE.fullmatch, there)):
        return ""
    zeros = next((cell for cell in there if _LEADING_ZERO.fullmatch(cell)), None)
    if zeros is not None:
        return f"has numbers with leading zeros ('{zeros}'), which are read without these"
    values = {float(cell) for cell in there}
    n_values = len({np.float32(value) for value in values})
    if n_values < len(values):
        return (
            f"has whole numbers with more digits than float32 has ('{there[0]}'), so that {len(values)} "
            f"values of the first {len(cells):,} rows are {n_values} here"
        )
    return ""


def _other_case(cells: Sequence[str]) -> tuple[str, str] | None:
    """Return two words that differ in upper and lower case only; None if no two words do."""
    first: dict[str, str] = {}
    for cell in cells:
        if is_missing(cell) or word_of(cell) != cell:
            continue
        other = first.setdefault(cell.casefold(), cell)
        if other != cell:
            return other, cell
    return None


def _notation_of(cells: Sequence[str]) -> tuple[str, str] | None:
    """Return what most cells are, and an example; None: words."""
    there = [cell for cell in cells if not is_missing(cell)]
    for pattern, what in _NOTATIONS:
        found = [cell for cell in there if pattern.fullmatch(cell)]
        if found and len(found) >= _SHARE * len(there):
            return what, found[0]
    # A column can have both of the first two.
    numbers = [cell for cell in there if any(p.fullmatch(cell) for p, _ in _NOTATIONS[:2])]
    if numbers and len(numbers) >= _SHARE * len(there):
        return "numbers with commas", numbers[0]
    return None
