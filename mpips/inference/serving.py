"""`mpips serve`: predictions and rows of a model over HTTP, by Starlette and Uvicorn.

    POST /predict          {"rows": [[5.1, ...], ...]}, or rows as {"column": value}; the answer has labels
                           and probabilities (or numbers), and the checkpoint that they are of. If samples
                           have several labels, `predictions` are lists of the names of those that are 1
    POST /predict          {"lines": ["u1,?", ...]} for kge, mf and word2vec, the lines of a file for `mpips
                           predict`; the answer has the columns that this writes, by name
    POST /predict          application/octet-stream: float32, little-endian, n rows of d; so is the answer
    GET, POST /rows/TABLE  rows of an embedding table, or the whole of a dense one; see `looking_up.py`
    GET /health            which checkpoint is loaded, and whether the memory of a run is read; needs no token
    GET /metrics           for Prometheus

All but /health need the token: `Authorization: Bearer TOKEN`. Predictions run in threads; a request is
answered by one model, even while a newer checkpoint takes its place (`current.py`). `parsing.py` reads the
requests.

While a run is at work, look-ups and predictions read the memory of its servers (`live.py`), if all of them
are on this node. The answer has "source": "live" then, else "checkpoint", and the step. If the memory is gone
in the middle of a prediction, the prediction is made again from the checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import hmac
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import compress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mpips.errors import DataError, MpipsError
from mpips.inference.current import CurrentModel, NoModelYet
from mpips.inference.live import LiveGone, LiveRun
from mpips.inference.live_tables import LiveTables
from mpips.inference.looking_up import (
    MOST_FLOATS,
    MOST_JSON_FLOATS,
    RAW,
    Asked,
    LookedUp,
    LookUps,
    asked_by,
    response_of,
    wants_raw,
)
from mpips.inference.model import Model
from mpips.inference.parsing import (
    Missing,
    RequestRefused,
    body_of,
    content_of,
    lines_of,
    named_by_row,
    plain_column,
    rows_of,
    samples_in,
)
from mpips.inference.stored_tables import OnMissing
from mpips.terminal.screen import say

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


class Service:
    """The answers to requests. One event loop; predictions run in its threads."""

    def __init__(
        self,
        current: CurrentModel,
        token: str,
        every_s: float,
        missing: Missing = "error",
        live: LiveRun | None = None,
        on_missing: OnMissing = "initial",
    ) -> None:
        """Serve a model.

        Args:
            current: The model.
            token: Token that a request must contain; "": none is needed.
            every_s: Seconds between two checks for a newer checkpoint; 0: no checks.
            missing: Meaning of a column that a row lacks: "error" or "empty", an empty cell.
            live: The memory of the run; None: checkpoints only.
            on_missing: Values of keys without a row, where a look-up names none.
        """
        self._live = live
        self._on_missing: OnMissing = on_missing
        self._look_ups = LookUps(current, live, on_missing)
        self._current = current
        self._token = token.encode()
        self._every_s = every_s
        self._missing: Missing = missing
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "mpips_requests", "Requests", ("path", "status"), registry=self._registry
        )
        self._samples = Counter("mpips_samples", "Samples predicted", registry=self._registry)
        self._seconds = Histogram(
            "mpips_predict_seconds", "Seconds of a prediction", registry=self._registry
        )
        self._rows_found = Counter(
            "mpips_looked_up_rows",
            "Rows looked up; a dense table counts as one",
            ("source",),
            registry=self._registry,
        )
        self._row_seconds = Histogram(
            "mpips_look_up_seconds", "Seconds of a look-up", registry=self._registry
        )
        at_work = Gauge(
            "mpips_live", "1: the memory of a run at work is read", registry=self._registry
        )
        at_work.set_function(lambda: float(self._is_live))
        step = Gauge("mpips_model_step", "Step of the model", registry=self._registry)
        step.set_function(lambda: current.step)
        loaded = Gauge(
            "mpips_model_loaded_seconds", "Unix time of loading", registry=self._registry
        )
        loaded.set_function(lambda: current.loaded_s)
        failed = Gauge(
            "mpips_reload_failed",
            "1: the newest checkpoint cannot be loaded",
            registry=self._registry,
        )
        failed.set_function(lambda: float(bool(current.failure)))

    def app(self) -> Starlette:
        """Return the application."""
        routes = [
            Route("/predict", self._guarded("/predict", self._predict), methods=["POST"]),
            Route(
                "/rows/{table:path}", self._guarded("/rows", self._rows), methods=["GET", "POST"]
            ),
            Route("/metrics", self._guarded("/metrics", self._metrics), methods=["GET"]),
            Route("/health", self._guarded("/health", self._health, free=True), methods=["GET"]),
        ]
        return Starlette(routes=routes, lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Look for newer checkpoints while the server runs."""
        task = asyncio.create_task(self._follow()) if self._every_s else None
        yield
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _follow(self) -> None:
        printed = ""
        while True:
            await asyncio.sleep(self._every_s)
            await run_in_threadpool(self._current.follow)
            if self._live is not None:
                await run_in_threadpool(self._live.follow)
            # Paths are for the owner of the server, not for clients.
            if self._current.failure not in ("", printed):
                printed = self._current.failure
                say(f"mpips serve: still {self._current.name}: {printed}")

    def _guarded(self, path: str, handler: Handler, free: bool = False) -> Handler:
        """Return a handler that requires the token, counts requests, and answers errors with one sentence."""

        async def guarded(request: Request) -> Response:
            try:
                if not free:
                    self._check_token(request)
                response = await handler(request)
            except ClientDisconnect:
                # Nobody receives this answer: it is for the counts.
                response = Response(status_code=400)
            except RequestRefused as refused:
                response = JSONResponse({"error": str(refused)}, refused.status)
            except NoModelYet as error:
                response = JSONResponse({"error": f"{error}: ask again later"}, 503)
            except MpipsError as error:
                response = JSONResponse({"error": str(error)}, 400)
            self._requests.labels(path, str(response.status_code)).inc()
            return response

        return guarded

    def _check_token(self, request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ").strip().encode()
        if self._token and not hmac.compare_digest(given, self._token):
            raise RequestRefused(
                401, "the token is missing or wrong: send Authorization: Bearer TOKEN"
            )

    async def _health(self, request: Request) -> Response:
        current = self._current
        found = {
            "status": "ok",
            "model": current.name,
            "step": current.step,
            "loaded_s": current.loaded_s,
            "reload_failed": bool(current.failure),
            "source": "live" if await run_in_threadpool(lambda: self._is_live) else "checkpoint",
        }
        return JSONResponse(found)

    async def _metrics(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type="text/plain; version=0.0.4")

    async def _predict(self, request: Request) -> Response:
        body = await body_of(request)
        raw = request.headers.get("content-type", "").startswith(RAW)
        started = time.monotonic()
        if raw:
            (values, notes), head = await run_in_threadpool(
                self._predicted, functools.partial(self._of_bytes, body)
            )
            self._note(len(values), started)
            headers = {f"x-mpips-{name}": str(value) for name, value in head.items()}
            headers["x-mpips-shape"] = ",".join(map(str, values.shape))
            if notes:
                headers["x-mpips-notes"] = "; ".join(notes)
            data = np.ascontiguousarray(values, "<f4").tobytes()
            return Response(data, media_type=RAW, headers=headers)
        content = content_of(body)
        if "lines" in content:
            samples, predict = content["lines"], functools.partial(self._of_lines, content)
        else:
            samples = rows_of(content)
            predict = functools.partial(self._of_rows, samples)
        found, head = await run_in_threadpool(self._predicted, predict)
        self._note(len(samples), started)
        # NaN and infinity, which JSON lacks, become null.
        return Response(msgspec.json.encode({**head, **found}), media_type="application/json")

    @property
    def _is_live(self) -> bool:
        return self._live is not None and self._live.follow()

    def _predicted(self, predict: Callable[[Model], T]) -> tuple[T, dict[str, Any]]:
        """Predict from the memory of the run, else from the checkpoint; return the result and its source."""
        with self._current.use() as model:
            if self._live is not None:
                with contextlib.suppress(LiveGone):
                    tables = LiveTables(self._live, model.tables, self._on_missing)
                    found = predict(_of_tables(model, tables))
                    # A task that has pulled nothing has used the checkpoint.
                    if tables.step is not None:
                        head = {"model": model.path.name, "source": "live", "step": tables.step}
                        return found, head
            found = predict(model)
            head = {"model": model.path.name, "source": "checkpoint", "step": model.manifest.step}
            return found, head

    def _note(self, n: int, started: float) -> None:
        self._samples.inc(n)
        self._seconds.observe(time.monotonic() - started)

    @staticmethod
    def _of_bytes(body: bytes, model: Model) -> tuple[Any, tuple[str, ...]]:
        d = model.info.n_features
        if model.info.kind != "dense" or len(body) % (4 * d):
            raise RequestRefused(
                400,
                f"{len(body)} bytes: raw samples are rows of {d} float32 values of a dense model",
            )
        x = np.frombuffer(body, "<f4").reshape(-1, d)
        values = model.predict(x) if model.info.wants == "targets" else model.predict_proba(x)
        return values, model.notes

    def _of_rows(self, rows: list[Any], model: Model) -> dict[str, Any]:
        data = samples_in(rows, model, self._missing)
        try:
            if model.info.wants == "targets":
                numbers = model.predict(data).tolist()
                return {**_notes_of(model), "predictions": numbers}
            probabilities = model.predict_proba(data)
        except DataError as error:
            raise RequestRefused(400, named_by_row(str(error), rows, model.inputs)) from None
        names, labels = model.classes.tolist(), model.labels_of(probabilities)
        predictions = labels.tolist()
        if model.info.wants == "several":
            predictions = [list(compress(names, row)) for row in predictions]
        return {
            **_notes_of(model),
            "classes": names,
            "predictions": predictions,
            "probabilities": probabilities.tolist(),
        }

    @staticmethod
    def _of_lines(content: dict[str, Any], model: Model) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="mpips-") as folder:
            path = Path(folder) / "request.txt"
            path.write_text(lines_of(content, model), encoding="utf-8")
            try:
                columns = model.columns(path)
                if columns is None:
                    columns = {"prediction": model.predict(path)}
            except DataError as error:
                # Clients need not know where the server has its files.
                text = str(error).replace(f"{path}, ", "").replace(str(path), "the lines")
                raise RequestRefused(400, text) from None
            plain = {name: plain_column(values) for name, values in columns.items()}
            notes = [note.replace(str(path), "the lines") for note in model.notes]
            return {"columns": plain, "notes": notes}

    async def _rows(self, request: Request) -> Response:
        asked, raw = await asked_by(request), wants_raw(request)
        started = time.monotonic()
        found, response = await run_in_threadpool(
            self._looked_up, request.path_params["table"], asked, raw
        )
        n = 1 if found.has is None else len(found.has)
        self._rows_found.labels(found.source).inc(n)
        self._row_seconds.observe(time.monotonic() - started)
        return response

    def _looked_up(self, name: str, asked: Asked, raw: bool) -> tuple[LookedUp, Response]:
        if asked.keys is None:
            found = self._look_ups.dense(name)
        else:
            most = MOST_FLOATS if raw else MOST_JSON_FLOATS
            found = self._look_ups.rows(name, asked.keys, asked.on_missing, most)
        return found, response_of(found, asked, raw)


def _of_tables(model: Model, tables: LiveTables) -> Model:
    """Return the model with other tables."""
    other = copy.copy(model)
    other.tables = tables  # type: ignore[assignment]  # a task sees what both have
    return other


def _notes_of(model: Model) -> dict[str, Any]:
    """Return the sentences on the rows that were predicted last, if there are any."""
    return {"notes": list(model.notes)} if model.notes else {}
