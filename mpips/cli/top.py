"""`mpips top`: show the state of a run from the files of its run directory."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mpips.cli.runs import folder_option, run_argument
from mpips.monitor.runs import find_run
from mpips.monitor.sparkline import BLOCKS, PLAIN
from mpips.monitor.top import TopView, as_dict, look, page
from mpips.rundir.directory import RunFolder

if TYPE_CHECKING:
    from rich.text import Text

_WIDTH_OF_A_FILE = 100  # columns, where the output is no terminal


@click.command(short_help="Show the ranks of a run and what each is doing.")
@run_argument()
@folder_option
@click.option("--once", is_flag=True, help="Print the table once and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON instead of each table.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two updates.",
)
def command(run: str | None, folder: str, once: bool, as_json: bool, interval: float) -> None:
    """Show a live table of the ranks of a run that `mpips run` started.

    RUN is a run directory or the beginning of a run's name [default: the newest run in --folder]. Only
    files are read, so the command works on any machine that sees the run directory. It exits when the run
    ends, or on Ctrl-C. For a finished run it prints the summary.

    The curves above the table are those of the whole run over time, with the first and the last value.

    \b
    clock   clocks (usually steps) that the worker has completed
    rate/s  samples, or clocks, of a worker; records of a server; per second
    stale   staleness of the applied updates: recent mean / largest
    queue   records that the server has not consumed yet
    MB/s    pushed and pulled together
    heard   time since the last report of the rank; "!": overdue
    """
    found = find_run(run, Path(folder))
    try:
        if as_json:
            _print_json(found, once, interval)
        elif once:
            click.echo(_text(look(found)))
        else:
            _show_live(found, interval)
    except KeyboardInterrupt:
        return


def _text(view: TopView) -> str:
    width = shutil.get_terminal_size((_WIDTH_OF_A_FILE, 0)).columns
    return "\n".join(page(view, width, levels=_levels(sys.stdout.encoding)))


def _levels(encoding: str | None) -> str:
    """Return the characters of curves that an output with this encoding can have."""
    try:
        BLOCKS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN
    return BLOCKS


def _print_json(run: RunFolder, once: bool, interval: float) -> None:
    """Print a line of JSON every `interval` seconds until the run ends, or one line if `once`."""
    while True:
        view = look(run)
        click.echo(json.dumps(as_dict(view)))
        if once or not view.alive:
            return
        time.sleep(interval)


def _show_live(run: RunFolder, interval: float) -> None:
    """Redraw the table every `interval` seconds until the run ends; print it once without a terminal."""
    # rich takes a tenth of a second to import, which the other forms of output do not need.
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        click.echo(_text(look(run)))
        return
    with Live(console=console, auto_refresh=False, screen=True) as live:
        # Show the cursor, which Live hides: a killed process could not show it again.
        console.show_cursor(True)
        while True:
            view = look(run)
            lines = page(view, console.width, console.height, _levels(console.encoding))
            text = Text("\n".join(lines), no_wrap=True, overflow="crop")
            live.update(_coloured(text, view), refresh=True)
            if not view.alive:
                break
            time.sleep(interval)
    click.echo(_text(view))


def _coloured(text: Text, view: TopView) -> Text:
    """Colour the state of the run, the heading of the table, and the rows of overdue ranks; return `text`."""
    text.highlight_words([view.state], "bold green" if view.alive else "bold red")
    text.highlight_regex(r"(?m)^rank .*heard$", "bold")
    text.highlight_regex(r"(?m)^.* !$", "bold yellow")
    return text
