"""The argument RUN and the option --folder of commands that concern one run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

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
