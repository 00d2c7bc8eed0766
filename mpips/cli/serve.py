"""`mpips serve`: answer look-ups and predictions over HTTP."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mpips.cli.choosing import best_option, find_model, missing_rows_option, model_argument
from mpips.cli.runs import folder_option
from mpips.errors import CapabilityError, ConfigError
from mpips.terminal.screen import say

if TYPE_CHECKING:
    from mpips.inference.current import CurrentModel
    from mpips.inference.live import LiveRun
    from mpips.inference.parsing import Missing
    from mpips.inference.stored_tables import OnMissing


@click.command(short_help="Answer look-ups and predictions over HTTP, also while a run trains.")
@model_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port; 0: one that is free.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the token that requests must bring.  [default: a new one is printed]",
)
@click.option("--no-token", is_flag=True, help="Ask for no token; only on a loopback address.")
@click.option(
    "--follow",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    help="Seconds between two checks for a newer checkpoint; 0: none.",
)
@click.option(
    "--missing",
    type=click.Choice(["error", "empty"]),
    default="error",
    show_default=True,
    help="Meaning of a column that a row lacks: the request is refused, or the cell is empty.",
)
@click.option(
    "--source",
    type=click.Choice(["auto", "checkpoint"]),
    default="auto",
    show_default=True,
    help="auto: of a run at work the memory of its servers, if all are on this node, else the newest "
    "checkpoint; checkpoint: never the memory.",
)
@missing_rows_option
@best_option
@folder_option
def command(
    model: str,
    host: str,
    port: int,
    token_file: Path | None,
    no_token: bool,
    follow: float,
    missing: Missing,
    source: str,
    on_missing: OnMissing,
    best: bool,
    folder: str,
) -> None:
    """Answer look-ups and predictions over HTTP, of a trained model or of a run at work, until Ctrl-C.

    MODEL is a checkpoint, a folder of checkpoints, a run directory or the beginning of a run's name. For a
    folder the newest good checkpoint is served, and a newer one takes its place without an error for any
    request; with --best the best one. If the run is at work and its servers are on this node, their memory is
    served; answers name the source and the step.

    \b
    POST /predict       {"rows": [[1.5, 2], ...]} or {"rows": [{"column": value}, ...]}
    POST /predict       {"lines": ["u1,?"]} for kge, mf, word2vec: lines as for mpips predict
    GET  /rows/TABLE    rows of a table: ?keys=1,2
    POST /rows/TABLE    {"keys": [1, 2]} or {"ids": ["u1"], "column": "user"}
    GET  /health        the checkpoint that is loaded
    GET  /metrics       for Prometheus
    """
    path = find_model(model, folder)
    token = _token(host, token_file, no_token)
    try:
        import uvicorn

        from mpips.inference.serving import Service
        from mpips.web.connections import config_of
    except ImportError as error:
        raise CapabilityError(
            f"mpips serve needs Starlette, Uvicorn and prometheus-client (pip install starlette uvicorn "
            f"prometheus-client): {error}"
        ) from None
    from mpips.inference.current import CurrentModel

    live = _live_of(path) if source == "auto" and not best else None
    current = CurrentModel(path, best, on_missing, needed=live is None or not live.follow())
    listening = _listen(host, port)
    place = f"http://{host if ':' not in host else f'[{host}]'}:{listening.getsockname()[1]}"
    say(f"mpips serve: {_what(current, live)} on {place}; Ctrl-C ends it")
    bearer = f' -H "Authorization: Bearer {token}"' if token else ""
    say(f"  curl{bearer} {place}/health")
    app = Service(current, token, follow, missing, live, on_missing).app()
    try:
        uvicorn.Server(config_of(app)).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        listening.close()


def _live_of(path: Path) -> LiveRun | None:
    """Return the memory of the run in `path`; None: another folder."""
    from mpips.inference.live import LiveRun
    from mpips.rundir.directory import RunFolder

    run = RunFolder(path)
    return LiveRun(run.info().token) if run.info_file.exists() else None


def _what(current: CurrentModel, live: LiveRun | None) -> str:
    """Return what is served, for people."""
    model = current.name or f"no model ({current.failure})"
    if live is None:
        return model
    return f"memory of the run, {model}" if live.follow() else f"{model} ({live.why})"


def _token(host: str, file: Path | None, none: bool) -> str:
    """Return the token; "" for none.

    Raises:
        ConfigError: The options contradict each other, the file has no token, or a public address none.
    """
    if file is not None and none:
        raise ConfigError("--token-file and --no-token are both given: leave one of them out")
    if none:
        try:
            private = host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            private = False
        if not private:
            raise ConfigError(
                f"--no-token with --host {host}: anybody could use it; use 127.0.0.1, or a token"
            )
        return ""
    if file is None:
        return secrets.token_urlsafe(24)
    try:
        token = file.read_text().strip()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    if len(token) < 16 or not token.isascii() or not token.isprintable():
        raise ConfigError(f"{file}: must contain a token of at least 16 printable ASCII characters")
    return token


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        ConfigError: The address cannot be used.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"{host}:{port} cannot be listened on: {error.strerror or error}; choose --port"
        ) from None
