"""Ratings of items by users, from lines of text: CSV or TSV with a header, or files of MovieLens without one.

Cells are divided by `::`, tabs, commas or semicolons, whichever the first line has, in this order; else by
blanks. A header is there if the first line names a column of users and one of items. A first line that looks
like a header, but lacks one of them, is an error. Without a header the columns are user, item and rating, and
further ones are ignored.

A user or item that is a whole number has one name in all forms: 7, 7.0 and 007 are 7 (`mpips.data.words`).
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.columns import FLOAT32_MAX
from mpips.data.compressed import opened_text
from mpips.data.csv_dialect import number
from mpips.data.delimited import lines_of
from mpips.data.headers import LOOKED_AT, plain, stands_above_numbers
from mpips.data.several import files_of
from mpips.data.words import whole
from mpips.errors import DataError

Int64: TypeAlias = npt.NDArray[np.int64]
Float64: TypeAlias = npt.NDArray[np.float64]

ASKED = "?"  # in the place of an item: the best items of the user are asked for
_NAMES = {
    "user": ("user", "userid", "user_id", "uid", "customer", "customer_id"),
    "item": (
        "item",
        "itemid",
        "item_id",
        "iid",
        "movie",
        "movieid",
        "movie_id",
        "product",
        "product_id",
    ),
    "rating": ("rating", "ratings", "score", "stars", "label"),
}
# Other names of columns in files of events and ratings, as `mpips.data.headers.plain` returns them. They tell
# a header from a user and an item.
_OTHERS = """
account accountid action ad adid album albumid article articleid artist artistid asin author authorid
basket basketid book bookid brand buyer buyerid cart cartid category categoryid client clientid clicked
click content contentid count customerid date datetime day event eventid eventtype game gameid genre id
index interaction isbn itemname listener member memberid movietitle name order orderid page pageid person
personid player playerid price productid quantity reader reviewer reviewerid session sessionid shop
shopid sku song songid store storeid time timestamp title track trackid transaction transactionid type
unixtime url value video videoid viewer viewerid views visitor visitorid weight when
"""
_OTHER_NAMES = frozenset(_OTHERS.split())
_SEPARATORS = ("::", "\t", ",", ";")


class RatingColumns(msgspec.Struct, frozen=True):
    """Names of the columns in a header; "": found by usual names.

    Attributes:
        user: Column of users.
        item: Column of items.
        rating: Column of ratings.
    """

    user: str = ""
    item: str = ""
    rating: str = ""


class Ratings(msgspec.Struct, frozen=True):
    """The lines of a file.

    Attributes:
        users: Name of the user of each line.
        items: Name of the item.
        values: The rating, float64, shape (n,); nan where the line has none.
    """

    users: list[str]
    items: list[str]
    values: Float64


class _Layout(msgspec.Struct, frozen=True):
    """Layout of lines: what divides a line, places of user, item and rating (-1: none), header or not."""

    divide: Callable[[str], list[str]]
    places: tuple[int, int, int]
    n_columns: int  # 0: any number
    has_header: bool


def read_ratings(pattern: str, columns: RatingColumns, *, rated: bool) -> Ratings:
    """Read ratings; see `rating_lines`. Not collective; blocks."""
    users: list[str] = []
    items: list[str] = []
    values = array("d")
    same: dict[str, str] = {}  # one string in memory for each distinct name
    for user, item, value in rating_lines(pattern, columns, rated=rated):
        users.append(same.setdefault(user, user))
        items.append(same.setdefault(item, item))
        values.append(value)
    return Ratings(users, items, np.frombuffer(values, np.float64).copy())


def rating_lines(
    pattern: str, columns: RatingColumns, *, rated: bool, may_ask: bool = False
) -> Iterator[tuple[str, str, float]]:
    """Yield user, item and rating of each line; nan where it has no rating.

    Args:
        pattern: A file, or a pattern of several; each may have a header.
        columns: Names of columns.
        rated: Each line must have a rating.
        may_ask: A line need not have an item; then the item is ASKED.

    Raises:
        DataError: A line has too few cells, an empty one, or a rating that is not a finite number; or the
            header lacks a column. Names file and line.
        OSError: A file cannot be read.
    """
    for path in files_of(pattern):
        layout = _layout(path, columns, rated, may_ask)
        if layout is None:
            continue
        own, wanted = layout.places, "user, item and rating" if rated else "user and item"
        least = layout.n_columns or (1 if may_ask else 3 if rated else 2)
        most = layout.n_columns or 1 << 20
        skip = layout.has_header
        for place, cells in lines_of(path, layout.divide, least, most, wanted):
            if skip:
                skip = False
                continue
            user = _cell(cells, own[0], place)
            absent = may_ask and (own[1] >= len(cells) or not cells[own[1]])
            item = ASKED if absent else _cell(cells, own[1], place)
            yield user, item, _number(cells, own[2], place, rated)


def _cell(cells: Sequence[str], column: int, place: str) -> str:
    text = cells[column]
    if not text:
        raise DataError(
            f"{place}: cell {column + 1} is empty: must be the name of a user or an item"
        )
    return whole(text)


def _number(cells: Sequence[str], column: int, place: str, rated: bool) -> float:
    """Return the rating of a line; nan if the line has no rating and needs none."""
    text = cells[column] if 0 <= column < len(cells) else ""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if rated and not abs(value) <= FLOAT32_MAX:
        raise DataError(
            f"{place}: rating {text[:40]!r}: must be a finite number of float32; if the line is a header, "
            "set options.user, options.item and options.rating to its names"
        )
    return value


def _layout(path: str, columns: RatingColumns, rated: bool, may_ask: bool) -> _Layout | None:
    """Return how the lines of a file are read, from its first one; None: the file has no lines."""
    try:
        with opened_text(path) as text:
            lines = list(itertools.islice((line for line in text if line.strip()), LOOKED_AT))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text: {error.reason}") from None
    if not lines:
        return None
    first = lines[0]
    # A line that asks may have a user only.
    divide = _divider(lines if may_ask else lines[:1])
    cells = [cell.strip() for cell in divide(first.rstrip("\r\n"))]
    found = {kind: _place(cells, kind, getattr(columns, kind)) for kind in _NAMES}
    named = any((columns.user, columns.item, columns.rating))
    if not named and (found["user"] < 0 or (found["item"] < 0 and not may_ask)):
        others = [[cell.strip() for cell in divide(line.rstrip("\r\n"))] for line in lines[1:]]
        if _is_header(cells, others):
            raise DataError(
                f"{path}: the first line ({', '.join(cells)[:200]}) looks like a header, and has no column "
                f"that is known to be one of users and one of items: set options.user and options.item to "
                "their names, or remove the line"
            )
        return _Layout(divide, (0, 1, 2), 0, False)
    needed = ["user", *([] if may_ask else ["item"]), *(["rating"] if rated else [])]
    for kind in needed:
        if found[kind] < 0:
            name = getattr(columns, kind)
            wanted = f"'{name}'" if name else f"one of {', '.join(_NAMES[kind])}"
            raise DataError(
                f"{path}: the header ({', '.join(cells)[:200]}) has no column of the {kind}: must be "
                f"{wanted}; set options.{kind}"
            )
    item = found["item"] if found["item"] >= 0 else 1 << 20
    return _Layout(divide, (found["user"], item, found["rating"]), len(cells), True)


def _is_header(cells: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Return True if the cells of the first line are names of columns; `others`: cells of lines below."""
    names = [plain(cell) for cell in cells]
    known = [plain(name) for kind in _NAMES for name in _NAMES[kind]]
    if any(not math.isnan(number(cell)) for cell in cells):
        return False
    if any(name in known for name in names) or sum(n in _OTHER_NAMES for n in names) > 1:
        return True
    return stands_above_numbers(cells, others)


