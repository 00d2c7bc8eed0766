"""Notations of cells that are read as numbers or as parts of a date: the option data.convert.

A column has one notation, which the job names, so no cell is ever guessed. Numbers have separators of
thousands, a decimal point or comma, a currency in front or behind, or a per cent sign, which divides by 100.
A date gives several features: the year, a number, and month, weekday and hour, which are words such as `2`,
`mon` and `17`. The parts are those that the text shows: an offset from UTC behind it changes nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Literal, NamedTuple

from mpips.data.options import Conversion
from mpips.data.words import whole

NUMBERS = ("decimal_point", "decimal_comma")
DATES = ("date_ymd", "date_dmy", "date_mdy")
TIMES = ("time_ymd", "time_dmy", "time_mdy")
EPOCHS = {"epoch_s": 1.0, "epoch_ms": 1000.0}  # units of a second
YEAR = "year"
_PARTS = (YEAR, "month", "weekday")
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_BEGIN = datetime(1970, 1, 1)

# Examples of each notation, for messages.
EXAMPLES = {
    "decimal_point": "1,234.5, $12 or 5 %",
    "decimal_comma": "1.234,5, 12 \u20ac or 5 %",
    "date_ymd": "2026-12-31",
    "date_dmy": "31.12.2026",
    "date_mdy": "12/31/2026",
    "time_ymd": "2026-12-31 17:05:00",
    "time_dmy": "31.12.2026 17:05",
    "time_mdy": "12/31/2026 17:05",
    "epoch_s": "1798736700",
    "epoch_ms": "1798736700000",
}

_MONEY = (
    r"(?:[$\u20ac\u00a3\u00a5\u20b9]|USD|EUR|GBP|CHF|JPY|INR|CAD|AUD|SEK|NOK|DKK|PLN|BRL|CNY|zł|kr)"
)
_GROUPS = r"[1-9][0-9]{0,2}(?:[%s' \u00a0\u202f\u2019][0-9]{3})+"


def _number(thousands: str, decimal: str) -> re.Pattern[str]:
    """Return the pattern of numbers with these separators, which are escaped."""
    digits = rf"(?P<digits>{_GROUPS % thousands}|[0-9]+)?(?:{decimal}(?P<fraction>[0-9]*))?"
    exponent = r"(?P<exponent>[eE][+-]?[0-9]{1,3})?"
    return re.compile(
        rf"(?P<sign>[-+\u2212]?)\s*(?:{_MONEY}\s*)?(?P<inner>[-+\u2212]?){digits}{exponent}"
        rf"\s*(?:(?P<percent>%)|{_MONEY})?"
    )


_NUMBER = {"decimal_point": _number(",", r"\."), "decimal_comma": _number(r"\.", ",")}
# Accountants write -5 as (5), some programs as 5.00-.
_IN_PARENTHESES = re.compile(rf"((?:{_MONEY}\s*)?)\(([^()]*)\)((?:\s*(?:%|{_MONEY}))?)")
_SIGN_BEHIND = re.compile(r"(.*[0-9][.,' \u00a0\u202f\u2019][0-9]+)-")
_SIGNS = re.compile(r"[-+\u2212]")
_SEPARATORS = re.compile(r"[.,' \u00a0\u202f\u2019]")

_TIME = (
    r"(?:(?:[T ]|, )\s*(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:[.,][0-9]+)?)?"
    r"\s*(?P<half>[AaPp][Mm])?\s*(?:Z|UTC|GMT|[+-][0-9]{2}:?(?:[0-9]{2})?)?)?"
)
_DATE = {
    "ymd": re.compile(
        rf"(?P<year>[0-9]{{4}})([-/.])(?P<month>[0-9]{{1,2}})\2(?P<day>[0-9]{{1,2}}){_TIME}"
    ),
    "dmy": re.compile(
        rf"(?P<day>[0-9]{{1,2}})([-/.])(?P<month>[0-9]{{1,2}})\2(?P<year>[0-9]{{4}}|[0-9]{{2}}){_TIME}"
    ),
    "mdy": re.compile(
        rf"(?P<month>[0-9]{{1,2}})([-/.])(?P<day>[0-9]{{1,2}})\2(?P<year>[0-9]{{4}}|[0-9]{{2}}){_TIME}"
    ),
}


class DateParts(NamedTuple):
    """The parts of a date.

    Attributes:
        year: The year.
        month: 1 to 12.
        weekday: 0 for Monday to 6.
        hour: 0 to 23; None: the text has no time.
    """

    year: int
    month: int
    weekday: int
    hour: int | None


def parts_of(notation: str) -> tuple[str, ...]:
    """Return the names of the features that a column in this notation gives; (): one number."""
    if notation in NUMBERS:
        return ()
    return _PARTS if notation in DATES else (*_PARTS, "hour")


def pattern_of(notation: str) -> re.Pattern[str]:
    """Return the pattern of the texts in a notation; those of `EPOCHS` have none."""
    return _NUMBER[notation] if notation in NUMBERS else _DATE[notation.rpartition("_")[2]]


def number_in(notation: str, text: str) -> float:
    """Return the number in a text without white space around it; nan: it has another notation."""
    found = _NUMBER[notation].fullmatch(text)
    if found is None:
        return _negative(notation, text)
    if not (found["digits"] or found["fraction"]):
        return math.nan
    if found["sign"] and found["inner"]:
        return math.nan
    digits = _SEPARATORS.sub("", found["digits"] or "")
    value = float(f"{digits or 0}.{found['fraction'] or 0}{found['exponent'] or ''}")
    if (found["sign"] or found["inner"]) not in ("", "+"):
        value = -value
    return value / 100 if found["percent"] else value


def _negative(notation: str, text: str) -> float:
    """Return the number in a text such as (5) or 5.00-; nan: it has another notation."""
    found = _IN_PARENTHESES.fullmatch(text) or _SIGN_BEHIND.fullmatch(text)
    if found is None:
        return math.nan
    size = "".join(group.strip() for group in found.groups())
    return math.nan if _SIGNS.search(size) else -number_in(notation, size)


def part_in(notation: str, part: str, text: str) -> str | None:
    """Return a part of the date in a text as a word; "": it has none; None: the text has another notation."""
    found = date_in(notation, text)
    if found is None:
        return None
    if part == "weekday":
        return _WEEKDAYS[found.weekday]
    value: int | None = getattr(found, part)
    return "" if value is None else str(value)


def year_in(notation: str, text: str) -> float:
    """Return the year of the date in a text; nan: the text has another notation."""
    found = date_in(notation, text)
    return math.nan if found is None else float(found.year)


@lru_cache(maxsize=1 << 16)
def date_in(notation: str, text: str) -> DateParts | None:
    """Return the parts of a date; None: the text has another notation."""
    if notation in EPOCHS:
        return _since_1970(text, EPOCHS[notation])
    found = _DATE[notation.rpartition("_")[2]].fullmatch(text)
    if found is None:
        return None
    year = int(found["year"])
    if len(found["year"]) == 2:
        # Two digits as POSIX reads them: 69 to 99 are 1969 to 1999.
        year += 1900 if year >= 69 else 2000
    try:
        day = date(year, int(found["month"]), int(found["day"]))
    except ValueError:
        return None
    hour = _hour(found)
    if hour is not None and not 0 <= hour < 24:
        return None
    return DateParts(day.year, day.month, day.weekday(), hour)


def has_time(text: str) -> bool:
    """Return True for a text that ends like a date with a time."""
    return ":" in text


def _hour(found: re.Match[str]) -> int | None:
    """Return the hour, 0 to 23; None without a time; -1 for a time that cannot be."""
    if found["hour"] is None:
        return None
    hour, minute, second = (int(found[name] or 0) for name in ("hour", "minute", "second"))
    if minute > 59 or second > 60:
        return -1
    if found["half"]:
        if not 1 <= hour <= 12:
            return -1
        return hour % 12 + (12 if found["half"].lower() == "pm" else 0)
    return hour


def _since_1970(text: str, units: float) -> DateParts | None:
    """Return the parts of a number of seconds or milliseconds since 1970, in UTC."""
    try:
        at = _BEGIN + timedelta(seconds=float(whole(text)) / units)
    except (ValueError, OverflowError):
        return None
    return DateParts(at.year, at.month, at.weekday(), at.hour)


def reads(notation: str) -> Callable[[str], bool]:
    """Return a function that returns True for a text in a notation."""
    if notation in NUMBERS:
        return lambda text: not math.isnan(number_in(notation, text))
    return lambda text: date_in(notation, text) is not None


_COMMA_FIRST = re.compile(r"[^0-9]*0?,[0-9]+[^0-9]*")


def nearly_in(notation: str, texts: Sequence[str], most: int) -> list[str] | None:
    """Return the texts that are not in a notation; None if they are more than `most`."""
    read = reads(notation)
    found: list[str] = []
    for text in texts:
        if not read(text):
            found.append(text)
            if len(found) > most:
                return None
    return found


def find_notation(texts: Sequence[str]) -> Conversion | Literal[""]:
    """Return the notation of all texts; "": they have none, or several are possible."""
    # The first texts decide for most columns.
    for few in (texts[:20], texts):
        fits = [name for name in CANDIDATES if all(map(reads(name), few))]
        if not fits:
            return ""
    if "decimal_point" in fits or "decimal_comma" in fits:
        if len(fits) > 1 and any(map(_COMMA_FIRST.fullmatch, texts)):
            return "decimal_comma"
        return "decimal_point" if "decimal_point" in fits else "decimal_comma"
    if fits[0] in ("date_dmy", "date_mdy") and _begins_with_year(texts):
        return ""
    if {"date_dmy", "date_mdy"} <= set(fits):
        # Only points tell that the day comes first.
        return "" if not all("." in text for text in texts) else _timed("date_dmy", texts)
    return _timed(fits[0], texts)


_SHORT = re.compile(r"([0-9]{2})([-/.])([0-9]{2})\2([0-9]{2})\b.*")


def _begins_with_year(texts: Sequence[str]) -> bool:
    """Return True for dates such as 24-12-31, whose first digits are rather the year, by their variety."""
    found = [_SHORT.fullmatch(text) for text in texts]
    if not all(found):
        return False
    parts = [match.groups() for match in found if match is not None]
    could = all(
        date_in("date_ymd", f"20{first}-{second}-{third}") for first, _, second, third in parts
    )
    return could and len({part[0] for part in parts}) < len({part[3] for part in parts})


CANDIDATES: tuple[Conversion, ...] = (
    "decimal_point",
    "decimal_comma",
    "date_ymd",
    "date_dmy",
    "date_mdy",
)
_TIMED: dict[str, Conversion] = {
    "date_ymd": "time_ymd",
    "date_dmy": "time_dmy",
    "date_mdy": "time_mdy",
}


def _timed(notation: Conversion, texts: Sequence[str]) -> Conversion:
    """Return the notation with the hour if a text has one."""
    return _TIMED[notation] if any(map(has_time, texts)) else notation
