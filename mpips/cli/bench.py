"""`mpips bench`: measure mpips against baselines on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mpips.bench.suites import ALL, SUITES

_NAMES = [*SUITES, "all"]
_OTHERS = [name for name in SUITES if name not in ALL]
_SUITE_LIST = "\n".join(f"  {name:<11} {what}" for name, (_, what) in SUITES.items())


@click.command(
    help="Measure mpips and its baselines in the same run.\n\n\b\n"
    f"{_SUITE_LIST}\n  all         all of these except "
    f"{', '.join(_OTHERS[:-1])} and {_OTHERS[-1]}\n\n"
    "Measurements of mpips and of a baseline alternate; a reported ratio is the median over the "
    "repetitions. Suites that need ranks start mpirun themselves. Run nothing else on the machine "
    "meanwhile.",
    short_help="Measure mpips and its baselines on this machine.",
)
@click.argument("suite", type=click.Choice(_NAMES))
@click.option(
    "--repetitions",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="Repetitions of each measurement.",
)
@click.option(
    "--quick", is_flag=True, help="Small sizes, short runs: only test that the suite works here."
)
@click.option(
    "--seconds",
    type=click.FloatRange(1.0),
    default=60.0,
    show_default=True,
    help="soak: length of the run in seconds.",
)
@click.option(
    "--workers",
    type=click.IntRange(1000, 65_536),
    help="scale: imitate this number of workers in one process, and measure how figures grow.",
)
@click.option(
    "--servers",
    type=click.IntRange(1, 65_535),
    help="scale: number of imitated servers [default: a tenth of --workers].",
)
@click.option(
    "--kills",
    type=click.IntRange(0),
    help="recovery: number of processes to kill at random [default: 10; with --quick 0].",
)
@click.option(
    "--matrix",
    is_flag=True,
    help="recovery: instead, kill at every kind of place in every kind of job (about 200 times).",
)
@click.option(
    "--seed", type=click.IntRange(1), default=None, help="recovery: seed of the random choices."
)
@click.option("--check", is_flag=True, help="gpu: check values on the device, and measure nothing.")
@click.option(
    "--nodes",
    type=click.IntRange(1, 2),
    default=None,
    help="2: imitate two nodes by network namespaces (needs root).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON at the end.")
@click.option(
    "--plot",
    "plot_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the results into this file, such as bench.png.",
)
@click.option(
    "--calibration",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the measured costs here, for mpips plan [default: in the user's cache].",
)
def command(
    suite: str,
    repetitions: int,
    quick: bool,
    seconds: float,
    workers: int | None,
    servers: int | None,
    kills: int | None,
    matrix: bool,
    seed: int | None,
    check: bool,
    nodes: int | None,
    as_json: bool,
    plot_file: Path | None,
    calibration: Path | None,
) -> None:
    """Run a suite, print its findings, and write the calibration file."""
    from mpips.bench import report
    from mpips.bench.launching import Options
    from mpips.bench.suites import run_suite

    if matrix and kills:
        raise click.UsageError("--matrix takes the place of --kills: give one of them")
    if kills is None:
        kills = 0 if quick or matrix else 10
    options = Options(
        repetitions=repetitions,
        quick=quick,
        seconds=seconds,
        workers=workers or 0,
        servers=servers or 0,
        kills=kills,
        matrix=matrix,
        seed=seed or 0,
        check=check,
    )
    found = run_suite(suite, options, nodes or 0)
    click.echo(report.as_text(found))
    if plot_file is not None:
        report.plot(found, plot_file)
    # Write no calibration after --quick and --check: such runs do not measure the speed.
    if not quick and not check:
        path = calibration or report.calibration_path()
        report.write_calibration(found, path)
        click.echo(f"calibration: {path}")
    if as_json:
        click.echo(json.dumps(report.as_json(found)))
