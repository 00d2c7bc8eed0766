"""`mpips diff`: show what differs between two runs."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec

from mpips.cli.runs import folder_option, run_argument
from mpips.monitor.differences import Difference, differences
from mpips.monitor.runs import find_run
from mpips.terminal.screen import say
from mpips.terminal.table import print_table

_LONGEST = 48  # characters of a value that are shown


@click.command(short_help="Show what differs between two runs.")
@run_argument("first", required=True)
@run_argument("second", required=True)
@folder_option
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each difference.")
def command(first: str, second: str, folder: str, as_json: bool) -> None:
    """Show the values of the configuration and, of finished runs, of the result that differ.

    FIRST and SECOND are run directories or beginnings of runs' names. "-" means that a run has no such value.
    """
    runs = [find_run(name, Path(folder)) for name in (first, second)]
    found = differences(*runs)
    if as_json:
        for difference in found:
            click.echo(json.dumps(msgspec.structs.asdict(difference)))
        return
    if not found:
        say("mpips diff: no difference", err=False)
        return
    rows: list[tuple[str, ...]] = [("", *(run.path.name for run in runs))]
    section = ""
    for difference in found:
        if difference.section != section:
            section = difference.section
            rows.append((section, "", ""))
        rows.append((f"  {difference.key}", *_shown(difference)))
    print_table(rows)


def _shown(difference: Difference) -> tuple[str, str]:
    """Return both values, numbers with six digits unless that makes them equal."""
    both = difference.first, difference.second
    short = _rounded(both[0]), _rounded(both[1])
    first, second = both if short[0] == short[1] else short
    return _cut(first), _cut(second)


def _rounded(text: str) -> str:
    try:
        return f"{float(text):.6g}" if "." in text else text
    except ValueError:
        return text


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
