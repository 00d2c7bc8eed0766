"""Run a suite for developers: python -m tests.bench SUITE, in the root of the repository."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from mpips.bench import report
from mpips.bench.suites import run_suite
from mpips.errors import MpipsError
from tests.bench import history
from tests.bench.options import SuiteOptions
from tests.bench.suites import BARS, OWN, SUITES

_SUITE_LIST = "\n".join(f"  {name:<11} {what}" for name, (_, what) in OWN.items())
_OF_USERS = ", ".join(name for name in SUITES if name not in OWN)


@click.command(
    help="Measure mpips for its developers.\n\n\b\n"
    f"{_SUITE_LIST}\n\n"
    f"Suites of mpips bench can be run, too, to record their figures: {_OF_USERS}. "
    "No calibration file is written. Measurements of mpips and of a baseline alternate; a reported "
    "ratio is the median over the repetitions. Run nothing else on the machine meanwhile.",
)
@click.argument("suite", type=click.Choice(list(SUITES)), metavar="SUITE")
@click.option(
    "--repetitions", type=click.IntRange(1, 1000), default=5, show_default=True, help="Repetitions."
)
@click.option("--quick", is_flag=True, help="Small sizes, short runs: only test that it works.")
@click.option("--nodes", type=click.IntRange(1, 2), help="2: insist on imitated nodes (root).")
@click.option(
    "--seconds", type=click.FloatRange(1.0), default=60.0, show_default=True, help="soak: seconds."
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
    "--kills", type=click.IntRange(1), help="kills: processes to kill at random [default: 10]."
)
@click.option(
    "--matrix",
    is_flag=True,
    help="kills: instead, kill at every kind of place in every kind of job (about 200 times).",
)
@click.option("--seed", type=click.IntRange(1), help="kills: seed of the random choices.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON at the end.")
@click.option(
    "--plot",
    "plot_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the results into this file, such as bench.png.",
)
@click.option("--record", is_flag=True, help="Append the figures to tests/bench/history.jsonl.")
@click.option("--note", default="", help="With --record: what else to say of the conditions.")
def command(
    suite: str,
    repetitions: int,
    quick: bool,
    nodes: int | None,
    seconds: float,
    workers: int | None,
    servers: int | None,
    kills: int | None,
    matrix: bool,
    seed: int | None,
    as_json: bool,
    plot_file: Path | None,
    record: bool,
    note: str,
) -> None:
    """Run a suite, print its findings, and record them."""
    if matrix and kills:
        raise click.UsageError("--matrix takes the place of --kills: give one of them")
    if note and not record:
        raise click.UsageError("--note is part of what --record appends: give both")
    options = SuiteOptions(
        repetitions=repetitions,
        quick=quick,
        seconds=seconds,
        workers=workers or 0,
        servers=servers or 0,
        kills=kills or 10,
        matrix=matrix,
        seed=seed or 0,
    )
    load = os.getloadavg()[0]
    found = run_suite(suite, options, nodes or 0, SUITES, BARS)
    click.echo(report.as_text(found))
    if plot_file is not None:
        report.plot(found, plot_file)
    if record:
        parts = ["quick sizes"] if quick else []
        parts += [f"repetitions: {repetitions}", f"load at the start: {load:.1f}"]
        conditions = "; ".join([*parts, *([note] if note else [])])
        try:
            history.append(history.entry_of(suite, found, conditions))
        except ValueError as error:
            raise click.ClickException(str(error)) from None
        click.echo(f"recorded in {history.PATH}")
    if as_json:
        click.echo(json.dumps(report.as_json(found)))


def main() -> None:
    """Run the command. An error of mpips becomes one message on stderr and the exit code of its class."""
    try:
        command(prog_name="python -m tests.bench")
    except MpipsError as error:
        click.echo(f"mpips: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
