"""`mpips ls`: list the runs of a folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from mpips.errors import ConfigError
from mpips.monitor.runs import HEADINGS, RIGHT, cells, optional, summaries
from mpips.terminal.screen import say, state_style
from mpips.terminal.table import print_table


@click.command(short_help="List runs with their state, step, loss, age and size.")
@click.argument("folder", required=False, type=click.Path(file_okay=False))
@click.option("--folder", "same", type=click.Path(file_okay=False), help="The same as FOLDER.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each run.")
def command(folder: str | None, same: str | None, as_json: bool) -> None:
    """List the runs in FOLDER [default: runs], the newest first.

    \b
    epoch     epochs begun, from 1
    loss      of the last epoch if the run is done, else of the last report interval
    lr        learning rate of the newest step, of several the first one
    failures  attempts that failed
    changed   time since the last status
    size      of all files of the run, checkpoints included

    The hosts of elastic runs, and the programs of [producers], follow the table.
    """
    if folder is not None and same is not None:
        raise ConfigError("FOLDER and --folder are both given: leave one of them out")
    folder = folder or same or "runs"
    runs = summaries(Path(folder))
    if as_json:
        for run in runs:
            click.echo(json.dumps(asdict(run)))
        return
    if not runs:
        say(f"mpips ls: no run in {Path(folder).absolute()}", err=False)
        return
    states = {(i + 1, HEADINGS.index("state")): state_style(r.state) for i, r in enumerate(runs)}
    rows = [cells(run) for run in runs]
    print_table([HEADINGS, *rows], right=RIGHT, styles=states, optional=optional(rows))
    for run in runs:
        if run.state == "damaged":
            say(f"{run.name}: {run.note}")
        for line in (*run.hosts, *run.producers):
            say(f"{run.name}: {line}", err=False)
