"""`mpips predict`: predict the samples of a file with a trained model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mpips.cli.choosing import (
    best_option,
    find_model,
    missing_rows_option,
    model_argument,
    say_better,
)
from mpips.cli.runs import folder_option
from mpips.config.schema import parse_assignment
from mpips.errors import ConfigError
from mpips.terminal.screen import say

if TYPE_CHECKING:
    from mpips.inference.stored_tables import OnMissing


@click.command(short_help="Predict the samples of a file with a trained model.")
@model_argument
@click.option(
    "--data",
    multiple=True,
    required=True,
    help="File of samples, or a quoted pattern of several; may be repeated. Labels are not read.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write: .csv, .npz or .parquet.  [default: CSV on stdout]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    help="Under mpirun: seconds after which a rank that does nothing ends the command.  [default: 300]",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the task that concerns prediction alone: options.top of kge and mf, "
    "options.neighbours of word2vec.",
)
@best_option
@folder_option
@missing_rows_option
def command(
    model: str,
    data: tuple[str, ...],
    out: Path | None,
    timeout: float | None,
    assignments: tuple[str, ...],
    best: bool,
    folder: str,
    on_missing: OnMissing,
) -> None:
    """Predict the samples of a file with a model that `mpips train` or `mpips run` has trained.

    MODEL is a checkpoint, or a folder of checkpoints, a run directory or the beginning of a run's name, of
    which the newest good checkpoint is taken. It holds all that prediction needs: the training data is not
    read. The file is read and predicted block by block, so it may be larger than memory. Under mpirun the
    ranks share the blocks; the output is that of one process.

    \b
    prediction           the most probable label as in the training data, or the predicted number
    probability_LABEL    the probability of each label
    Tasks that read their files themselves (kge, mf, word2vec) have other columns: see their pages.
    """
    from mpips.data.several import given_files
    from mpips.inference.streaming import TIMEOUT_S, predict_file
    from mpips.mpi.launch import launched_rank

    path = find_model(model, folder)
    options = dict(map(_option, assignments))
    written = predict_file(
        path,
        given_files(data) or "",
        out,
        say,
        timeout or TIMEOUT_S,
        best,
        options,
        on_missing,
    )
    if launched_rank() == 0:
        sys.stdout.flush()
        if out is not None:
            if not best:
                say_better(path, written.model)
            say(f"mpips predict: {written.n:,} predictions of {written.model} in {out}")


def _option(text: str) -> tuple[str, Any]:
    """Return the option of the task in an argument of --set.

    Raises:
        ConfigError: It is another key.
    """
    key, value = parse_assignment(text)
    section, _, name = key.partition(".")
    if section != "options" or not name:
        raise ConfigError(
            f"--set {text}: mpips predict has options of the task alone, such as options.top=5"
        )
    return name, value
