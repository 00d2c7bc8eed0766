"""`mpips history`: what a recorded run did."""

from __future__ import annotations

from pathlib import Path

import click

from mpips.cli.runs import folder_option, run_argument
from mpips.monitor.runs import find_run
from mpips.record.files import read_all, record_folder
from mpips.terminal.screen import say

_SHOWN = 20  # breaks that are printed


@click.group(name="history", short_help="Check what a recorded run did.")
def command() -> None:
    """Check the history of a run with monitor.record = true."""


@command.command(
    name="check",
    epilog="Exit codes: 0 no break was found, 1 a rule is broken, 2 there is no record.",
)
@run_argument(required=True)
@folder_option
@click.option(
    "--attempt",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Number of the recorded attempt.",
)
def check(run: str, folder: str, attempt: int) -> None:
    """Check the promises of the servers in a recorded run.

    Every record was consumed exactly once and in the order of its worker; pulls have seen the own pushes
    before them, never older versions than before and none from the future; the bounds of BSP, SSP and Reject
    hold. The checks read only the record, and share no code with the servers.
    """
    from mpips.record.history import check_history

    found = find_run(run, Path(folder))
    servers, workers = read_all(record_folder(found, attempt))
    checked = check_history(servers, workers)
    for line in checked.breaks[:_SHOWN]:
        say(f"mpips history: {line}", err=False)
    if (n := len(checked.breaks)) > _SHOWN:
        say(f"mpips history: and {n - _SHOWN} more", err=False)
    for note in checked.notes:
        say(f"note: {note}", err=False)
    counts = (
        f"{checked.n_records:,} records and {checked.n_pulls:,} pulls of dense tables of "
        f"{found.path.name}"
    )
    if checked.breaks:
        say(f"mpips history: {counts}: {len(checked.breaks)} breaks", err=False)
        raise click.exceptions.Exit(1)
    say(f"mpips history: {counts}: no break", err=False)
