"""`mpips plot`: draw the curves of runs into a picture."""

from __future__ import annotations

from pathlib import Path

import click

from mpips.cli.runs import folder_option
from mpips.errors import ConfigError
from mpips.monitor.runs import find_run
from mpips.terminal.screen import say

_MOST_RUNS = 32


@click.command(short_help="Draw the curves of runs into a picture.")
@click.argument("names", metavar="RUN...", nargs=-1)
@folder_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("curves.png"),
    show_default=True,
    help="The file, which is replaced; its ending names the format: .png, .svg, .pdf.",
)
@click.option(
    "--x",
    "axis",
    type=click.Choice(("epoch", "samples", "step", "time")),
    help="What the curves are drawn over [default: epoch if all runs count epochs, else samples].",
)
@click.option(
    "--chart",
    "charts",
    multiple=True,
    type=click.Choice(("loss", "metrics", "throughput", "staleness", "workers")),
    help="What is drawn, several times for several [default: all that has something to show].",
)
@click.option("--log", is_flag=True, help="Draw the loss on a logarithmic scale.")
def command(
    names: tuple[str, ...],
    folder: str,
    output: Path,
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
    from mpips.web.run_data import RunData

    found = [find_run(name, Path(folder)) for name in names or (None,)]
    runs = list({run.path: RunData(run.path) for run in found}.values())
    if len(runs) > _MOST_RUNS:
        raise ConfigError(f"{len(runs)} runs: a picture shows at most {_MOST_RUNS}; give fewer")
    picture(runs, output, axis or "", charts, log)
    say(f"mpips plot: {output}")
