"""`mpips plot`: draw the curves of runs into a picture."""

from __future__ import annotations

from pathlib import Path

import click

from mpips.cli.output import check_new, output_options, write_new
from mpips.cli.runs import folder_option, runs_named
from mpips.terminal.screen import say

_MOST_RUNS = 32


@click.command(short_help="Draw the curves of runs into a picture.")
@click.argument("names", metavar="RUN...", nargs=-1)
@folder_option
@output_options("curves.png", " Its ending names the format: .png, .svg, .pdf.")
@click.option(
    "--x",
    "axis",
    type=click.Choice(("epoch", "samples", "step", "time")),
    help="Axis of the curves [default: epoch if all runs count epochs, else samples].",
)
@click.option(
    "--chart",
    "charts",
    multiple=True,
    type=click.Choice(("loss", "metrics", "throughput", "staleness", "workers")),
    help="A chart; give the option several times for several [default: all that have numbers].",
)
@click.option("--log", is_flag=True, help="Draw the loss on a logarithmic scale.")
def command(
    names: tuple[str, ...],
    folder: str,
    output: Path,
    force: bool,
    axis: str | None,
    charts: tuple[str, ...],
    log: bool,
) -> None:
    """Draw loss, metrics, throughput, staleness and the time of the workers, all runs in one picture.

    RUN is a run directory or the beginning of a run's name [default: the newest run in --folder]. The best
    evaluation of each metric is marked. The command needs matplotlib (pip install matplotlib).

    \b
    mpips plot RUN -o curves.svg
    mpips plot RUN RUN --x time --chart loss --chart metrics
    """
    from mpips.web.plot import picture

    check_new(output, force)
    runs = runs_named(names, folder, _MOST_RUNS, "a picture")
    write_new(output, picture(runs, output.suffix, axis or "", charts, log), force)
    say(f"mpips plot: {output}")
