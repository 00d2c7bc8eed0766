"""`mpips stop`: end a run after a last checkpoint."""

from __future__ import annotations

from pathlib import Path

import click

from mpips.cli.runs import folder_option, run_argument
from mpips.monitor.requesting import request_stop
from mpips.monitor.runs import find_run
from mpips.terminal.screen import say


@click.command(short_help="End a run after a last checkpoint.")
@run_argument(required=True)
@folder_option
@click.option("--now", is_flag=True, help="End it without a checkpoint.")
@click.option(
    "--timeout",
    type=click.FloatRange(0.0),
    default=300.0,
    show_default=True,
    help="Seconds to wait for the end. The request stands afterwards.",
)
def command(run: str, folder: str, now: bool, timeout: float) -> None:
    """End a run that `mpips run` started, as SIGTERM to its supervisor does: after a last checkpoint.

    RUN is a run directory or the beginning of a run's name. The request goes through the run directory, so
    the command works on any machine that sees it. `mpips run RUN` continues the run.
    """
    found = find_run(run, Path(folder))
    view = request_stop(found, now, timeout, say)
    checkpoint = view.status.checkpoint if view.status is not None else ""
    saved = f"; checkpoint {Path(checkpoint).name}" if checkpoint else ""
    again = "" if view.state == "done" else f"; continue with: {found.again}"
    say(f"mpips stop: {found.path.name} has ended ({view.state}){saved}{again}", err=False)
