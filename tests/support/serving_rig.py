"""A real server of predictions in a thread of this process, and its client."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from http_rig import running

from mpips.inference.current import CurrentModel
from mpips.inference.live import LiveRun
from mpips.inference.parsing import Missing
from mpips.inference.serving import Service
from mpips.inference.stored_tables import OnMissing
from mpips.web.connections import config_of

TOKEN = "a token of the tests"


class Client:
    """Requests to a server on a port of this machine."""

    def __init__(self, port: int, token: str = TOKEN) -> None:
        self.port = port
        self.token = token

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes, dict[str, str]]:
        """Return status, body and headers of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())
        finally:
            connection.close()

    def json(self, method: str, path: str, content: Any = None) -> tuple[int, Any]:
        """Return status and content of the answer; `content`: of the request."""
        body = json.dumps(content).encode() if content is not None else None
        status, found, _ = self.ask(method, path, body)
        return status, json.loads(found)


@contextmanager
def served(
    path: Path,
    every_s: float = 0.0,
    most: int | None = None,
    request_s: float = 10.0,
    body_s: float = 60.0,
    missing: Missing = "error",
    live: LiveRun | None = None,
    on_missing: OnMissing = "initial",
    needed: bool = True,
) -> Iterator[tuple[Client, CurrentModel]]:
    """Serve a model until the end of the block."""
    current = CurrentModel(path, on_missing=on_missing, needed=needed)
    app = Service(current, TOKEN, every_s, missing, live, on_missing).app()
    with running(uvicorn.Server(config_of(app, most, request_s, body_s))) as port:
        yield Client(port), current
