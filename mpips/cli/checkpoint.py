"""`mpips checkpoint`: let a run write a checkpoint now."""

from __future__ import annotations

from pathlib import Path

import click

from mpips.cli.runs import folder_option, run_argument
from mpips.monitor.requesting import request_checkpoint
from mpips.monitor.runs import find_run
from mpips.terminal.screen import say


@click.command(short_help="Let a run write a checkpoint now.")
@run_argument(required=True)
@folder_option
@click.option(
    "--timeout",
    type=click.FloatRange(0.0),
    default=300.0,
    show_default=True,
    help="Seconds to wait for the checkpoint. The request stands afterwards.",
)
def command(run: str, folder: str, timeout: float) -> None:
    """Let a run that `mpips run` started write a checkpoint, as SIGUSR1 to its supervisor does.

    RUN is a run directory or the beginning of a run's name. The command prints the path of the checkpoint
    that is complete after the request. With checkpoint.on_usr1 = "exit" the run then ends.
    """
    found = find_run(run, Path(folder))
    say(str(request_checkpoint(found, timeout, say)), err=False)
