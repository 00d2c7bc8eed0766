"""`mpips bench`: measure mpips against baselines on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mpips.bench.suites import ALL, MOVED, SUITES
from mpips.terminal.screen import say

_NAMES = [*SUITES, "all"]
_OTHERS = [name for name in SUITES if name not in ALL]
_SUITE_LIST = "\n".join(f"  {name:<11} {what}" for name, (_, what) in SUITES.items())


class BenchCommand(click.Command):
    """The command. It names the new place of a suite that has moved before it checks other options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments."""
        is_here = any(arg in _NAMES for arg in args)
        moved = next((arg for arg in args if arg in MOVED and not is_here), None)
        if moved is None and {"--kills", "--matrix"} & {arg.partition("=")[0] for arg in args}:
            moved = "kills"
        if moved is not None:
            raise click.UsageError(
                f"the suite '{moved}' is no longer part of mpips bench: in the repository of mpips run "
                f"python -m tests.bench {moved}",
                ctx,
            )
        return super().parse_args(ctx, args)


@click.command(
    cls=BenchCommand,
    help="Measure mpips and its baselines in the same run.\n\n\b\n"
    f"{_SUITE_LIST}\n  all         all of these except "
    f"{', '.join(_OTHERS[:-1])} and {_OTHERS[-1]}\n\n"
    "Measurements of mpips and of a baseline alternate; a reported ratio is the median over the "
    "repetitions. Suites that need ranks start mpirun themselves. Run nothing else on the machine "
    "meanwhile.",
    short_help="Measure mpips and its baselines on this machine.",
)
@click.argument("suite", type=click.Choice(_NAMES), metavar="SUITE")
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

    options = Options(repetitions=repetitions, quick=quick, check=check)
    found = run_suite(suite, options, nodes or 0)
    say(report.as_text(found), err=False)
    if plot_file is not None:
        report.plot(found, plot_file)
    # Write no calibration after --quick and --check: such runs do not measure the speed.
    if not quick and not check:
        path = calibration or report.calibration_path()
        report.write_calibration(found, path)
        say(f"calibration: {path}", err=False)
    if as_json:
        click.echo(json.dumps(report.as_json(found)))
