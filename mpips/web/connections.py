"""Bounds what a connection to the page, or to `mpips serve`, may cost without a whole request.

Every user of the machine can connect. A connection that does not ask within some seconds is closed, whether
it sends nothing or one byte now and then. The body of a request has a limit of its own. If there are as many
connections as the server takes, a new one takes the place of the one that has kept it waiting longest, so
idle connections of others keep no client out. The number of connections is less than that of the files that
the process may open.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = (
    10.0  # s until a connection must have sent a request, from its begin or the first byte of it
)
BODY_S = 60.0  # s from the headers of a request until its body must be there
BACKLOG = 128  # connections that are accepted before any of them is looked at
_MOST_CONNECTIONS = 1000
_LEAST_CONNECTIONS = 8
_OTHER_FILES = 64  # files that the process has open besides


def most_connections() -> int:
    """Return the number of connections that are served at a time: fewer than files may be open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(min(_MOST_CONNECTIONS, soft - BACKLOG - _OTHER_FILES), _LEAST_CONNECTIONS)


class PageProtocol(H11Protocol):
    """A connection. All its methods are called by the event loop's thread.

    Attributes:
        request_s: Seconds until a connection must have sent the headers of a request.
        body_s: Seconds from then until it must have sent the body.
        waits_since: Time of the loop, seconds, since when the connection has owed a request.
    """

    request_s = REQUEST_S
    body_s = BODY_S
    waits_since = 0.0
    _deadline: asyncio.TimerHandle | None = None
    _reads_body = False  # `_deadline` is that of a body

    @property
    def is_answered(self) -> bool:
        """True while a request is being answered; a stream of events is one."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, in place of one that waits if there are too many."""
        if (
            self.limit_concurrency is not None
            and len(self.connections) + 1 >= self.limit_concurrency
        ):
            self._make_room()
        super().connection_made(transport)
        self._wait(self.request_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request. It does not extend the time until the request must be complete."""
        super().data_received(data)
        reads_body = self._is_reading_body
        if reads_body != self._reads_body or (self.is_answered and not reads_body):
            self._stop_waiting()
        self._reads_body = reads_body
        owes = reads_body or not self.is_answered
        if owes and self._deadline is None and not self.transport.is_closing():
            self._wait(self.body_s if reads_body else self.request_s)

    @property
    def _is_reading_body(self) -> bool:
        return self.conn.their_state is h11.SEND_BODY

    def _wait(self, seconds: float) -> None:
        self.waits_since = self.loop.time()
        self._deadline = self.loop.call_later(seconds, self._end)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self) -> None:
        self._deadline = None
        if self._is_reading_body or not self.is_answered:
            # What a browser has not been sent yet it gets before.
            self.transport.close()

    def _make_room(self) -> None:
        """Close the connection that has owed a request for the longest time, if any does."""
        waiting = [
            other
            for other in self.connections
            if isinstance(other, PageProtocol) and not other.is_answered
        ]
        if waiting:
            oldest = min(waiting, key=lambda other: other.waits_since)
            self.connections.discard(oldest)
            oldest.transport.abort()


def config_of(
    app: ASGIApp,
    most: int | None = None,
    request_s: float = REQUEST_S,
    body_s: float = BODY_S,
) -> uvicorn.Config:
    """Return how Uvicorn serves an application.

    Args:
        app: The application.
        most: Connections at a time; None: see `most_connections`.
        request_s: Seconds until a connection must have sent the headers of a request.
        body_s: Seconds from then until it must have sent the body.
    """
    members: dict[str, Any] = {"request_s": request_s, "body_s": body_s}
    return uvicorn.Config(
        app,
        http=type("BoundedProtocol", (PageProtocol,), members),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        limit_concurrency=most or most_connections(),
        timeout_keep_alive=5,
        timeout_graceful_shutdown=5,
    )
