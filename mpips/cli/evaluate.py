"""`mpips evaluate`: the metrics of a trained model on a file with labels."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from mpips.cli.choosing import (
    best_option,
    find_model,
    missing_rows_option,
    model_argument,
    say_better,
)
from mpips.cli.runs import folder_option
from mpips.errors import ConfigError
from mpips.terminal.screen import say
from mpips.terminal.table import text_table

if TYPE_CHECKING:
    from mpips.inference.model import Model
    from mpips.inference.stored_tables import OnMissing


@click.command(short_help="Compute the metrics of a trained model on a file.")
@model_argument
@click.option(
    "--data",
    multiple=True,
    required=True,
    help="File of samples with labels, or a quoted pattern of several; may be repeated.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    help="A metric to add: f1, pr_auc, calibration, mae, or one of the task; may be repeated.",
)
@best_option
@folder_option
@missing_rows_option
@click.option(
    "--importance",
    is_flag=True,
    help="Print for each column how much worse a metric becomes when its values are shuffled.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="With --importance: shuffles of each column.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="With --importance: seed of the shuffles, and of the choice of samples.",
)
@click.option(
    "--samples",
    type=click.IntRange(2),
    default=65536,
    show_default=True,
    help="With --importance: samples that are used; of a larger file a random part.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def command(
    model: str,
    data: tuple[str, ...],
    metrics: tuple[str, ...],
    best: bool,
    folder: str,
    on_missing: OnMissing,
    importance: bool,
    repeats: int,
    seed: int,
    samples: int,
    as_json: bool,
) -> None:
    """Compute the metrics of a trained model on a file with labels; writes nothing.

    MODEL is a checkpoint, or a folder of checkpoints, a run directory or the beginning of a run's name, of
    which the newest good checkpoint is taken. The metrics are those that `mpips train` computes of a test
    file. The training data is not read.

    With --importance, shuffle one column after the other, and print the loss of the first --metric, or of the
    one that early stopping watches: its mean and its standard deviation over --repeats shuffles.
    """
    if not importance:
        _refuse_idle()
    from mpips.inference.loading import load
    from mpips.monitor.summary_text import metrics_text

    path = find_model(model, folder)
    loaded = load(path, best=best, on_missing=on_missing)
    if not best:
        say_better(path, loaded.path)
    files = ", ".join(data)
    if importance:
        _show_importance(loaded, data, metrics, (repeats, seed, samples), as_json)
        return
    found = loaded.evaluate(data, metrics)
    for note in (*loaded.refused, *loaded.notes):
        say(note)
    if as_json:
        click.echo(json.dumps({"model": str(loaded.path), "data": files, **found}))
        return
    say(f"{metrics_text(found)}  ({files}; {loaded.path})", err=False)


def _refuse_idle() -> None:
    """Refuse options that have no effect without --importance.

    Raises:
        ConfigError: Names them.
    """
    context = click.get_current_context()
    source = click.core.ParameterSource.COMMANDLINE
    given = [n for n in ("repeats", "seed", "samples") if context.get_parameter_source(n) == source]
    if given:
        names = ", ".join(f"--{name}" for name in given)
        raise ConfigError(
            f"{names}: has no effect without --importance; add it, or leave {names} out"
        )


def _show_importance(
    loaded: Model,
    data: tuple[str, ...],
    metrics: tuple[str, ...],
    numbers: tuple[int, int, int],
    as_json: bool,
) -> None:
    """Print the importance of all columns; `numbers`: shuffles, seed and samples."""
    from mpips.inference.importance import as_plain, more_columns, rows_of_table

    if len(metrics) > 1:
        raise ConfigError(f"--importance takes one --metric, not {', '.join(metrics)}")
    repeats, seed, samples = numbers
    wanted = metrics[0] if metrics else "auto"
    found = loaded.importance(data, wanted, repeats=repeats, seed=seed, samples=samples)
    for note in (*loaded.refused, *loaded.notes):
        say(note)
    files = ", ".join(data)
    if as_json:
        click.echo(json.dumps({"model": str(loaded.path), "data": files, **as_plain(found)}))
        return
    click.echo("\n".join(text_table(rows_of_table(found), right=(1, 2))))
    if more := more_columns(found):
        click.echo(more)
    name = found.metric.replace("_", " ")
    click.echo(f"{name} {found.value:.4f}, {found.n_samples:,} samples  ({files}; {loaded.path})")
