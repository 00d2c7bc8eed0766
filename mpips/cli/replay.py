"""`mpips replay`: train again as a recorded run did, with the same bits."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import click

from mpips.cli.replay_breaks import breaks_of, function_of, legs_until, show_breaks
from mpips.cli.run import pool_of, start_run
from mpips.cli.runs import folder_option, run_argument
from mpips.config.schema import JobConfig, load_config
from mpips.errors import ConfigError, LeavingError
from mpips.monitor.runs import find_run
from mpips.record.files import ReplayBreak, Replayed, ReplayOrder, recorded_attempts
from mpips.record.legs import AttemptLeg, legs_of
from mpips.rundir.directory import RunFolder, read_json, replace_json
from mpips.terminal.screen import say


@click.command(
    short_help="Repeat a recorded run with the same bits.",
    epilog="Exit codes: 0 the run was repeated and its tables end with the same bits, 1 the program differs "
    "from that of the run, 2 the run has no record that can be repeated.",
)
@run_argument(required=True)
@folder_option
@click.option(
    "--attempt",
    type=click.IntRange(0),
    help="Number of the attempt that is repeated to its end [default: the last one].",
)
@click.option(
    "--from",
    "start",
    metavar="CHECKPOINT",
    help="Begin with the attempt that began from this checkpoint of the run, such as step-40, and not with "
    "the attempts before.",
)
@click.option(
    "--until",
    type=click.IntRange(1),
    metavar="STEP",
    help="End when each worker has made this many steps of the run, and write the tables into a checkpoint.",
)
@click.option(
    "--break-at",
    "places",
    multiple=True,
    metavar="TABLE:N",
    help="Copy this table when it has had N updates, into a checkpoint of the replay. May be repeated.",
)
@click.option(
    "--call",
    "function",
    metavar="FILE.py:FUNCTION",
    help="Call this function with the opened checkpoint of each --break-at and of --until, in place of a "
    "prompt.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print the result only.")
def command(
    run: str,
    folder: str,
    attempt: int | None,
    start: str | None,
    until: int | None,
    places: tuple[str, ...],
    function: str | None,
    quiet: bool,
) -> None:
    """Train again as a run with monitor.record = true did, with the same bits also under ASP and SSP.

    RUN is a run directory or the beginning of a run's name. Its program is started again on this machine,
    with as many ranks, in a new run directory in --folder. Servers take updates in the recorded order, and
    pulls see the recorded versions. A program that differs is stopped at the first difference that is found.
    At the end the tables are compared with those of the run. If the run restarted from checkpoints, the
    replay writes the same checkpoints, and begins its next launch from each of them.

    With --break-at and --until it writes tables as they were at these places into checkpoints in its run
    directory, and, on a terminal, opens a Python prompt with them at its end.
    """
    found = find_run(run, Path(folder))
    legs = legs_of(found, attempt)
    if attempt is None:
        _show_newer(found, legs[-1].attempt)
    if start is not None:
        legs = _legs_from(found, legs, start)
    breaks = breaks_of(places, until, legs)
    call = function_of(function, breaks)
    if until is not None:
        legs = legs_until(legs, until)
    config = _config_of(found, legs[-1])
    new = _make(found, config, Path(folder).absolute())
    if start is not None:
        _copy_checkpoint(found, new, legs[0])
    for i, leg in enumerate(legs):
        _begin_leg(new, leg, breaks, is_last=i == len(legs) - 1)
        if len(legs) > 1 and not quiet:
            say(
                f"mpips replay: launch {i + 1} of {len(legs)} repeats attempt {leg.attempt}{_end_of(leg)}"
            )
        _run_leg(found, config, new, leg, quiet, ends=until is not None and i == len(legs) - 1)
    if until is None:
        _report(found, new, legs)
    show_breaks(new, breaks, call, quiet)


def _show_newer(run: RunFolder, last: int) -> None:
    """Print why attempts after the last one that is repeated are left out."""
    for number, why in recorded_attempts(run).left_out.items():
        if number > last:
            say(f"mpips replay: the replay ends with attempt {last}; {number} is left out: {why}")


def _end_of(leg: AttemptLeg) -> str:
    return " as far as its last checkpoint that counts" if leg.stops else " to its end"


def _legs_from(run: RunFolder, legs: list[AttemptLeg], start: str) -> list[AttemptLeg]:
    """Return the legs from the one on that begins from a checkpoint.

    Raises:
        ConfigError: No attempt began from it.
    """
    name = Path(start).name
    for i, leg in enumerate(legs):
        if leg.head.start.startswith("checkpoint ") and _step_of(leg.head.start) == _step_of(name):
            return legs[i:]
    starts = [leg.head.start.removeprefix("checkpoint ") for leg in legs[1:]]
    raise ConfigError(
        f"--from {start}: no repeated attempt of {run.path.name} began from it; "
        + (f"attempts began from {', '.join(starts)}" if starts else "all of it began anew")
    )


def _step_of(name: str) -> str:
    """Return the step of a checkpoint's name without leading zeros; the name if it has none."""
    step = name.removeprefix("checkpoint ").removeprefix("step-")
    return step.lstrip("0") or step


