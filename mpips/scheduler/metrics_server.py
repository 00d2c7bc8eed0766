"""The scheduler's answers to GET /metrics: one thread with its own event loop, which sleeps between requests.

The scheduler's thread hands over the state of the run once a second, by one assignment, and never waits for
this thread. The text is made here, when it is asked for, once for each state. So a job without readers
does no work for it, and many readers cost as much as one.

A slow or hostile reader cannot hold anything for long: a connection has one request of at most _MOST_REQUEST
bytes, ends after _REQUEST_S seconds whatever the reader does, and there are at most _MOST_CONNECTIONS of
them; further ones are closed at once. The thread makes no MPI call.

A port that cannot be bound does not end the job. The thread prints one sentence and tries again every
_RETRY_S seconds: the port may belong to the attempt before, or to another run on this host.

Writers and readers: `_view` is written by the scheduler's thread and read by the server's, `address` the
other way round. Both are single references to immutable objects, so a reader has an old or a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable

from mpips.process import forked
from mpips.rundir.exposition import CONTENT_TYPE, exposition
from mpips.rundir.view import RunView
from mpips.terminal.screen import say

_RETRY_S = 10.0  # s between two tries to bind the port
_REQUEST_S = 10.0  # s, longest time of a connection
_MOST_CONNECTIONS = 32
_MOST_REQUEST = 16 << 10  # bytes of the head of a request
_CLOSE_S = 5.0  # s that `close` waits for the thread

_REASONS = {
    200: "OK",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class MetricsServer:
    """Answers GET /metrics with the state of one run. One per job, on the scheduler's rank.

    Attributes:
        address: Address of the metrics, once the port is bound; "": not yet.
        name: Name of a run that has no directory.
    """

    def __init__(
        self, host: str, port: int, name: str, say: Callable[[str], None] | None = None
    ) -> None:
        """Bind the port and start the thread.

        Args:
            host: Address to bind.
            port: Port to bind; 0: any free one.
            name: Name of a run that has no directory.
            say: Prints a line for people; None: on stderr.
        """
        self.address = ""
        self.name = name
        self._host, self._port = host, port
        self._say = say or _say
        self._view: RunView | None = None
        self._shown: tuple[RunView | None, bytes] = (None, b"")  # a state and its text
        self._open: set[asyncio.WriteTransport] = set()  # connections with a request
        self._has_warned = False  # that the port cannot be bound
        self._has_failed = False  # to make a text, and said so
        self._socket: socket.socket | None = None
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._bind()
        self._thread = threading.Thread(target=self._run, name="mpips-metrics", daemon=True)
        forked.register(self)
        self._thread.start()

    def observe(self, view: RunView) -> None:
        """Take the state of the run at this moment. For the scheduler's thread; does not block."""
        self._view = view

    def close(self) -> None:
        """Close the port and end the thread. Blocks for a moment."""
        forked.forget(self)
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(_CLOSE_S)
        self.address = ""

    def disown(self) -> None:
        """Close the port in a forked child, so that it is free when the parent ends."""
        if self._socket is not None:
            self._socket.close()

    def _bind(self) -> bool:
        """Bind the port; return False, after a sentence the first time, if that is impossible now."""
        try:
            self._socket = listening(self._host, self._port)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                self._say(
                    f"mpips: warning: monitor.port = {self._port} cannot be opened on {self._host}: "
                    f"{error.strerror or error}; training continues without /metrics, and the port is tried "
                    f"again every {_RETRY_S:g} s"
                )
            return False
        port = self._socket.getsockname()[1]
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self.address = f"http://{shown}:{port}/metrics"
        if self._has_warned or not self._port:
            self._say(f"mpips: metrics at {self.address}")
        return True

    def _run(self) -> None:
        """Serve until `close`."""
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        while self._socket is None and not self._bind():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._closing.wait(), _RETRY_S)
                return
        bound = self._socket
        assert bound is not None
        server = await asyncio.start_server(self._answer, sock=bound, limit=_MOST_REQUEST)
        await self._closing.wait()
        # Accept no more, but let connections that are being accepted begin their tasks: a closed server of
        # Python 3.11 would leave their sockets open.
        self._loop.remove_reader(bound)
        await asyncio.sleep(0)
        # An aborted connection ends its task.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for transport in self._open:
                transport.abort()
            await asyncio.gather(*others, return_exceptions=True)
        server.close()
        # Let the loop close the last sockets.
        for _ in range(3):
            await asyncio.sleep(0)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the one request of a connection, and close it."""
        transport = writer.transport
        if self._closing.is_set() or len(self._open) >= _MOST_CONNECTIONS:
            transport.abort()
            return
        self._open.add(transport)
        try:
            await asyncio.wait_for(self._exchange(reader, writer), _REQUEST_S)
        except (
            asyncio.TimeoutError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            OSError,
        ):
            pass  # a late reader, or one that has left
        finally:
            self._open.discard(transport)
            # Drop what a slow reader has not taken.
            transport.abort()
            # Let the loop close the socket.
            await asyncio.sleep(0)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.partition(b" ")
        target = rest.partition(b" ")[0].partition(b"?")[0]
        status, kind, body = 200, CONTENT_TYPE, b""
        if method not in (b"GET", b"HEAD"):
            status, kind, body = 405, "text/plain", b"only GET is accepted\n"
        elif target != b"/metrics":
            status, kind, body = 404, "text/plain", b"the metrics are at /metrics\n"
        elif self._view is None:
            status, kind, body = 503, "text/plain", b"the job has not started yet\n"
        else:
            try:
                body = self._text()
            except Exception as error:
                # A thread for people's eyes: whatever a state contains, training and later scrapes go on.
                what = f"the metrics cannot be written: {type(error).__name__}: {error}"
                status, kind = 500, "text/plain; charset=utf-8"
                body = f"{what}\n".encode(errors="backslashreplace")
                self._say_failed(what)
        lines = (
            f"HTTP/1.1 {status} {_REASONS[status]}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Connection: close",
        )
        writer.write("\r\n".join((*lines, "", "")).encode())
        if method != b"HEAD":
            writer.write(body)
        writer.write_eof()
        await writer.drain()
        # Wait until the reader has all of it: it closes its end, or sends more, which is not read.
        await reader.read(1)

    def _say_failed(self, what: str) -> None:
        """Say, once, that there is no text for a state."""
        if not self._has_failed:
            self._has_failed = True
            self._say(
                f"mpips: warning: /metrics answers 500, {ascii(what)[1:-1]}; training continues"
            )

    def _text(self) -> bytes:
        """Return the text of the newest state, made once for each state."""
        view = self._view
        if view is not None and self._shown[0] is not view:
            self._shown = view, exposition([view])
        return self._shown[1]


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address.

    Raises:
        OSError: The name is unknown, or the port cannot be bound.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A port whose last connections are still in TIME_WAIT is free.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(128)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound


def _say(line: str) -> None:
    say(line)
