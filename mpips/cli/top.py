"""`mpips top`: what a run does, from its directory."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mpips.errors import CapabilityError
from mpips.monitor.top import View, as_dict, find_run, look, page
from mpips.rundir.directory import RunFolder

if TYPE_CHECKING:
    from rich.text import Text

_WIDTH_OF_A_FILE = 100


@click.command(short_help="Show what a run does, from its directory.")
@click.argument("run", required=False)
@click.option("--folder", type=click.Path(file_okay=False), default="runs", show_default=True)
@click.option("--once", is_flag=True, help="Print it once and end.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON each time.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    default=1.0,
    show_default=True,
    help="Seconds between looks.",
)
def command(run: str | None, folder: str, once: bool, as_json: bool, interval: float) -> None:
    """Show a live table of the ranks of a run that `mpips run` has started.

    RUN is a run directory, the beginning of a run's name, or nothing: the newest in runs/. Only files
    are read, so any machine that sees the directory will do. Ends when the run ends, or with Ctrl-C. Of a run
    that is done it shows the summary.

    rate/s: samples of a worker (or its clocks), records of a server; stale: mean lately / largest ever;
    queue: records not consumed yet; MB/s: pushed and pulled together; heard: age of the last sign of
    life ("!": old).
    """
    found = find_run(run, Path(folder))
    try:
        if as_json:
            _as_lines(found, once, interval)
        elif once:
            click.echo(_text(look(found)))
        else:
            _live(found, interval)
    except KeyboardInterrupt:
        return


def _text(view: View) -> str:
    width = shutil.get_terminal_size((_WIDTH_OF_A_FILE, 0)).columns
    return "\n".join(page(view, width))


def _as_lines(run: RunFolder, once: bool, interval: float) -> None:
    while True:
        view = look(run)
        click.echo(json.dumps(as_dict(view)))
        if once or not view.alive:
            return
        time.sleep(interval)


def _live(run: RunFolder, interval: float) -> None:
    """Redraw until the run ends.

    Raises:
        CapabilityError: The package rich is not here.
    """
    try:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        raise CapabilityError(
            "the live table needs the package rich (pip install rich); --once needs nothing"
        ) from None
    console = Console()
    if not console.is_terminal:
        click.echo(_text(look(run)))
        return
    with Live(console=console, auto_refresh=False, screen=True) as live:
        # Live hides it, and a process that is killed could not show it again.
        console.show_cursor(True)
        while True:
            view = look(run)
            lines = page(view, console.width, console.height)
            text = Text("\n".join(lines), no_wrap=True, overflow="crop")
            live.update(_painted(text, view), refresh=True)
            if not view.alive:
                break
            time.sleep(interval)
    click.echo(_text(view))


def _painted(text: Text, view: View) -> Text:
    """Colour what wants to be seen: the state, the headings, ranks that are silent."""
    text.highlight_words([view.state], "bold green" if view.alive else "bold red")
    text.highlight_regex(r"(?m)^rank .*heard$", "bold")
    text.highlight_regex(r"(?m)^.* !$", "bold yellow")
    return text
