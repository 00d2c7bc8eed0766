"""Turn requests to `mpips serve` into samples and keys; refuse what does not fit."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import difflib
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from starlette.requests import Request

from mpips.inference.model import Model

MOST_BYTES = 16 << 20  # largest body of a request
_DRAINED_BYTES = 256 << 20  # of a larger body that are read, and forgotten
_DRAIN_S = 1.0  # s that a client may be silent meanwhile
MOST_KEYS = 100_000  # keys of one request
_MOST_NAMES = 10  # names that an error lists
_MOST_SHOWN = 60  # characters of a key that an error shows
_MOST_UNKNOWN = 100  # names of a request that are compared with the columns

_LINE = re.compile(r"the frame:([0-9]+): ")  # of an error of samples_of
_LINE_END = re.compile(r"\r\n|\r|\n")

# Meaning of a column that a row lacks: the request is refused, or the cell is empty.
Missing: TypeAlias = Literal["error", "empty"]


class RequestRefused(Exception):
    """A request that cannot be answered: HTTP status and one sentence."""

    def __init__(self, status: int, text: str) -> None:
        """Set both."""
        super().__init__(text)
        self.status = status


async def body_of(request: Request) -> bytes:
    """Return the body of a request.

    Raises:
        RequestRefused: It has more than MOST_BYTES, declared or sent.
    """
    parts, n = [], 0
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > MOST_BYTES:
        await _drain(request)
        raise RequestRefused(413, f"{int(declared):,} bytes: at most {MOST_BYTES:,} in one request")
    async for part in request.stream():
        n += len(part)
        if n > MOST_BYTES:
            raise RequestRefused(413, f"more than {MOST_BYTES:,} bytes in one request")
        parts.append(part)
    return b"".join(parts)


async def _drain(request: Request) -> None:
    """Read a body that is refused, up to a limit: a client that still sends does not see an early answer.

    A client with the header Expect: 100-continue, or one that is silent, gets the answer soon.
    """
    if "expect" in request.headers:
        return
    parts, n = request.stream(), 0
    with contextlib.suppress(StopAsyncIteration, asyncio.TimeoutError):
        while n <= _DRAINED_BYTES:
            n += len(await asyncio.wait_for(anext(parts), _DRAIN_S))


def content_of(body: bytes) -> dict[str, Any]:
    """Return the object in a body of JSON; {} for another value."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(400, f"the body is not JSON: {error}") from None
    # Half of a pair of surrogates is valid JSON, and no text that can be written or sent back.
    if b"\\ud" in body.lower():
        try:
            json.dumps(content, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise RequestRefused(
                400,
                "the body contains half of a pair of surrogates (\\ud800 to \\udfff), which is no text",
            ) from None
    return content if isinstance(content, dict) else {}


def lines_of(content: dict[str, Any], model: Model) -> str:
    """Return the lines of a request as the text of a file, for a task that reads its files itself.

    Raises:
        RequestRefused: The lines are not texts without line ends, or the model takes rows.
    """
    lines = content["lines"]
    if model.info.kind != "own":
        raise RequestRefused(400, 'this model takes {"rows": [...]}, samples with features')
    fits = isinstance(lines, list) and lines and all(isinstance(line, str) for line in lines)
    if not fits or any("\n" in line or "\r" in line for line in lines):
        raise RequestRefused(400, 'the body must be {"lines": [...]}, texts of one line each')
    return "\n".join(lines) + "\n"


def plain_column(values: Any) -> list[Any]:
    """Return a column as values of JSON; None for a number that is not finite."""
    column = np.asarray(values)
    if column.dtype.kind != "f":
        found: list[Any] = column.tolist()
        return found
    return [value if math.isfinite(value) else None for value in column.tolist()]


def rows_of(content: dict[str, Any]) -> list[Any]:
    """Return the rows in the content of a request."""
    rows = content.get("rows")
    if not isinstance(rows, list) or not rows:
        raise RequestRefused(400, 'the body must be {"rows": [...]} with at least one row')
    if len({type(row) for row in rows}) > 1 or not isinstance(rows[0], list | dict):
        raise RequestRefused(400, 'rows must be all lists of numbers, or all {"column": value}')
    return rows


def listed(names: Sequence[str]) -> str:
    """Return names in quotes, the first ten, and the number of the others."""
    shown = ", ".join(f"'{name}'" for name in names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{shown} and {more:,} more" if more > 0 else shown


def samples_in(rows: list[Any], model: Model, missing: Missing = "error") -> Any:
    """Return rows of a request in a form that the model predicts from.

    Args:
        rows: The rows, all lists or all objects.
        model: The model.
        missing: Meaning of a column that a row lacks.

    Raises:
        RequestRefused: A row does not fit the model.
    """
    if model.info.kind == "own":
        raise RequestRefused(
            400,
            f"task '{model.manifest.config['task']}' reads lines of its own: send {{\"lines\": [...]}} as in "
            "a file for mpips predict",
        )
    if isinstance(rows[0], dict):
        return _frame(rows, model, missing) if model.info.columns else _by_number(rows, model)
    try:
        array = np.array(rows, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        array = np.zeros(0)
    if array.ndim != 2:
        raise RequestRefused(
            400, f"rows must have {model.info.n_features} numbers each, all finite"
        )
    if model.info.columns and model.info.kind == "sparse":
        raise RequestRefused(
            400, f'rows of this model are {{"column": value}}: {listed(model.inputs)}'
        )
    return array


class _Frame:
    """Rows with names, as the part of a frame that `samples_of` uses."""

    def __init__(
        self, rows: list[Mapping[str, Any]], columns: tuple[str, ...], commas: frozenset[str]
    ) -> None:
        """Take the rows; `commas`: columns whose numbers have a decimal comma."""
        self.columns = columns
        self._commas = commas
        self._rows = rows

    def to_csv(self, path: Path, index: bool) -> None:
        """Write the rows as CSV; a missing value is an empty cell."""
        with open(path, "w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow(self.columns)
            for row in self._rows:
                lines.writerow(self._cell(name, row.get(name)) for name in self.columns)

    def _cell(self, name: str, value: Any) -> Any:
        """Return a value as the cell that it has in a file."""
        if name in self._commas and isinstance(value, int | float):
            return str(value).replace(".", ",")
        return "" if value is None else value


def named_by_row(text: str, rows: list[Any], names: Sequence[str]) -> str:
    """Return a sentence about a line of the frame that rows make, with the row of the request instead.

    Args:
        text: An error of `samples_of`.
        rows: The rows.
        names: The columns of the frame.
    """
    found = _LINE.match(text)
    if found is None:
        return text
    line, rest = int(found[1]), text[found.end() :]
    # A record with line ends in its cells is that of its last line.
    ends = itertools.accumulate((1 + _line_ends(row, names) for row in rows), initial=1)
    row = next((i for i, end in enumerate(ends) if end >= line), 0) - 1
    return f"rows[{row}]: {rest}" if row >= 0 else f"the rows: {rest}"


def _line_ends(row: Mapping[str, Any], names: Sequence[str]) -> int:
    """Return the number of line ends in the texts of a row."""
    texts = [row[name] for name in names if isinstance(row.get(name), str)]
    return sum(len(_LINE_END.findall(text)) for text in texts)


class _Columns:
    """The columns of a model, and the one that an unknown name is nearest to."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._known = frozenset(names)
        self._by_small = {name.lower(): name for name in names}
        self._nearest: dict[str, str | None] = {}

    def meant(self, row: Mapping[str, Any], lacking: Sequence[str]) -> dict[str, str]:
        """Return which of the columns that a row lacks its unknown names are nearest to.

        Raises:
            RequestRefused: The request has too many unknown names to compare them.
        """
        wanted, found = frozenset(lacking), {}
        for name in row:
            if name in self._known:
                continue
            if name not in self._nearest:
                if len(self._nearest) == _MOST_UNKNOWN:
                    raise RequestRefused(
                        400,
                        f"the rows lack columns and have more than {_MOST_UNKNOWN} names that are no "
                        f"columns; the columns are {listed(self.names)}",
                    )
                near = difflib.get_close_matches(name.lower(), self._by_small, n=1)
                self._nearest[name] = self._by_small[near[0]] if near else None
            nearest = self._nearest[name]
            if nearest in wanted:
                found[name] = nearest
        return found


def _check_names(rows: list[Mapping[str, Any]], names: Sequence[str], missing: Missing) -> None:
    """Check that rows have the columns of the model.

    Raises:
        RequestRefused: A row lacks one, or, if those may be missing, has a name that is near to one or no
            column at all.
    """
    columns = _Columns(names)
    for i, row in enumerate(rows):
        lacking = [name for name in names if name not in row]
        if not lacking:
            continue
        meant = columns.meant(row, lacking)
        if meant or missing == "error" or len(lacking) == len(names):
            pairs = [f"'{name}' is no column, did you mean '{to}'?" for name, to in meant.items()]
            more = len(pairs) - _MOST_NAMES
            hints = " ".join(pairs[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")
            raise RequestRefused(
                400,
                f"rows[{i}] lacks {listed(lacking)}{f' ({hints})' if hints else ''}; the columns are "
                f"{listed(names)}",
            )


def _frame(rows: list[Mapping[str, Any]], model: Model, missing: Missing) -> _Frame:
    """Return rows by the names of the training data's columns."""
    wanted = model.inputs
    _check_names(rows, wanted, missing)
    for row in rows:
        strange = [k for k, v in row.items() if not isinstance(v, str | int | float | None)]
        if strange:
            raise RequestRefused(
                400, f"column '{strange[0]}': a value must be a number, a text or null"
            )
    return _Frame(rows, wanted, model.decimal_commas)


class _Matrix:
    """Sparse samples in compressed rows, as the part of a matrix of SciPy that `samples_of` uses."""

    def __init__(self, rows: list[dict[int, float]]) -> None:
        lengths = [len(row) for row in rows]
        self.indptr = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        pairs = [pair for row in rows for pair in sorted(row.items())]
        self.indices = np.array([key for key, _ in pairs], dtype=np.int64)
        self.data = np.array([value for _, value in pairs], dtype=np.float64)
        self.shape = (len(rows), int(self.indices.max(initial=-1)) + 1)

    def tocsr(self) -> _Matrix:
        """Return this matrix."""
        return self

    def sum_duplicates(self) -> None:
        """Do nothing: no feature occurs twice in a row."""


def _by_number(rows: list[Mapping[str, Any]], model: Model) -> _Matrix:
    """Return rows by the numbers of features, which are those of the training file."""
    if model.info.kind != "sparse":
        raise RequestRefused(
            400, f"rows of this model are lists of {model.info.n_features} numbers"
        )
    base, found = model.info.index_base, []
    for row in rows:
        try:
            own = {int(key) - base: float(value) for key, value in row.items()}
        except (TypeError, ValueError, OverflowError):
            own = {-1: 0.0}
        # Keys are below 2**62 in any file that was trained on.
        if len(own) < len(row) or any(not 0 <= key < 1 << 62 for key in own):
            text = f'rows of this model are {{"number of the feature, from {base} on": value}}'
            raise RequestRefused(400, f"{text}, each number once")
        found.append(own)
    return _Matrix(found)


def key_refused(key: Any) -> RequestRefused:
    """Return the refusal of a key: it must be a whole number of 64 bits."""
    shown = repr(key)
    shown = shown if len(shown) <= _MOST_SHOWN else shown[:_MOST_SHOWN] + "..."
    return RequestRefused(
        400,
        f"key {shown}: must be a whole number of 64 bits; words and larger numbers are ids: send "
        '{"ids": [...], "column": "..."}',
    )


def keys_of(text: str) -> Any:
    """Return the keys in a query: whole numbers separated by commas."""
    try:
        keys = np.array([int(part) for part in text.split(",")], dtype=np.int64)
    except (ValueError, OverflowError):
        raise RequestRefused(
            400, f"keys={text[:60]}: must be whole numbers separated by commas, such as 1,2"
        ) from None
    if len(keys) > MOST_KEYS:
        raise RequestRefused(413, f"{len(keys):,} keys: at most {MOST_KEYS:,} in one request")
    return keys
