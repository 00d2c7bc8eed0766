"""`mpips history`: what a recorded run did."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mpips.cli.runs import folder_option, run_argument
from mpips.monitor.runs import find_run
from mpips.record.files import read_all, record_folder, recorded_attempts
from mpips.terminal.screen import say

if TYPE_CHECKING:
    from mpips.record.history import Checked

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
    help="Number of the only attempt that is checked [default: all attempts with a record].",
)
def check(run: str, folder: str, attempt: int | None) -> None:
    """Check the promises of the servers in a recorded run.

    Every record was consumed exactly once and in the order of its worker; pulls have seen the own pushes
    before them, never older versions than before and none from the future; the bounds of BSP, SSP and Reject
    hold. After a restart nothing is missing between the attempts, and nothing is counted twice. The checks
    read only the record, and share no code with the servers.
    """
    from mpips.record.history import Checked, check_history
    from mpips.record.restarts import RecordedAttempt, check_restarts

    found = find_run(run, Path(folder))
    attempts, total = [], Checked(breaks=[], notes=[])
    if attempt is None:
        recorded = recorded_attempts(found)
        numbers, total.notes = recorded.numbers, recorded.notes()
    else:
        numbers = [attempt]
    for number in numbers:
        servers, workers = read_all(record_folder(found, number))
        attempts.append(RecordedAttempt(number, servers, workers))
        checked = check_history(servers, workers)
        of = f"attempt {number}: " if len(numbers) > 1 else ""
        total.breaks += [f"{of}{line}" for line in checked.breaks]
        total.notes += [f"{of}{note}" for note in checked.notes]
        total.n_records += checked.n_records
        total.n_pulls += checked.n_pulls
    if attempt is None:
        restarts = check_restarts(attempts)
        total.breaks += restarts.breaks
        total.notes += restarts.notes
    _show(total, found.path.name + (f" in {n} attempts" if (n := len(numbers)) > 1 else ""))


def _show(checked: Checked, run: str) -> None:
    """Print the result of a check.

    Raises:
        click.exceptions.Exit: A rule is broken; code 1.
    """
    for line in checked.breaks[:_SHOWN]:
        say(f"mpips history: {line}", err=False)
    if (n := len(checked.breaks)) > _SHOWN:
        say(f"mpips history: and {n - _SHOWN} more", err=False)
    for note in checked.notes:
        say(f"note: {note}", err=False)
    counts = f"{checked.n_records:,} records and {checked.n_pulls:,} pulls of dense tables of {run}"
    if checked.breaks:
        say(f"mpips history: {counts}: {len(checked.breaks)} breaks", err=False)
        raise click.exceptions.Exit(1)
    say(f"mpips history: {counts}: no break", err=False)
