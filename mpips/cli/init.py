"""`mpips init`: write a commented job file for a data file."""

from __future__ import annotations

from pathlib import Path

import click

from mpips.errors import ConfigError


@click.command(short_help="Write a commented job file for a data file.")
@click.argument("train")
@click.option("--test", default="", help="File to evaluate on.")
@click.option("--label", help="Where the labels are, as data.label, if no name tells it.")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("job.toml"),
    show_default=True,
    help="Job file to write.",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def command(train: str, test: str, label: str | None, out: Path, force: bool) -> None:
    """Look at the data file TRAIN and write a commented job file with what was found and a task for it.

    The whole file is read, so that what it contains is accepted. Start the job with `mpips run job.toml`.
    """
    from mpips.training.drafting import draft

    if out.exists() and not force:
        raise ConfigError(
            f"{out}: already exists; use --force to replace it, or -o for another name"
        )
    text = draft(train, test, label)
    try:
        out.write_text(text)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror}") from None
    click.echo(text.partition("\n\n")[0])
    click.echo(f"mpips init: wrote {out}; start it with: mpips run {out}")