def _place(cells: Sequence[str], kind: str, name: str) -> int:
    """Return the place of a column in a header; -1 if it is not there."""
    if name:
        return cells.index(name) if name in cells else -1
    lower = [cell.lower() for cell in cells]
    return next((lower.index(usual) for usual in _NAMES[kind] if usual in lower), -1)


def _divider(lines: Sequence[str]) -> Callable[[str], list[str]]:
    """Return the function that divides lines, chosen by some of them."""
    separator = next((s for s in _SEPARATORS if any(s in line for line in lines)), "")

    def divide(line: str) -> list[str]:
        if separator in (",", ";"):
            # A cell that is too long for the csv module has no quotes that matter.
            with contextlib.suppress(csv.Error):
                return next(csv.reader([line], delimiter=separator), [])
        return line.split(separator or None)

    return divide


class PairData(msgspec.Struct, frozen=True):
    """A worker's users with the items that are held out for each, in compressed rows.

    Attributes:
        users: Keys of users, int64, shape (n,); -1: unknown.
        indptr: int64, shape (n + 1,).
        items: Keys of their items, int64, shape (indptr[n],); -1: unknown.
        weight: Factor of the mean gradient over the batch.
    """

    users: Int64
    indptr: Int64
    items: Int64
    weight: float = 1.0

    @property
    def n(self) -> int:
        """Number of users."""
        return len(self.users)

    @property
    def n_bytes(self) -> int:
        """Bytes of the arrays."""
        return self.users.nbytes + self.indptr.nbytes + self.items.nbytes

    def take(self, rows: Int64, weight: float = 1.0) -> PairData:
        """Copy users `rows` (int64, shape (n,), any order) with their items."""
        starts = self.indptr[rows]
        lengths = self.indptr[rows + 1] - starts
        indptr = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=indptr[1:])
        places = np.repeat(starts - indptr[:-1], lengths) + np.arange(indptr[-1])
        return PairData(self.users[rows], indptr, self.items[places], weight)

    @classmethod
    def of(cls, names: Sequence[str], users: Int64, items: Int64) -> PairData:
        """Group pairs by user, in the order in which the users come.

        Args:
            names: Name of the user of each pair, which distinguishes unknown users.
            users: Key of the user of each pair.
            items: Key of the item of each pair.
        """
        first: dict[str, int] = {}
        groups = np.array([first.setdefault(name, len(first)) for name in names], np.int64)
        order = np.argsort(groups, kind="stable")
        indptr = np.concatenate([[0], np.cumsum(np.bincount(groups, minlength=len(first)))])
        own = np.zeros(len(first), np.int64)
        own[groups] = users
        return cls(own, indptr.astype(np.int64), items[order])
