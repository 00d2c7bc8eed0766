"""Find the options with which the columns of CSV can be read: notations, words, columns to be left out.

The rules, from the texts of a column (`csv_survey.py`):

- numbers, and texts that usually mean a missing value (`mpips.data.missing.USUAL`): numbers;
- all texts in one notation of `mpips.data.conversions`: that notation;
- both but for few cells: these are missing values;
- numbers and other words, or codes such as 00123 and whole numbers beyond float32: words;
- no value, one value, the numbers of the rows, or nearly another text in each row: left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import msgspec
import numpy as np

from mpips.data.columns import (
    FOUND,
    as_json,
    exactly,
    notation_of,
    toml_table,
)
from mpips.data.conversions import (
    CANDIDATES,
    DATES,
    find_notation,
    has_time,
    nearly_in,
    reads,
)
from mpips.data.csv_dialect import number
from mpips.data.csv_survey import Survey, SurveyedColumn
from mpips.data.missing import USUAL, Missing
from mpips.data.options import Conversion, ReadOptions
from mpips.data.words import is_missing, truth, whole

LEAST_ROWS = 100  # from which on nearly distinct texts are an identifier
_LEAST_COUNTED = 20  # rows from which on a column is their number, not a feature
_WHOLE = re.compile(r"[+-]?[0-9]+(?:\.0*)?")
_UNNAMED = re.compile(r"(Unnamed: [0-9]+|__index_level_[0-9]+__)?")
_ID_NAME = re.compile(
    r"(?:.*[_ .-])?(?i:id|uid|uuid|guid|key|index|idx|nr|no|number|row)|.*[a-z](?:Id|ID)"
)
_KEY_NAME = re.compile(r"(?:.*[_ .-])?(?i:id|uid|uuid|guid)|.*[a-z](?:Id|ID)")
_TIME_NAME = re.compile(
    r"(?i).*(?:time|date|epoch|created|updated|modified).*|(?:.*[_ .-])?(?:ts|at|when)(?:[_ .-].*)?"
)
_TOLD_APART = 0.9  # share of whole numbers that float32 tells apart in columns of numbers
# Seconds from 1990 to 2100; milliseconds are 1000 times as many.
_SECONDS = (631152000.0, 4102444800.0)
_WITH_UNIT = re.compile(r"[-+]?[0-9]+(?:[.,][0-9]+)*\s*([^\W\d_]+(?:[/^]?[^\W_]+)?)")
_MONTH = re.compile(
    r"(?i)(?=.*[0-9])\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|sept|oct|nov|dec)(?:[a-z]{2,6})?\b.*[0-9]{2}"
)
_LOOKED_AT = 1000  # texts of a column of words whose form is compared
_SHOWN = 5  # texts that a sentence shows
# Other texts in a column of many numbers or dates are rather mistakes if they and their cells are few.
_MOST_ODD = 5
_ODD_SHARE = 0.02
_LEAST_TEXTS = 20


class Need(msgspec.Struct, frozen=True):
    """The need of a column.

    Attributes:
        kind: "numbers", "words", "notation" or "nothing": it is left out.
        notation: The notation.
        missing: Texts in it that mean an empty cell, beside the usual ones.
        odd: Those of them that do not usually mean it.
        why: Reason, for people; "": it goes without saying.
        has_empty: Cells are empty, or mean it.
    """

    kind: Literal["numbers", "words", "notation", "nothing"]
    notation: Conversion | Literal[""] = ""
    missing: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()
    why: str = ""
    has_empty: bool = False


def need_of(own: SurveyedColumn) -> Need:
    """Return what a feature column needs."""
    there = {text: n for text, n in own.counts.items() if not is_missing(text)}
    if not there:
        return Need("nothing", why="has no values")
    has_empty = len(there) < len(own.counts)
    if len(there) == 1 and not has_empty and sum(there.values()) > 1:
        return Need("nothing", why=f"has one value in all rows, {_shown(there)}")
    odd = [text for text in there if not _is_number(text)]
    plain = len(there) - len(odd)
    # true and false among numbers are 1 and 0; alone they are words.
    truths = [text for text in odd if not math.isnan(truth(text))]
    usual = [text for text in odd if text.lower() in USUAL]
    if plain and len(truths) + len(usual) == len(odd):
        need = _of_numbers(own, {t: n for t, n in there.items() if t not in usual}, has_empty)
        return msgspec.structs.replace(
            need, missing=tuple(usual), has_empty=has_empty or bool(usual)
        )
    rest = [text for text in there if text not in usual]
    notation = find_notation(rest) if rest else ""
    if notation:
        return Need(
            "notation",
            notation,
            tuple(usual),
            why=f"such as {next((text for text in rest if not _is_number(text)), rest[0])}",
            has_empty=has_empty or bool(usual),
        )
    return _but_for_few(own, there, usual) or _of_words(there, odd, plain)


def _but_for_few(
    own: SurveyedColumn, there: Mapping[str, int], usual: Sequence[str]
) -> Need | None:
    """Return what a column needs whose cells are numbers, or have one notation, but for few; None: others."""
    n = sum(there.values())
    rest = [text for text in there if text not in usual]
    if n < LEAST_ROWS or len(rest) <= _LEAST_TEXTS:
        return None
    odd: list[str] = []
    for text in rest:
        if not _is_number(text):
            odd.append(text)
            if len(odd) > _MOST_ODD:
                break
    ways: list[tuple[str, list[str] | None]] = [("", odd if len(odd) <= _MOST_ODD else None)]
    ways += [(name, nearly_in(name, rest, _MOST_ODD)) for name in CANDIDATES]
    for name, found in ways:
        if not found or sum(there[text] for text in found) > _ODD_SHARE * n:
            continue
        good = {text: there[text] for text in rest if text not in found}
        need = need_of(SurveyedColumn(own.name, good, False))
        if need.kind == ("notation" if name else "numbers"):
            missing = (*usual, *found)
            return msgspec.structs.replace(need, missing=missing, odd=tuple(found), has_empty=True)
    return None


def _of_numbers(own: SurveyedColumn, there: Mapping[str, int], has_empty: bool) -> Need:
    """Return what a column of plain numbers needs."""
    plain = Need("numbers", has_empty=has_empty)
    n = sum(there.values())
    if _UNNAMED.fullmatch(own.name):
        # The readers leave the row numbers of pandas out.
        return plain
    if own.counts_rows and n >= _LEAST_COUNTED:
        return Need("nothing", why="counts the rows")
    if not all(map(_WHOLE.fullmatch, there)):
        return plain
    values = [float(text) for text in there]
    if _TIME_NAME.fullmatch(own.name):
        for name, unit in (("epoch_s", 1.0), ("epoch_ms", 1000.0)):
            if _SECONDS[0] * unit <= min(values) and max(values) <= _SECONDS[1] * unit:
                return Need(
                    "notation",
                    "epoch_s" if name == "epoch_s" else "epoch_ms",
                    why=f"such as {next(iter(there))}",
                    has_empty=has_empty,
                )
    code = _code_of(there, values)
    if not code and len(there) < n and _KEY_NAME.fullmatch(own.name):
        code = "whole numbers that its name calls identifiers"
    is_id = n >= LEAST_ROWS and (
        2 * len(there) > n if code else len(there) == n and _ID_NAME.fullmatch(own.name)
    )
    if is_id:
        return Need("nothing", why=_identifier(len(there), n))
    return Need("words", why=code) if code else plain


def _code_of(there: Mapping[str, int], values: Sequence[float]) -> str:
    """Return why whole numbers are codes; "": they are numbers."""
    if len(set(map(len, there))) == 1:
        zeros = next((text for text in there if text[0] == "0" and len(text) > 1), "")
        if zeros:
            return f"codes with zeros in front, such as {zeros}"
    words = {whole(text) for text in there}
    if len({np.float32(value) for value in values}) < _TOLD_APART * len(words):
        return f"whole numbers that a feature cannot tell apart, such as {next(iter(there))}"
    return ""


def _of_words(there: Mapping[str, int], odd: Sequence[str], plain: int) -> Need:
    """Return what a column with words needs."""
    n = sum(there.values())
    if n >= LEAST_ROWS and 2 * len(there) > n:
        why = _identifier(len(there), n)
        return Need("nothing", why=f"{why}{_both_orders(list(there)) or _unreadable(list(there))}")
    if plain:
        few = f"; to read numbers, data.missing = {as_json(odd)}" if len(odd) <= _SHOWN else ""
        return Need("words", why=f"numbers and words, such as {_shown(odd)}{few}")
    both = _both_orders(list(there)) or _unreadable(list(there))
    if both:
        return Need("words", why=both.lstrip("; "))
    for divider in "|;":
        lists = [text for text in there if divider in text]
        if lists:
            return Need("words", why=f"lists such as {lists[0]}: each list is one word")
    return Need("words")


def _both_orders(texts: Sequence[str]) -> str:
    """Return a sentence on dates whose day and month are ambiguous; "": no such texts."""
    if not all(map(reads("date_dmy"), texts)) or not all(map(reads("date_mdy"), texts)):
        return ""
    pair = ("time_dmy", "time_mdy") if any(map(has_time, texts)) else ("date_dmy", "date_mdy")
    return (
        f"; dates such as {texts[0]}, in which day and month look alike: name {pair[0]} or {pair[1]} in "
        "[data.convert]"
    )


def _unreadable(texts: Sequence[str]) -> str:
    """Return a sentence on dates and numbers that no notation reads; "": no such texts."""
    some = texts[:_LOOKED_AT]
    if all(any(reads(name)(text) for name in DATES) for text in some):
        return f"; dates in several notations, such as {texts[0]}: write all of them alike"
    if all(map(_MONTH.search, some)):
        return f"; dates with names of months, such as {texts[0]}: write them as 2026-12-31"
    units = {found[1] if (found := _WITH_UNIT.fullmatch(text)) else "" for text in some}
    if len(units) == 1 and "" not in units:
        return f"; numbers with a unit, such as {texts[0]}: write the numbers alone"
    return ""


def _identifier(n_distinct: int, n: int) -> str:
    return f"has {n_distinct:,} values in {n:,} cells, like an identifier"


def _is_number(text: str) -> bool:
    """Return True for a number; one beyond float32 is refused by the readers, with its line."""
    return not math.isnan(number(text))


def _shown(texts: Sequence[str] | Mapping[str, int]) -> str:
    return ", ".join(f"'{text}'" for text in list(texts)[:_SHOWN])


def advice(pieces: Iterable[Survey], options: ReadOptions, label: str | None) -> str:
    """Return the options that let all columns of a file be read, ready for a job file; "": none are needed.

    Args:
        pieces: The file.
        options: The options with which it cannot be read.
        label: The label's column.
    """
    found, texts = Wanted(), list[str]()
    for survey in pieces:
        texts = texts or _text_columns(survey, options, label)
        found.add(survey, options, label)
    parts = []
    if found.missing:
        parts.append(f"data.missing = {as_json([*options.missing, *found.missing])}")
    if found.words:
        given = [pattern for pattern in options.categorical if pattern not in texts]
        more = [name for name in found.names if name in found.words or name in texts]
        parts.append(f"data.categorical = {as_json([*given, *map(exactly, more)])}")
    if found.notations:
        pairs = dict([*options.convert, *found.notations.items()])
        parts.append(f"data.convert = {toml_table(pairs)}")
    return ", ".join(parts)


class Wanted:
    """The needs of columns beyond the options with which they cannot be read.

    Attributes:
        names: All columns of the file.
        missing: Texts that mean an empty cell, in the order in which they come.
        words: Columns of words, and why.
        notations: Columns with a notation.
        odd: Texts of `missing` that do not usually mean it, and a column that has them.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.odd: dict[str, str] = {}
        self.names: tuple[str, ...] = ()
        self.missing: list[str] = []
        self.words: dict[str, str] = {}
        self.notations: dict[str, Conversion] = {}

    def add(self, survey: Survey, options: ReadOptions, label: str | None) -> None:
        """Add what the columns of a piece of the file need."""
        self.names = tuple(own.name for own in survey.columns)
        for own in survey.columns:
            left = own.name == label or any(fnmatchcase(own.name, p) for p in options.ignore)
            odd = [] if left or own.name in self.words else _unread(own, options)
            usual = [text for text in odd if text.lower() in USUAL]
            if len(usual) < len(odd):
                need, given = need_of(own), notation_of(own.name, options)
                if need.kind in ("numbers", "notation") and need.notation == given:
                    # But for few cells, the options are right.
                    usual = [text for text in need.missing if text in odd]
                    self.odd |= dict.fromkeys(need.odd, own.name)
                elif need.notation and not given:
                    self.notations[own.name] = need.notation
                    usual = list(need.missing)
                    self.odd |= dict.fromkeys(need.odd, own.name)
                else:
                    strange = [text for text in odd if text not in usual]
                    self.words[own.name] = f"also has {_shown(strange)}"
                    usual = []
            self.missing += [text for text in usual if text not in self.missing]


def _text_columns(survey: Survey, options: ReadOptions, label: str | None) -> list[str]:
    """Return the names of the columns that are text without being named, if these are sought."""
    if options.categorical and FOUND not in options.categorical:
        return []
    given = Missing.of(options.missing)
    found = []
    for own in survey.columns:
        there = [text for text in own.counts if not given.has(text)]
        is_text = bool(there) and all(math.isnan(number(text)) for text in there)
        left = own.name == label or any(fnmatchcase(own.name, p) for p in options.ignore)
        if is_text and not left and not notation_of(own.name, options):
            found.append(own.name)
    return found


def _unread(own: SurveyedColumn, options: ReadOptions) -> list[str]:
    """Return the texts of a column that the options do not let be read."""
    given = Missing.of(options.missing)
    there = [text for text in own.counts if not given.has(text)]
    notation = notation_of(own.name, options)
    if notation:
        return [text for text in there if not reads(notation)(text)]
    if any(p != FOUND and fnmatchcase(own.name, p) for p in options.categorical):
        return []
    odd = [text for text in there if not _is_number(text) and math.isnan(truth(text))]
    finds = not options.categorical or FOUND in options.categorical
    # A column of text alone is found.
    return [] if finds and len(odd) == len(there) else odd
