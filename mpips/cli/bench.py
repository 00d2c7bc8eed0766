"""`mpips bench`: measure mpips against baselines on this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from mpips.bench.suites import ALL, MOVED, SUITES
from mpips.terminal.screen import say

_NAMES = [*SUITES, "all"]
_OTHERS = [name for name in SUITES if name not in ALL]
_WITH_CORES = ("push", "pull", "embedding", "transport")
_SUITE_LIST = "\n".join(f"  {name:<11} {what}" for name, (_, what) in SUITES.items())


class CoresType(click.ParamType):  # type: ignore[type-arg]  # generic in some versions of click only
    """Two different cores that this process may use: "0,4" as (0, 4)."""

    name = "A,B"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return the cores.

        Raises:
            BadParameter: The text does not name two cores, or one that this process may not use.
        """
        if isinstance(value, tuple):
            return value
        try:
            cores = tuple(int(word) for word in value.split(","))
        except ValueError:
            cores = ()
        usable = sorted(os.sched_getaffinity(0))
        if len(cores) != 2 or cores[0] == cores[1] or not set(cores) <= set(usable):
            shown = ",".join(map(str, usable))
            self.fail(f"'{value}': must be two different cores of {shown}, such as 0,1", param, ctx)
        return cores


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
@click.option(
    "--cores",
    type=CoresType(),
    default=(),
    help="push, pull, embedding, transport: the cores of server and worker. Compare near and far ones, such "
    "as those of one socket and of two.",
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
    cores: tuple[int, ...],
    as_json: bool,
    plot_file: Path | None,
    calibration: Path | None,
) -> None:
    """Run a suite, print its findings, and write the calibration file."""
    from mpips.bench import report
    from mpips.bench.launching import Options
    from mpips.bench.suites import run_suite

    if cores and suite not in _WITH_CORES:
        raise click.UsageError(f"--cores is for {', '.join(_WITH_CORES)}, not for {suite}")
    options = Options(repetitions=repetitions, quick=quick, check=check, cores=cores)
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
