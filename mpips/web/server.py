"""The server of `mpips web`, by Starlette: the page, and what it shows as server-sent events.

    /TOKEN/                         the page
    /TOKEN/page.css, page.js, ...   its parts
    /TOKEN/events?run=A&run=B       the list of runs, the trials of a sweep, and the parts of these runs, as
                                    they change; "end" after the last change of a single run that is done
    /TOKEN/metrics                  metrics of the runs at work for Prometheus, see mpips.rundir.exposition
    /TOKEN/logs?run=A&attempt=0     the logs of an attempt
    /TOKEN/log?run=A&attempt=0&rank=2   the end of one log

The token is the first part of every address: a browser repeats it by itself, and an address without it is
answered by 404, like every other one. It is not a cookie, because a browser sends the cookies of one
port of a
host to all of them, and other users of a login node also have ports.

All runs are read by one task, once a second and only while a browser is connected, so many pages cost as much
as one. It reads in a thread, so a file system that hangs stops no other answer. A browser that reads slowly
gets fewer events: what it has not got is computed when it takes the next one, and nothing is queued.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import re
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from mpips.terminal.screen import say
from mpips.web.files import MEDIA_TYPES, page_file
from mpips.web.log_text import log_tail, logs_of
from mpips.web.run_data import RunData, SentParts
from mpips.web.runs_data import RunsData

MOST_STREAMS = 100  # browsers that are sent events at a time
MOST_SHOWN = 8  # runs that one page shows side by side
_REFRESH_S = 1.0  # s between two readings of the run directories
_SILENCE_S = (
    15.0  # s after which a line is sent that says nothing, so that a dead connection is noticed
)
_NUMBER = re.compile(r"-?[0-9]{1,9}")

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
Handler = Callable[[Request], Awaitable[Response]]


class PageServer:
    """Answers the requests of the page. One event loop; files are read in its threads.

    Attributes:
        n_streams: Number of browsers that are sent events.
        is_ending: Returns True once the server is to end, so that streams also end.
    """

    def __init__(self, runs: RunsData, token: str, refresh_s: float = _REFRESH_S) -> None:
        """Serve runs.

        Args:
            runs: The runs.
            token: First part of every address.
            refresh_s: Seconds between two readings of the run directories.
        """
        self._runs = runs
        self._token = token.encode()
        self._refresh_s = refresh_s
        self._watched: Counter[str] = Counter()  # runs, and the number of browsers that show each
        self.n_streams = 0
        self.is_ending: Callable[[], bool] = lambda: False
        # Is set at the next reading; then another one takes its place. A condition would not do: a browser
        # that leaves cancels its stream more than once, and then Python's condition loses its lock.
        self._changed = asyncio.Event()
        self._list: bytes = b"[]"
        self._trials: bytes = b"null"
        self._tick = 0  # readings so far
        self._wake = asyncio.Event()
        self._reported = False  # an unexpected error was printed

    def app(self) -> Starlette:
        """Return the application."""
        routes = [
            Route("/{token}/", self._guarded(self._page)),
            Route("/{token}/events", self._guarded(self._events)),
            Route("/{token}/metrics", self._guarded(self._metrics)),
            Route("/{token}/logs", self._guarded(self._logs)),
            Route("/{token}/log", self._guarded(self._log)),
            Route("/{token}/{name}", self._guarded(self._file)),
        ]
        app = Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={404: _not_found, 405: _not_found},
        )

        # A redirect would tell an address with a wrong token from others.
        app.router.redirect_slashes = False
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(self._read())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def _guarded(self, handler: Handler) -> Handler:
        """Return a handler that answers only addresses with the token, and adds the headers to its answer."""

        async def guarded(request: Request) -> Response:
            given = request.path_params["token"].encode(errors="replace")
            if not hmac.compare_digest(given, self._token):
                return await _not_found(request, None)
            response = await handler(request)
            response.headers.update(_HEADERS)
            return response

        return guarded

    async def _page(self, request: Request) -> Response:
        return Response(page_file("page.html"), media_type=MEDIA_TYPES[".html"])

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        content = page_file(name)
        if content is None:
            return await _not_found(request, None)
        return Response(content, media_type=MEDIA_TYPES["." + name.rpartition(".")[2]])

    async def _read(self) -> None:
        """Read the runs that a browser shows, again and again; and nothing while there is no browser."""
        while True:
            if not self.n_streams:
                self._wake.clear()
                await self._wake.wait()
            pause = self._refresh_s
            try:
                await self._read_once()
                # Go on at once with a long file.
                pause = 0.0 if self._runs.is_loading(self._watched) else pause
            except Exception:
                # Without this task no page would ever change again.
                self._report_once("the runs cannot be read")
            # A new browser need not wait for the next reading.
            self._wake.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)

    async def _read_once(self) -> None:
        await run_in_threadpool(self._runs.refresh, list(self._watched))
        listed = await run_in_threadpool(self._runs.listed)
        self._list = msgspec.json.encode(listed)
        self._trials = msgspec.json.encode(self._runs.sweep())
        self._tick += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def _report_once(self, what: str) -> None:
        """Print the present error to stderr, unless one was printed before."""
        if not self._reported:
            self._reported = True
            say(f"mpips web: {what}; it goes on trying")
            traceback.print_exc()

    async def _events(self, request: Request) -> Response:
        await run_in_threadpool(self._runs.listed)
        if self.n_streams >= MOST_STREAMS:
            return PlainTextResponse(f"{MOST_STREAMS} pages are open; close one", 503)
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        shown = [name for name in names if self._runs.get(name) is not None][:MOST_SHOWN]
        self.n_streams += 1
        self._watched.update(shown)
        self._wake.set()

        def end() -> None:
            self.n_streams -= 1
            self._watched.subtract(shown)
            self._watched += Counter()

        return _Events(self._stream(shown), end)

    async def _stream(self, names: list[str]) -> AsyncIterator[bytes]:
        """Yield events until the browser closes the connection, or the server ends."""
        cursors = {name: SentParts() for name in names}
        seen, sent_list, sent_trials = -1, b"", b"null"
        yield _event("hello", msgspec.json.encode({"where": self._runs.where, "shown": names}))
        while not self.is_ending():
            quiet = True
            # Trials come before the list: the page chooses among them what it shows first.
            if self._trials != sent_trials and self._tick:
                sent_trials, quiet = self._trials, False
                yield _event("sweep", sent_trials)
            if self._list != sent_list and self._tick:
                sent_list, quiet = self._list, False
                yield _event("list", sent_list)
            for name, cursor in cursors.items():
                run = self._runs.get(name)
                found = self._parts(run, cursor) if run is not None and self._tick else None
                if found is not None:
                    quiet = False
                    yield _event("run", found)
            if quiet and self._runs.is_over(names):
                yield _event("end", b"null")
                return
            if quiet and seen >= 0:
                yield b": nothing new\n\n"
            seen = await self._next_tick(seen)

    def _parts(self, run: RunData, cursor: SentParts) -> bytes | None:
        try:
            return run.parts(cursor)
        except Exception:
            # Other runs of the page go on.
            self._report_once(f"{run.name} cannot be sent")
            return None

    async def _next_tick(self, seen: int) -> int:
        """Wait until the runs have been read again, or for a while; return the number of readings."""
        if self._tick <= seen:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _SILENCE_S)
        return self._tick

    async def _metrics(self, request: Request) -> Response:
        try:
            from mpips.rundir.exposition import CONTENT_TYPE
        except ImportError as error:
            text = f"metrics need prometheus-client (pip install prometheus-client): {error}\n"
            return PlainTextResponse(text, 503)
        found = await run_in_threadpool(self._runs.metrics)
        return Response(found, headers={"Content-Type": CONTENT_TYPE})

    async def _logs(self, request: Request) -> Response:
        run, attempt = await self._run_of(request), _number(request, "attempt")
        if run is None or attempt is None:
            return await _not_found(request, None)
        return JSONResponse(await run_in_threadpool(logs_of, run.run, attempt))

    async def _log(self, request: Request) -> Response:
        run, attempt = await self._run_of(request), _number(request, "attempt")
        rank = _number(request, "rank")
        if run is None or attempt is None or rank is None:
            return await _not_found(request, None)
        found = await run_in_threadpool(log_tail, run.run, attempt, rank)
        return JSONResponse(found) if found is not None else await _not_found(request, None)

    async def _run_of(self, request: Request) -> Any:
        await run_in_threadpool(self._runs.listed)
        return self._runs.get(request.query_params.get("run", ""))


class _Events(StreamingResponse):
    """A stream of events; `end` is called after it, even if the browser left before its start."""

    def __init__(self, events: AsyncIterator[bytes], end: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else None


def _event(name: str, data: bytes) -> bytes:
    """Return an event; JSON contains no newlines."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


async def _not_found(request: Request, error: Exception | None) -> Response:
    text = "no such page; the address that mpips web prints has a token, which must be right\n"
    # Without the token a connection gets one answer, so none is held by asking again and again.
    return PlainTextResponse(text, 404, headers={**_HEADERS, "Connection": "close"})
