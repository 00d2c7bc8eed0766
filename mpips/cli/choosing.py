"""Options of commands that use a trained model."""

from __future__ import annotations

from pathlib import Path

import click

from mpips.cli.runs import run_argument
from mpips.terminal.screen import say

model_argument = run_argument("model", required=True)

best_option = click.option(
    "--best",
    is_flag=True,
    help="Take the best checkpoint of the run, which checkpoint.keep_best = true marks, not the newest one.",
)
missing_rows_option = click.option(
    "--on-missing",
    type=click.Choice(["initial", "zero", "error"]),
    default="initial",
    show_default=True,
    help="Values of keys for which a table has no row: the initial ones, zeros, or an error.",
)


def find_model(model: str, folder: str) -> Path:
    """Return the path of the model that the user named.

    Args:
        model: A checkpoint, a folder of checkpoints, a run directory, or the beginning of a run's name as
            `mpips ls` shows it. A path that exists wins over a name.
        folder: The folder of the runs.

    Raises:
        ConfigError: There is nothing of this name. A path with several parts is returned as it is, and what
            opens it raises the error.
    """
    from mpips.errors import ConfigError
    from mpips.monitor.runs import find_run

    path = Path(model)
    if path.exists() or len(path.parts) != 1:
        return path
    try:
        return find_run(model, Path(folder)).path
    except ConfigError as error:
        raise ConfigError(f"no folder '{model}' here, and {error}") from None


def say_better(model: Path, taken: Path) -> None:
    """Print a note if a run has marked a checkpoint as better than the newest one, which is taken.

    Args:
        model: The argument of the command: a checkpoint, a folder of checkpoints or a run directory.
        taken: The checkpoint that is taken.
    """
    from mpips.checkpoint.find import is_checkpoint, order
    from mpips.checkpoint.folder import find_folder
    from mpips.checkpoint.reader import open_checkpoint
    from mpips.errors import CheckpointError, ConfigError

    if is_checkpoint(model):
        return
    try:
        best = order(find_folder(model)).best
        if best is None or best.path == taken:
            return
        with open_checkpoint(best.path) as checkpoint:
            mark = checkpoint.manifest.best
    except (CheckpointError, ConfigError):
        return  # a checkpoint has just been removed
    if mark is not None:
        why = f"{mark.metric.replace('_', ' ')} {mark.value:.4f} after epoch {mark.epoch}"
        say(
            f"{taken.name} is the newest checkpoint, {best.path.name} the best one ({why}): --best takes that"
        )
