"""A client of `mpips serve`, with the standard library's HTTP."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import quote, urlencode, urlsplit

import numpy as np
import numpy.typing as npt

from mpips.data.ids import ids
from mpips.errors import ConfigError, ServingError

if TYPE_CHECKING:
    from mpips.inference.stored_tables import OnMissing

Float32: TypeAlias = npt.NDArray[np.float32]
_RAW = "application/octet-stream"


class ServedValues(NamedTuple):
    """Rows or a dense table, as a server of `mpips serve` has answered.

    Attributes:
        values: float32: rows, shape (n, dim), or a dense table; the caller's.
        n_missing: Keys without a row; 0 for a dense table.
        source: "live": from the memory of a run at work; "checkpoint".
        step: Step of the run.
        version: Updates of the table that the values contain at least, since the start or the last restart
            that read a checkpoint; -1: of a checkpoint.
    """

    values: Float32
    n_missing: int
    source: str
    step: int
    version: int


class ModelClient:
    """Asks a server of `mpips serve`. Thread-safe: threads take turns on one connection."""

    def __init__(self, url: str, token: str = "", timeout_s: float = 30.0) -> None:
        """Connect to nothing yet.

        Args:
            url: Address that `mpips serve` prints, such as "http://127.0.0.1:8000".
            token: Token that it prints, or that of its --token-file; "": none is needed.
            timeout_s: Time limit of a wait for the server, seconds.

        Raises:
            ConfigError: The address is not one of HTTP.
        """
        parts = urlsplit(url)
        try:
            host, port = parts.hostname, parts.port or 80
        except ValueError:
            host, port = None, 0
        if parts.scheme != "http" or not host:
            raise ConfigError(f"url = {url!r}: must be of the form http://HOST:PORT")
        self._connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._lock = threading.Lock()

    def __enter__(self) -> ModelClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a later request opens it again."""
        with self._lock:
            self._connection.close()

    def rows(self, table: str, keys: Any, *, on_missing: OnMissing | None = None) -> ServedValues:
        """Return rows of an embedding table. Blocks.

        Args:
            table: Name of the table.
            keys: Whole numbers, converted to int64, shape (n,); at most 100,000.
            on_missing: Values of keys without a row; None: as the server was started.

        Raises:
            ServingError: The server refuses the request, or cannot be reached.
        """
        asked = np.asarray(keys)
        if asked.ndim != 1 or (asked.size and asked.dtype.kind not in "iu"):
            raise ServingError(
                0,
                f"keys of dtype {asked.dtype} and shape {asked.shape}: must be whole numbers, shape (n,); "
                "use rows_of_ids for words",
            )
        if asked.dtype.kind == "u" and asked.size and int(asked.max()) >= 2**63:
            raise ServingError(
                0, f"keys contain {asked.max()}, beyond int64: use rows_of_ids for such numbers"
            )
        body = asked.astype("<i8").tobytes()
        query: dict[str, str] = {} if on_missing is None else {"on_missing": on_missing}
        return self._values("POST", table, body, query)

    def rows_of_ids(
        self,
        table: str,
        values: Sequence[Any],
        column: str = "",
        *,
        on_missing: OnMissing | None = None,
    ) -> ServedValues:
        """Return rows of ids: words, or unsigned numbers. Blocks.

        Args:
            table: Name of the table.
            values: The ids, n of them; see `mpips.data.ids.ids`.
            column: Name of the column of the data file that had them.
            on_missing: As of `rows`.

        Raises:
            DataError: An id is a missing value.
            ServingError: See `rows`.
        """
        return self.rows(table, ids(values, column).reshape(-1), on_missing=on_missing)

    def dense(self, table: str) -> ServedValues:
        """Return a dense table. Blocks.

        Raises:
            ServingError: See `rows`.
        """
        return self._values("GET", table, None, {})

    def predict(self, rows: Sequence[Any]) -> dict[str, Any]:
        """Return the server's answer for samples: predictions, probabilities, source, step. Blocks.

        Args:
            rows: Lists of numbers, or {"column": value}.

        Raises:
            ServingError: See `rows`.
        """
        body = json.dumps({"rows": list(rows)}).encode()
        found: dict[str, Any] = json.loads(self._ask("POST", "/predict", body, {})[0])
        return found

    def health(self) -> dict[str, Any]:
        """Return what the server serves: model, step, source. Blocks.

        Raises:
            ServingError: See `rows`.
        """
        found: dict[str, Any] = json.loads(self._ask("GET", "/health", None, {})[0])
        return found

    def _values(
        self, method: str, table: str, body: bytes | None, query: dict[str, str]
    ) -> ServedValues:
        path = f"/rows/{quote(table)}" + (f"?{urlencode(query)}" if query else "")
        data, head = self._ask(method, path, body, {"Accept": _RAW, "Content-Type": _RAW})
        shape = tuple(map(int, filter(None, head.get("x-mpips-shape", "").split(","))))
        values = np.frombuffer(data, "<f4").astype(np.float32).reshape(shape)
        return ServedValues(
            values,
            int(head.get("x-mpips-missing", 0)),
            head.get("x-mpips-source", ""),
            int(head.get("x-mpips-step", 0)),
            int(head.get("x-mpips-version", -1)),
        )

    def _ask(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[bytes, dict[str, str]]:
        """Return body and headers of an answer. Requests only read, so a lost one is repeated."""
        with self._lock:
            for last in (False, True):
                try:
                    self._connection.request(
                        method, self._prefix + path, body, {**self._headers, **headers}
                    )
                    answer = self._connection.getresponse()
                    data, status = answer.read(), answer.status
                    break
                except (http.client.HTTPException, OSError) as error:
                    self._connection.close()
                    # The server closes connections that have been idle for some seconds.
                    if last or isinstance(error, socket.timeout):
                        where = f"{self._connection.host}:{self._connection.port}"
                        raise ServingError(
                            0, f"{where} does not answer: {error or type(error).__name__}"
                        ) from None
        if status != 200:
            raise ServingError(status, _reason(data, status))
        return data, {name.lower(): value for name, value in answer.getheaders()}


def _reason(data: bytes, status: int) -> str:
    """Return the sentence of a refusal."""
    try:
        return str(json.loads(data)["error"])
    except (ValueError, KeyError, TypeError):
        return f"the server answers with status {status}"
