"""`mpips bench`: measure mpips against baselines on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mpips.bench.suites import SUITES

_NAMES = [*SUITES, "all"]
_SUITE_LIST = "\n".join(f"  {name:<10} {what}" for name, (_, what) in SUITES.items())


@click.command(
    help="Measure mpips, and in the same run what it is compared with.\n\n\b\n"
    f"{_SUITE_LIST}\n  all        all of these but plan, recovery and scale\n\n"
    "Each ratio is the median of ratios taken turn by turn. Suites that need ranks start mpirun "
    "themselves. Nothing else should run meanwhile."
)
@click.argument("suite", type=click.Choice(_NAMES))
@click.option(
    "--repetitions", type=click.IntRange(1, 1000), default=5, help="Turns of each measurement."
)
@click.option("--quick", is_flag=True, help="Small and short: does it run here?")
@click.option(
    "--seconds",
    type=click.FloatRange(1.0),
    default=60.0,
    help="scale: how long to look for leaks.",
)
@click.option(
    "--kills",
    type=click.IntRange(0),
    help="recovery: how many processes to kill at random [default: 10; with --quick 0].",
)
@click.option(
    "--seed", type=click.IntRange(1), default=None, help="recovery: of what is drawn at random."
)
@click.option(
    "--nodes", type=click.IntRange(1, 2), default=None, help="2: network namespaces (root)."
)
@click.option("--json", "as_json", is_flag=True, help="End with one line of JSON.")
@click.option(
    "--plot", "plot_file", type=click.Path(dir_okay=False, path_type=Path), help="Write a PNG."
)
@click.option(
    "--calibration",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where planning finds what was measured [default: in the user's cache].",
)
def command(
    suite: str,
    repetitions: int,
    quick: bool,
    seconds: float,
    kills: int | None,
    seed: int | None,
    nodes: int | None,
    as_json: bool,
    plot_file: Path | None,
    calibration: Path | None,
) -> None:
    """See help above."""
    from mpips.bench import report
    from mpips.bench.launching import Options
    from mpips.bench.suites import run_suite

    if kills is None:
        kills = 0 if quick else 10
    options = Options(
        repetitions=repetitions, quick=quick, seconds=seconds, kills=kills, seed=seed or 0
    )
    found = run_suite(suite, options, nodes or 0)
    click.echo(report.as_text(found))
    if plot_file is not None:
        report.plot(found, plot_file)
    # Short runs say nothing about speed.
    if not quick:
        path = calibration or report.calibration_path()
        report.write_calibration(found, path)
        click.echo(f"calibration: {path}")
    if as_json:
        click.echo(json.dumps(report.as_json(found)))
