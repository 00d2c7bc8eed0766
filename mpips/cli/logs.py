"""`mpips logs`: print the logs of a run's ranks."""

from __future__ import annotations

import time
from pathlib import Path

import click

from mpips.cli.runs import folder_option, run_argument
from mpips.errors import ConfigError
from mpips.monitor.logs import Follower, LinesOnce, LogFile, attempts, find_logs, last_lines
from mpips.monitor.runs import find_run
from mpips.rundir.directory import RunFolder
from mpips.rundir.view import view_of
from mpips.terminal.screen import say

_LOOK_S = 0.5  # seconds between two readings of the logs


@click.command(short_help="Print the logs of a run's ranks.")
@run_argument()
@folder_option
@click.option("--rank", "ranks", type=int, multiple=True, help="Only this rank; can be repeated.")
@click.option(
    "--role",
    help='Only these ranks: scheduler, server or worker, also with a number ("server 0"), or launcher.',
)
@click.option("--attempt", type=int, help="Number of the attempt.  [default: the last one]")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="Last lines of each log that are printed; 0: all.",
)
@click.option("-f", "--follow", is_flag=True, help="Print what is added, until the run ends.")
def command(
    run: str | None,
    folder: str,
    ranks: tuple[int, ...],
    role: str | None,
    attempt: int | None,
    lines: int,
    follow: bool,
) -> None:
    """Print the logs of a run that `mpips run` started: what its ranks and mpirun write to stderr.

    RUN is a run directory or the beginning of a run's name [default: the newest run in --folder]. Each line
    begins with its rank. Roles are known of the last attempt. Lines that a rank prints and mpirun
    prints again are printed once.
    """
    if follow and attempt is not None:
        raise ConfigError(
            "--follow and --attempt are both given: the last attempt is followed; leave one out"
        )
    found = find_run(run, Path(folder))
    try:
        _show(found, ranks, role, attempt, lines, follow)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        raise  # click ends the command
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}") from None


def _show(
    found: RunFolder,
    ranks: tuple[int, ...],
    role: str | None,
    attempt: int | None,
    lines: int,
    follow: bool,
) -> None:
    """Print the logs that were asked for."""
    there = attempts(found)
    if attempt is not None and attempt not in there:
        known = ", ".join(map(str, there)) or "none"
        raise ConfigError(f"{found.path.name} has no attempt {attempt}; it has: {known}")
    if not there and not follow:
        raise ConfigError(f"{found.path.name} has no logs: no attempt has been started")
    if follow:
        _follow(found, ranks, role, lines)
    else:
        _print_last(found, attempt if attempt is not None else there[-1], ranks, role, lines)


def _print_last(
    run: RunFolder, attempt: int, ranks: tuple[int, ...], role: str | None, lines: int
) -> None:
    """Print the last lines of the logs of an attempt."""
    printed, once = False, LinesOnce()
    for log in find_logs(run, attempt, ranks, role):
        found, _ = last_lines(log, lines)
        _print(log, once.new(log, found))
        printed = printed or bool(found)
    if not printed:
        say(f"mpips logs: the logs of attempt {attempt} of {run.path.name} are empty")


def _follow(run: RunFolder, ranks: tuple[int, ...], role: str | None, lines: int) -> None:
    """Print the last lines of the logs, then what is added to them, until the run ends. Blocks.

    Logs of an attempt that begins meanwhile are printed from their beginning.
    """
    attempt, followers, once = -1, dict[Path, Follower](), LinesOnce()
    n_last: int | None = lines
    while True:
        # Read the state first: what a run wrote before its end is then printed.
        alive = view_of(run).alive
        newest = max(attempts(run), default=-1)
        if newest != attempt and attempt >= 0:
            click.echo(f"--- attempt {newest}")
        if newest != attempt:
            attempt, followers, once = newest, {}, LinesOnce()
        for log in _logs_so_far(run, attempt, ranks, role):
            if log.path not in followers:
                found, offset = last_lines(log, n_last) if n_last is not None else ([], 0)
                _print(log, once.new(log, found))
                followers[log.path] = Follower(log, offset)
        n_last = None if attempt >= 0 else n_last
        for follower in followers.values():
            while added := follower.read():
                _print(follower.log, once.new(follower.log, added))
        if not alive:
            return
        time.sleep(_LOOK_S)


def _logs_so_far(
    run: RunFolder, attempt: int, ranks: tuple[int, ...], role: str | None
) -> list[LogFile]:
    """Return the logs that are meant and exist by now."""
    if attempt < 0:
        return []
    try:
        return find_logs(run, attempt, ranks, role)
    except ConfigError:
        return []


def _print(log: LogFile, lines: list[str]) -> None:
    for line in lines:
        click.echo(f"[{log.label}] {line}")
