"""The option `--best` of commands that use a trained model."""

from __future__ import annotations

import click

best_option = click.option(
    "--best",
    is_flag=True,
    help="Take the best checkpoint of the run, which checkpoint.keep_best = true marks, not the newest one.",
)
