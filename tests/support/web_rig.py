"""A server of the page in a thread of this process, and requests to it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from http_rig import running

from mpips.web.connections import REQUEST_S, config_of
from mpips.web.runs_data import RunsData
from mpips.web.server import PageServer

TOKEN = "a-token-of-the-tests"
REFRESH_S = 0.05


class Page:
    """Requests to the server of a page."""

    def __init__(self, port: int, server: PageServer) -> None:
        self.port = port
        self.server = server
        self.address = f"http://127.0.0.1:{port}/{TOKEN}/"

    def ask(self, path: str, method: str = "GET") -> tuple[int, bytes, dict[str, str]]:
        """Return status, body and headers of an answer; `path` without the token begins with "/"."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path if path.startswith("/") else f"/{TOKEN}/{path}")
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, answer.read(), headers
        finally:
            connection.close()

    @contextmanager
    def events(self, query: str = "") -> Iterator[Iterator[tuple[str, Any]]]:
        """Open the stream of events, and close it at the end of the block."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", f"/{TOKEN}/events?{query}")
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        try:
            yield _events(answer)
        finally:
            answer.close()
            connection.close()


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in answer:
        if line.startswith(b"event: "):
            name = line[7:].strip().decode()
        elif line.startswith(b"data: "):
            yield name, json.loads(line[6:])


@contextmanager
def page_of(
    where: Path,
    most: int | None = None,
    refresh_s: float = REFRESH_S,
    request_s: float = REQUEST_S,
) -> Iterator[Page]:
    """Serve the page of a run or a folder until the end of the block.

    Args:
        where: The run or the folder.
        most: Connections at a time; None: as many as `mpips web` takes.
        refresh_s: Seconds between two readings.
        request_s: Seconds that a connection may take to ask.
    """
    page = PageServer(RunsData(where), TOKEN, refresh_s)
    server = uvicorn.Server(config_of(page.app(), most, request_s))
    page.is_ending = lambda: server.should_exit
    with running(server) as port:
        yield Page(port, page)
