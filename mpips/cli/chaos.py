"""`mpips chaos`: inject faults into a run, and report how it survived them."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from mpips.cli.runs import folder_option, run_argument
from mpips.errors import ConfigError
from mpips.monitor.runs import find_run
from mpips.terminal.screen import columns, say

if TYPE_CHECKING:
    from mpips.chaos.disturbing import Disturbance

ROLES = ("any", "scheduler", "server", "worker")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


class Seconds(click.ParamType):  # type: ignore[type-arg]  # generic in some versions of click only
    """A time above 0: 30, 30s, 10m, 1.5h."""

    name = "TIME"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d*)?)([smh]?)", str(value).strip())
        if found is None or not float(found[1]):
            self.fail(f"{value!r} is no time above 0 such as 30s, 10m or 1.5h", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


class _InterruptedError(Exception):
    """A signal that ends the command."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise `_InterruptedError` within the block; later ones are ignored.

    Ctrl-Z is ignored within the block: a fault would last until the command is continued.
    """

    def handle(number: int, frame: FrameType | None) -> NoReturn:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise _InterruptedError(number)

    before = [(each, signal.signal(each, handle)) for each in (signal.SIGINT, signal.SIGTERM)]
    before.append((signal.SIGTSTP, signal.signal(signal.SIGTSTP, signal.SIG_IGN)))
    try:
        yield
    finally:
        for each, handler in before:
            signal.signal(each, handler)


@click.command(
    short_help="Inject faults into a run, and report how it survived them.",
    epilog="Exit codes: 0 the promises held, 1 a promise is broken or no fault was injected, 2 "
    "refused, 130 and 143 interrupted: all faults were taken back.",
)
@run_argument()
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@folder_option
@click.option("--launch", metavar="JOB", help="Start `mpips run JOB` and disturb that run.")
@click.option(
    "--kill",
    multiple=True,
    type=click.Choice(ROLES),
    help="SIGKILL to a rank of this role; may be repeated [default without other faults: any].",
)
@click.option("--pause", is_flag=True, help="SIGSTOP to a rank, and SIGCONT later.")
@click.option("--slow-link", is_flag=True, help="Limit the link of an imitated node or container.")
@click.option("--partition", is_flag=True, help="Cut the link of an imitated node or container.")
@click.option(
    "--fill-disk",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Fill the file system that is mounted at FOLDER, which holds the run.",
)
@click.option(
    "--leave",
    metavar="MIB",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="MiB that --fill-disk leaves free; above 0 FOLDER may lie on a file system with other files.",
)
@click.option(
    "--flip-bits",
    is_flag=True,
    help="Change a bit of the newest checkpoint, and make the next attempt start from a checkpoint.",
)
@click.option(
    "--every",
    type=Seconds(),
    default=30.0,
    show_default="30s",
    help="Mean time at work between two faults.",
)
@click.option(
    "--intervals",
    type=click.Choice(("exponential", "fixed")),
    default="exponential",
    show_default=True,
    help="Distribution of the times between faults.",
)
@click.option("--for", "for_s", type=Seconds(), default=600.0, show_default="10m", help="Length.")
@click.option(
    "--longest",
    type=Seconds(),
    default=5.0,
    show_default="5s",
    help="Longest pause, slow or cut link, and full disk.",
)
@click.option(
    "--back",
    type=Seconds(),
    default=120.0,
    show_default="2m",
    help="Time in which the run must make a further step after a fault.",
)
@click.option("--seed", type=click.IntRange(0), help="Seed of the faults [default: a random one].")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one line of JSON.")
def command(
    run: str | None,
    arguments: tuple[str, ...],
    folder: str,
    launch: str | None,
    kill: tuple[str, ...],
    pause: bool,
    slow_link: bool,
    partition: bool,
    fill_disk: Path | None,
    leave: int,
    flip_bits: bool,
    every: float,
    intervals: str,
    for_s: float,
    longest: float,
    back: float,
    seed: int | None,
    as_json: bool,
) -> None:
    """Inject faults into a run of your own, and report how it survived them.

    RUN is a run directory or the beginning of a run's name. Only its processes on this machine, its
    namespaces and its files are touched, and everything that lasts is taken back: at its end, on Ctrl-C, and
    when this command is killed. ARGUMENTS after `--` are passed to `mpips run` of --launch.

    \b
    mpips chaos job-2026 --kill any --every 30s --for 10m
    mpips chaos --launch job.toml --kill server --pause --flip-bits --seed 7 -- -n 6
    """
    from mpips.chaos.disturbing import ChaosOptions, Disturbance

    if launch is None and run is None:
        raise click.UsageError("give RUN, or --launch JOB")
    if launch is None and arguments:
        raise click.UsageError(f"{' '.join(arguments)}: arguments of mpips run need --launch JOB")
    flags = {
        "pause": pause,
        "slow-link": slow_link,
        "partition": partition,
        "fill-disk": fill_disk is not None,
        "flip-bits": flip_bits,
    }
    if leave and fill_disk is None:
        raise click.UsageError("--leave applies only to --fill-disk FOLDER")
    others = tuple(name for name, is_given in flags.items() if is_given)
    options = ChaosOptions(
        kill=kill or (() if others else ("any",)),
        others=others,
        fill_disk=fill_disk.absolute() if fill_disk is not None else None,
        leave_mib=leave,
        every_s=every,
        for_s=for_s,
        longest_s=longest,
        back_s=back,
        intervals="fixed" if intervals == "fixed" else "exponential",
        seed=seed if seed is not None else random.SystemRandom().randrange(1_000_000),
    )
    disturbance = Disturbance(options, _ignore if as_json else say)
    interrupted = 0
    try:
        with _interruptible():
            if launch is not None:
                words = ([run] if run is not None else []) + list(arguments)
                disturbance.launch(launch, words, Path(folder))
            else:
                assert run is not None
                disturbance.disturb(find_run(run, Path(folder)))
    except _InterruptedError as signalled:
        interrupted = signalled.number
    _print(disturbance, interrupted, as_json)


def _ignore(text: str) -> None:
    """Print nothing."""


def _print(disturbance: Disturbance, interrupted: int, as_json: bool) -> None:
    """Print the report.

    Raises:
        ConfigError: The command was interrupted before the run was found.
        click.exceptions.Exit: A promise is broken, or the command was interrupted.
    """
    from mpips.chaos.report import report_lines

    name = signal.Signals(interrupted).name if interrupted else ""
    report = disturbance.report(name)
    if report is None:
        if interrupted:
            raise click.exceptions.Exit(128 + interrupted)
        raise ConfigError("no run was disturbed")
    if as_json:
        import msgspec

        say(msgspec.json.encode(report).decode(), err=False)
    else:
        width = columns(sys.stdout)
        say("\n".join(report_lines(report, width)), err=False)
    if interrupted:
        raise click.exceptions.Exit(128 + interrupted)
    if not report.held:
        raise click.exceptions.Exit(1)
