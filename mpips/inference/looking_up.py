"""Look-ups of `mpips serve`: rows and dense tables, from the memory of a run or from its checkpoint.

    GET  /rows/TABLE?keys=1,2     rows of an embedding table; without `keys` a dense table
    POST /rows/TABLE              {"keys": [1, 2]}, or {"ids": ["u1", ...], "column": "user"}, hashed as those
                                  of data files are; and "on_missing"
    POST /rows/TABLE              application/octet-stream: int64, little-endian

The answer is JSON, or with `Accept: application/octet-stream` float32, little-endian, and the rest of it in
headers `x-mpips-...`. It has the source, "live" or "checkpoint", and the step of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import Response

from mpips.data.ids import ids
from mpips.errors import DataError
from mpips.inference.current import CurrentModel
from mpips.inference.live import LiveGone, LiveRun
from mpips.inference.parsing import (
    MOST_KEYS,
    RequestRefused,
    body_of,
    content_of,
    key_refused,
    keys_of,
    listed,
)
from mpips.inference.stored_tables import (
    ON_MISSING,
    OnMissing,
    StoredDense,
    StoredRows,
    settle_missing,
)
from mpips.model.accepted import did_you_mean

T = TypeVar("T")
Keys: TypeAlias = npt.NDArray[np.int64]
Source: TypeAlias = Literal["live", "checkpoint"]
RAW = "application/octet-stream"
MOST_FLOATS = 16 << 20  # of the rows of one raw answer; 64 MiB
MOST_JSON_FLOATS = 8 << 20  # of the rows of one answer in JSON; about 160 MB
_ROWS_AT_ONCE = 1024  # rows that are turned into numbers of Python at a time


class LookedUp(NamedTuple):
    """The answer to a look-up.

    Attributes:
        values: float32: rows, shape (n, dim), or a dense table.
        has: True for the keys that have a row, shape (n,); None for a dense table.
        source: Where the values come from.
        step: Clock of the run.
        version: Updates of the table that they contain at least; see `LiveRows`. -1: unknown.
        model: Name of the checkpoint; "": none is needed.
    """

    values: npt.NDArray[np.float32]
    has: npt.NDArray[np.bool_] | None
    source: Source
    step: int
    version: int = -1
    model: str = ""


class LookUps:
    """Finds rows and tables. Thread-safe."""

    def __init__(
        self, current: CurrentModel, live: LiveRun | None, on_missing: OnMissing = "initial"
    ) -> None:
        """Look for nothing yet.

        Args:
            current: The model, for tables that are not in memory.
            live: The memory of the run; None: checkpoints only.
            on_missing: Values of keys without a row, where a request names none.
        """
        self._current = current
        self._live = live
        self._on_missing: OnMissing = on_missing

    def rows(
        self,
        name: str,
        keys: Keys,
        on_missing: OnMissing | None = None,
        most: int = MOST_FLOATS,
    ) -> LookedUp:
        """Return rows of an embedding table.

        Args:
            name: Name of the table.
            keys: int64, shape (n,).
            on_missing: Values of keys without a row; None: those of the constructor.
            most: Floats of the answer, at most.

        Raises:
            RequestRefused: There is no such table, or its answer is too large.
            DataError: A key has no row, and those are refused; or it lies outside the partition.
            NoModelYet: The memory cannot be read, and there is no checkpoint.
        """
        found = self._of_memory(
            name, "embedding", lambda live: self._live_rows(live, name, keys, most)
        )
        if found is None:
            found = self._stored(name, keys, most)
        assert found.has is not None
        settle_missing(name, keys, found.values, found.has, on_missing or self._on_missing)
        return found

    def dense(self, name: str) -> LookedUp:
        """Return a dense table; raises as `rows` does."""

        def read(live: LiveRun) -> LookedUp:
            values = live.dense(name)
            return LookedUp(values.values, None, "live", values.step, values.version)

        return self._of_memory(name, "dense", read) or self._stored(name, None, MOST_FLOATS)

    def _of_memory(self, name: str, kind: str, read: Callable[[LiveRun], T]) -> T | None:
        """Return what is read from the memory of the run; None: the checkpoint is to be taken."""
        if self._live is None:
            return None
        try:
            table = self._live.table(name)
            if table is not None and table.kind != kind:
                raise _wrong_kind(name, kind == "embedding")
            return read(self._live) if table is not None else None
        except LiveGone:
            return None

    @staticmethod
    def _live_rows(live: LiveRun, name: str, keys: Keys, most: int) -> LookedUp:
        table = live.table(name)
        if table is not None:
            _check_size(len(keys), table.shape[0], most)
        found = live.rows(name, keys)
        return LookedUp(found.values, found.has, "live", found.step, found.version)

    def _stored(self, name: str, keys: Keys | None, most: int) -> LookedUp:
        with self._current.use() as model:
            if name not in model.tables:
                known = list(dict.fromkeys((*model.tables, *self._live_names())))
                raise RequestRefused(
                    404, f"no table '{name}'; there are {listed(known)}{did_you_mean(name, known)}"
                )
            handle = model.tables.table(name)
            step, path = model.manifest.step, model.path.name
        if isinstance(handle, StoredRows) and keys is not None:
            _check_size(len(keys), handle.values.shape[1], most)
            rows, has = handle.find(keys)
            return LookedUp(rows, has, "checkpoint", step, model=path)
        if isinstance(handle, StoredDense) and keys is None:
            return LookedUp(handle.values, None, "checkpoint", step, model=path)
        raise _wrong_kind(name, keys is not None)

    def _live_names(self) -> tuple[str, ...]:
        return () if self._live is None else self._live.tables()


def _wrong_kind(name: str, has_keys: bool) -> RequestRefused:
    kind = "dense: leave ?keys= out" if has_keys else "an embedding table: give ?keys=1,2"
    return RequestRefused(400, f"table '{name}' is {kind}")


def _check_size(n: int, dim: int, most: int) -> None:
    """Raise RequestRefused if the rows of one answer are more floats than `most`."""
    if n * dim > most:
        raw = "" if most == MOST_FLOATS else f", and twice as many with Accept: {RAW}"
        raise RequestRefused(
            413,
            f"{n:,} rows of {dim:,} values: at most {most // dim:,} rows of this table in one request{raw}",
        )


class Asked(NamedTuple):
    """A look-up as it was asked for.

    Attributes:
        keys: int64, shape (n,); None: a dense table.
        on_missing: Values of keys without a row; None: the server decides.
        names: The keys or ids as the request has them, for an answer in JSON.
    """

    keys: Keys | None
    on_missing: OnMissing | None
    names: Any


async def asked_by(request: Request) -> Asked:
    """Read a request.

    Raises:
        RequestRefused: It is not what the module describes.
    """
    query = request.query_params
    missing = query.get("on_missing")
    if request.method == "GET":
        text = query.get("keys")
        keys = keys_of(text) if text is not None else None
        return Asked(keys, _missing_of(missing), None)
    body = await body_of(request)
    if request.headers.get("content-type", "").startswith(RAW):
        if len(body) % 8:
            raise RequestRefused(400, f"{len(body)} bytes: raw keys are int64, 8 bytes each")
        return Asked(
            _counted(np.frombuffer(body, "<i8").astype(np.int64)), _missing_of(missing), None
        )
    content = content_of(body)
    return _asked_in(content, _missing_of(content.get("on_missing", missing)))


def _asked_in(content: dict[str, Any], missing: OnMissing | None) -> Asked:
    """Return the look-up in a body of JSON."""
    strange = [name for name in content if name not in ("keys", "ids", "column", "on_missing")]
    if strange or ("keys" in content) == ("ids" in content):
        raise RequestRefused(
            400,
            'the body must be {"keys": [1, 2]} or {"ids": ["u1"], "column": "user"}; "on_missing" may follow',
        )
    if "keys" in content:
        keys = content["keys"]
        if not isinstance(keys, list):
            raise RequestRefused(400, '"keys" must be a list of whole numbers')
        _count(len(keys))
        strange = [key for key in keys if type(key) is not int or not -(2**63) <= key < 2**63]
        if strange:
            raise key_refused(strange[0])
        return Asked(np.array(keys, np.int64), missing, keys)
    values, column = content["ids"], content.get("column", "")
    if not isinstance(values, list) or not all(isinstance(v, str | int | float) for v in values):
        raise RequestRefused(400, '"ids" must be a list of texts and numbers')
    _count(len(values))
    try:
        return Asked(ids(values, column).reshape(-1), missing, values)
    except (DataError, TypeError) as error:
        raise RequestRefused(400, str(error)) from None


def _count(n: int) -> None:
    if n > MOST_KEYS:
        raise RequestRefused(413, f"{n:,} keys: at most {MOST_KEYS:,} in one request")


def _counted(keys: Keys) -> Keys:
    _count(len(keys))
    return keys


def _missing_of(value: Any) -> OnMissing | None:
    if value is None or value in ON_MISSING:
        found: OnMissing | None = value
        return found
    raise RequestRefused(400, f"on_missing must be one of {', '.join(ON_MISSING)}")


def response_of(found: LookedUp, asked: Asked, raw: bool) -> Response:
    """Return the answer to a look-up; `raw`: float32 instead of JSON."""
    head: dict[str, Any] = {"source": found.source, "step": found.step}
    if found.version >= 0:
        head["version"] = found.version
    if found.model:
        head["model"] = found.model
    if raw:
        headers = {f"x-mpips-{name}": str(value) for name, value in head.items()}
        headers["x-mpips-shape"] = ",".join(map(str, found.values.shape))
        data = np.ascontiguousarray(found.values, "<f4").tobytes()
        if found.has is not None:
            headers["x-mpips-missing"] = str(int(len(found.has) - found.has.sum()))
        return Response(data, media_type=RAW, headers=headers)
    if found.has is None:
        name = "values"
    else:
        assert asked.keys is not None
        head["keys"] = asked.keys.tolist() if asked.names is None else asked.names
        head["missing"], name = np.flatnonzero(~found.has).tolist(), "rows"
    text = msgspec.json.encode(head)[:-1] + f',"{name}":'.encode() + _in_json(found.values) + b"}"
    return Response(text, media_type="application/json")


def _in_json(values: npt.NDArray[np.float32]) -> bytes:
    """Return values in JSON, in parts; NaN and infinity, which JSON lacks, become null."""
    if values.ndim < 2:
        return msgspec.json.encode(values.tolist())
    starts = range(0, len(values), _ROWS_AT_ONCE)
    parts = (msgspec.json.encode(values[i : i + _ROWS_AT_ONCE].tolist())[1:-1] for i in starts)
    return b"[" + b",".join(parts) + b"]"


def wants_raw(request: Request) -> bool:
    """Return True if a client asks for float32."""
    accepted = request.headers.get("accept", "").split(",")
    return any(part.partition(";")[0].strip() == RAW for part in accepted)
