"""`mpips replay`: train again as a recorded run did, with the same bits."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import click

from mpips.cli.run import pool_of, start_run
from mpips.cli.runs import folder_option, run_argument
from mpips.config.schema import JobConfig, load_config
from mpips.errors import ConfigError
from mpips.monitor.runs import find_run
from mpips.record.files import (
    RecordContent,
    Replayed,
    ReplayOrder,
    read_all,
    record_folder,
    why_not_whole,
)
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
    default=0,
    show_default=True,
    help="Number of the recorded attempt.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print the result only.")
def command(run: str, folder: str, attempt: int, quiet: bool) -> None:
    """Train again as a run with monitor.record = true did, with the same bits also under ASP and SSP.

    RUN is a run directory or the beginning of a run's name. Its program is started again on this machine,
    with as many ranks, in a new run directory in --folder. Servers take updates in the recorded order, and
    pulls see the recorded versions. A program that differs is stopped at the first difference that is found.
    At the end the tables are compared with those of the run. No checkpoints are written.
    """
    found = find_run(run, Path(folder))
    record = record_folder(found, attempt)
    servers, workers = read_all(record)
    if why := why_not_whole([*servers, *workers]):
        raise ConfigError(f"{record}: {why}")
    config = _config_of(found, servers, workers)
    new = _make(found, config, record, Path(folder).absolute())
    start_run(
        found.path.name,
        config,
        pool_of(config),
        new,
        progress="none" if quiet else "auto",
        quiet=quiet,
        verbose=False,
        json=False,
        dry=False,
    )
    _report(found, new, servers)


def _config_of(
    run: RunFolder, servers: list[RecordContent], workers: list[RecordContent]
) -> JobConfig:
    """Return the configuration of the replay.

    Raises:
        ConfigError: The run has options that a replay cannot follow.
    """
    is_small = len(workers) == len(servers) == 1
    n_ranks = 2 if is_small else 1 + len(servers) + len(workers)
    # It has the ranks of the record, whatever hosts are there now.
    fixed = [("run.elastic", False), ("run.max_workers", 0)]
    settings = [("run.ranks", n_ranks), ("run.max_restarts", 0), *fixed]
    config = load_config(str(run.config_file), settings)
    if config.checkpoint.keep_best:
        raise ConfigError(
            f"{run.path.name} has checkpoint.keep_best = true: a replay writes no checkpoints and cannot "
            "follow it; record the run with keep_best = false"
        )
    return config


def _make(run: RunFolder, config: JobConfig, record: Path, folder: Path) -> RunFolder:
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
        for file in (run.placement_file, run.path / "choice.json"):
            if file.exists():
                shutil.copyfile(file, new.path / file.name)
        replace_json(new.path / "replay.json", ReplayOrder(record=str(record)), durable=True)
    except OSError as error:
        raise ConfigError(f"{new.path}: cannot be written: {error.strerror}") from None
    return new


def _report(run: RunFolder, new: RunFolder, servers: list[RecordContent]) -> None:
    """Print what was repeated.

    Raises:
        ConfigError: A server has left no result.
    """
    n_records = 0
    digests: dict[str, list[str]] = {}
    for server in range(len(servers)):
        path = new.path / f"replayed-{server}.json"
        result = read_json(path, Replayed)
        if result is None:
            raise ConfigError(f"{path}: is missing: server {server} has not compared its tables")
        n_records += result.records
        for name, digest in result.digests.items():
            digests.setdefault(name, []).append(digest)
    tables = ", ".join(f"{name} {'+'.join(parts)}" for name, parts in digests.items())
    say(
        f"mpips replay: {n_records:,} records of {len(servers)} servers repeated; all tables of "
        f"{run.path.name} have the same bits ({tables})",
        err=False,
    )
