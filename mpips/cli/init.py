"""`mpips init`: write a commented job file for a data file."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from mpips.cli.output import check_new, write_new
from mpips.errors import ConfigError


@click.command(short_help="Write a commented job file for a data file.")
@click.argument("train")
@click.option("--test", default="", help="File to evaluate on.")
@click.option("--label", help="Column of the labels, as data.label, where none has a usual name.")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("job.toml"),
    show_default=True,
    help="Job file to write.",
)
@click.option(
    "--task", default="", help="kge, mf or word2vec: the data is triples, ratings or text."
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def command(train: str, test: str, label: str | None, out: Path, task: str, force: bool) -> None:
    """Look at the data file TRAIN and write a commented job file with what was found and a task for it.

    The whole file is read, so that what it contains is accepted. Samples with features and labels decide
    about the task; for triples of a graph, ratings or text name it with --task. Start the job with
    `mpips run job.toml`.
    """
    from mpips.training.drafting import draft
    from mpips.training.drafting_own import draft_own

    check_new(out, force)
    if task and label is not None:
        raise ConfigError(f"--label has no effect with --task {task}, whose files have no labels")
    text = draft_own(task, train, test) if task else draft(train, test, label)
    write_new(out, text.encode(), force)
    click.echo(text.partition("\n\n")[0])
    quoted = shlex.quote(str(out))
    click.echo(
        f"mpips init: wrote {out}; start it with: mpips run {quoted}, or mpips train {quoted} --save FOLDER"
    )
