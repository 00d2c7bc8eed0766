"""The argument RUN and the option --folder of commands that concern runs, and the runs that they name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from mpips.errors import ConfigError
from mpips.monitor.runs import find_run

if TYPE_CHECKING:
    from mpips.web.run_data import RunData

Command = TypeVar("Command", bound=Callable[..., Any])


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of runs that begin like the word at the cursor, and let the shell add folders."""
    folder = Path(ctx.params.get("folder") or "runs")
    names = sorted(path.parent.name for path in folder.glob("*/run.json"))
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="dir")]


def run_argument(name: str = "run", required: bool = False) -> Callable[[Command], Command]:
    """Return the decorator of an argument that names a run, see `mpips.monitor.runs.find_run`."""
    return click.argument(name, required=required, shell_complete=_complete)


folder_option = click.option(
    "--folder",
    type=click.Path(file_okay=False),
    default="runs",
    show_default=True,
    help="Folder of the run directories.",
)


def runs_named(names: Sequence[str], folder: str, most: int, what: str) -> list[RunData]:
    """Return the runs that are named, each once; without names the newest one of the folder.

    Args:
        names: Run directories, or beginnings of names of runs; see `mpips.monitor.runs.find_run`.
        folder: The folder of the runs.
        most: Greatest number of runs.
        what: Name of the result for the message, such as "a page".

    Raises:
        ConfigError: There is no such run, or there are more runs.
    """
    from mpips.web.run_data import RunData

    found = [find_run(name, Path(folder)) for name in names or (None,)]
    runs = list({run.path: RunData(run.path) for run in found}.values())
    if len(runs) > most:
        raise ConfigError(f"{len(runs)} runs: {what} shows at most {most}; give fewer")
    return runs
