"""`mpips evaluate`: the metrics of a trained model on a file with labels."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mpips.cli.choosing import best_option
from mpips.terminal.screen import say


@click.command(short_help="Compute the metrics of a trained model on a file.")
@click.argument("model", type=click.Path(path_type=Path))
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
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def command(
    model: Path, data: tuple[str, ...], metrics: tuple[str, ...], best: bool, as_json: bool
) -> None:
    """Compute the metrics of a trained model on a file with labels; writes nothing.

    MODEL is a checkpoint, a folder of checkpoints or a run directory, of which the newest good checkpoint is
    taken. The metrics are those that `mpips train` computes of a test file. The training data is not read.
    """
    from mpips.inference.loading import load
    from mpips.monitor.summary_text import metrics_text

    loaded = load(model, best=best)
    found = loaded.evaluate(data, metrics)
    files = ", ".join(data)
    for note in (*loaded.refused, *loaded.notes):
        say(note)
    if as_json:
        click.echo(json.dumps({"model": str(loaded.path), "data": files, **found}))
        return
    say(f"{metrics_text(found)}  ({files}; {loaded.path})", err=False)
