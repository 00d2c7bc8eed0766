"""`mpips predict`: predict the samples of a file with a trained model."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command(short_help="Predict the samples of a file with a trained model.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--data", required=True, help="File of samples; labels in it are not read.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write: .csv, .npz or .parquet.  [default: CSV on stdout]",
)
def command(model: Path, data: str, out: Path | None) -> None:
    """Predict the samples of a file with a model that `mpips train` or `mpips run` has trained.

    MODEL is a checkpoint, a folder of checkpoints or a run directory, of which the newest good checkpoint is
    taken. It holds all that prediction needs: the training data is not read. The command works in one
    process, without MPI.

    \b
    prediction           the most probable label as in the training data, or the predicted number
    probability_LABEL    the probability of each label
    Tasks that read their files themselves (kge, mf, word2vec) have other columns: see their pages.
    """
    from mpips.inference.loading import load
    from mpips.inference.writing import columns_of, write, write_csv

    loaded = load(model)
    columns = columns_of(loaded, data)
    for note in (*loaded.refused, *loaded.notes):
        click.echo(note, err=True)
    if out is None:
        write_csv(columns, sys.stdout.buffer)
        sys.stdout.flush()
        return
    write(columns, out)
    n = len(next(iter(columns.values())))
    click.echo(f"mpips predict: {n:,} predictions of {loaded.path} in {out}", err=True)