def _copy_checkpoint(run: RunFolder, new: RunFolder, leg: AttemptLeg) -> None:
    """Copy the checkpoint from which a leg begins into the run directory of the replay.

    Raises:
        ConfigError: It is gone, or cannot be copied.
    """
    name = leg.head.start.removeprefix("checkpoint ")
    source = run.checkpoints / name
    try:
        shutil.copytree(source, new.checkpoints / name)
    except OSError as error:
        raise ConfigError(
            f"{source}: cannot be copied: {error.strerror or error}; leave --from out to repeat the run "
            "from its beginning"
        ) from None


def _begin_leg(
    new: RunFolder, leg: AttemptLeg, breaks: tuple[ReplayBreak, ...], is_last: bool
) -> None:
    """Write which record the next launch repeats, and where it breaks; it ends at a step if it is the last.

    Raises:
        ConfigError: The run directory cannot be written.
    """
    order = ReplayOrder(
        record=str(leg.folder.absolute()),
        stops=leg.stops,
        begins=leg.head.start == "new",
        breaks=tuple(at for at in breaks if at.table or is_last),
    )
    try:
        replace_json(new.path / "replay.json", order, durable=True)
    except OSError as error:
        raise ConfigError(f"{new.path}: cannot be written: {error.strerror}") from None


def _run_leg(
    run: RunFolder, config: JobConfig, new: RunFolder, leg: AttemptLeg, quiet: bool, ends: bool
) -> None:
    """Repeat a leg in one launch, which `ends` at a step. Blocks.

    Raises:
        click.exceptions.Exit: It has not come to its end.
    """
    try:
        start_run(
            run.path.name,
            config,
            pool_of(config),
            new,
            progress="none" if quiet else "auto",
            quiet=quiet,
            verbose=False,
            json=False,
            dry=False,
        )
    except click.exceptions.Exit as end:
        if not (leg.stops or ends) or end.exit_code != LeavingError.exit_code:
            raise
        return
    if leg.stops and not ends:
        raise ConfigError(
            f"{new.path}: the program ended before the checkpoint with which attempt {leg.attempt} of "
            f"{run.path.name} counts"
        )


def _config_of(run: RunFolder, leg: AttemptLeg) -> JobConfig:
    """Return the configuration of the replay.

    Raises:
        ConfigError: The run has options that a replay cannot follow.
    """
    n_servers, n_workers = leg.head.n_servers, leg.head.n_workers
    is_small = n_workers == n_servers == 1
    n_ranks = 2 if is_small else 1 + n_servers + n_workers
    # It has the ranks of the record, whatever hosts are there now, and its own checkpoints.
    fixed = [("run.elastic", False), ("run.max_workers", 0), ("monitor.record", False)]
    own = [("checkpoint.folder", ""), ("checkpoint.resume", "auto")]
    settings = [("run.ranks", n_ranks), ("run.max_restarts", 0), *fixed, *own]
    config = load_config(str(run.config_file), settings)
    if config.checkpoint.keep_best:
        raise ConfigError(
            f"{run.path.name} has checkpoint.keep_best = true: a replay writes no checkpoints and cannot "
            "follow it; record the run with keep_best = false"
        )
    return config


def _make(run: RunFolder, config: JobConfig, folder: Path) -> RunFolder:
    """Make the run directory of the replay. Changes the working folder to that of the run.

    Raises:
        ConfigError: The folder in which the run was started is gone, or the directory cannot be made.
    """
    from mpips.supervisor.plan import make_run

    cwd = run.info().cwd
    try:
        os.chdir(cwd)
    except OSError as error:
        raise ConfigError(
            f"{cwd}: the folder in which {run.path.name} was started: {error.strerror}"
        ) from None
    new = make_run(config, folder, f"replay-of-{run.path.name}")
    try:
        # Repeat the decisions that the run made by measurements.
        for file in (run.placement_file, run.stages_file, run.path / "choice.json"):
            if file.exists():
                shutil.copyfile(file, new.path / file.name)
    except OSError as error:
        raise ConfigError(f"{new.path}: cannot be written: {error.strerror}") from None
    return new


def _report(run: RunFolder, new: RunFolder, legs: list[AttemptLeg]) -> None:
    """Print what was repeated.

    Raises:
        ConfigError: A server has left no result.
    """
    n_records = 0
    digests: dict[str, list[str]] = {}
    n_servers = legs[-1].head.n_servers
    for server in range(n_servers):
        path = new.path / f"replayed-{server}.json"
        result = read_json(path, Replayed)
        if result is None:
            raise ConfigError(f"{path}: is missing: server {server} has not compared its tables")
        n_records += result.records
        for name, digest in result.digests.items():
            digests.setdefault(name, []).append(digest)
    tables = ", ".join(f"{name} {'+'.join(parts)}" for name, parts in digests.items())
    over = f" over {len(legs)} attempts" if len(legs) > 1 else ""
    say(
        f"mpips replay: {n_records:,} records of {n_servers} servers repeated{over}; all tables of "
        f"{run.path.name} have the same bits ({tables})",
        err=False,
    )
