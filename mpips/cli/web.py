"""`mpips web`: show runs on a page in the browser."""

from __future__ import annotations

import getpass
import secrets
import socket
from pathlib import Path

import click

from mpips.cli.runs import folder_option, run_argument
from mpips.errors import CapabilityError, ConfigError
from mpips.monitor.runs import find_run
from mpips.terminal.screen import say

_HOST = "127.0.0.1"


@click.command(short_help="Show runs on a page in the browser.")
@run_argument()
@folder_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default="one that is free",
    help="Port on this machine; it listens on 127.0.0.1 only.",
)
def command(run: str | None, folder: str, port: int) -> None:
    """Serve a page that shows runs while they train and afterwards, until Ctrl-C.

    RUN is a run directory, the beginning of a run's name, or a folder of runs, which the page shows side by
    side [default: all runs in --folder]. Only files of the run directories are read, so the command works on
    any machine that sees them, such as a login node, and costs the training nothing.

    The address that is printed contains a token, which gives access to the runs. From another machine,
    open the tunnel that is printed, then the address.
    """
    where = _where(run, Path(folder))
    try:
        import uvicorn

        from mpips.web.connections import config_of
        from mpips.web.server import PageServer
    except ImportError as error:
        raise CapabilityError(
            f"mpips web needs Starlette and Uvicorn (pip install starlette uvicorn): {error}"
        ) from None
    from mpips.web.runs_data import RunsData

    runs = RunsData(where)
    token = secrets.token_urlsafe(24)
    listening = _listen(port)
    port = listening.getsockname()[1]
    say(f"mpips web: {where} on http://{_HOST}:{port}/{token}/ ; Ctrl-C ends it")
    say(
        f"  from another machine: ssh -L {port}:{_HOST}:{port} {getpass.getuser()}@{socket.gethostname()}"
    )
    page = PageServer(runs, token)
    server = uvicorn.Server(config_of(page.app()))
    page.is_ending = lambda: server.should_exit
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        return
    finally:
        listening.close()


def _where(run: str | None, folder: Path) -> Path:
    """Return the run directory or the folder of runs that is meant.

    Raises:
        ConfigError: It does not exist.
    """
    if run is None:
        if not folder.is_dir():
            raise ConfigError(
                f"{folder.absolute()}: is no folder; give a run directory or a folder of runs"
            )
        return folder
    path = Path(run)
    if path.is_dir() and not (path / "run.json").exists():
        return path
    return find_run(run, folder).path


def _listen(port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        ConfigError: The port cannot be used.
    """
    try:
        return socket.create_server((_HOST, port))
    except OSError as error:
        raise ConfigError(
            f"{_HOST}:{port} cannot be listened on: {error.strerror or error}; choose --port"
        ) from None
