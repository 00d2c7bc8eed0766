"""`mpips predict`: predict the samples of a file with a trained model."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import click

from mpips.cli.choosing import best_option


@click.command(short_help="Predict the samples of a file with a trained model.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--data",
    required=True,
    help="File of samples, or a quoted pattern of several; labels are not read.",
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
@best_option
def command(model: Path, data: str, out: Path | None, timeout: float | None, best: bool) -> None:
    """Predict the samples of a file with a model that `mpips train` or `mpips run` has trained.

    MODEL is a checkpoint, a folder of checkpoints or a run directory, of which the newest good checkpoint is
    taken. It holds all that prediction needs: the training data is not read. The file is read and predicted
    block by block, so it may be larger than memory. Under mpirun the ranks share the blocks; the output is
    that of one process.

    \b
    prediction           the most probable label as in the training data, or the predicted number
    probability_LABEL    the probability of each label
    Tasks that read their files themselves (kge, mf, word2vec) have other columns: see their pages.
    """
    from mpips.inference.model import load_model
    from mpips.inference.streaming import TIMEOUT_S, predict_file
    from mpips.mpi.launch import launched_rank

    written = predict_file(
        model,
        data,
        out,
        lambda note: click.echo(note, err=True),
        functools.partial(load_model, best=best),
        timeout or TIMEOUT_S,
    )
    if launched_rank() == 0:
        sys.stdout.flush()
        if out is not None:
            click.echo(
                f"mpips predict: {written.n:,} predictions of {written.model} in {out}", err=True
            )
