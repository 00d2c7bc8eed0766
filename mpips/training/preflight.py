"""Check a job before MPI starts and before any data is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mpips.checkpoint import Retention
from mpips.checkpoint.folder import check_writable
from mpips.checkpoint.start import RESUME_WORDS
from mpips.checkpoint.structure import load_writer
from mpips.config.conversion import UnknownKeyError, check_known, convert, fitted
from mpips.config.overrides import MEASURED, has_name, merged, parse_consistency
from mpips.config.schema import CheckpointConfig, JobConfig
from mpips.config.suggestions import with_suggestion
from mpips.config.table_section import TableConfig
from mpips.config.triggers import Triggers
from mpips.data import files_of
from mpips.errors import ConfigError, MpipsError
from mpips.model.consistency import BSP
from mpips.model.initializer import Initializer
from mpips.model.optimizer import from_config as optimizer_from_config
from mpips.model.partition import Partition
from mpips.mpi import launch
from mpips.session.session import check_launch
from mpips.tasks import Task, load_task
from mpips.tasks.base import reader_of
from mpips.training.callback import EpochCallback
from mpips.training.labels import wants_of
from mpips.training.own_data import refuse_reader_options
from mpips.training.stopping import check_names
from mpips.training.weights import check_weights


def preflight(config: JobConfig, n_ranks: int | None = None, dry_run: bool = False) -> type[Task]:
    """Check everything of a job that needs neither data nor MPI; return the class of its task.

    Local: the ranks of a launch call it before their first collective operation.

    Args:
        config: The job.
        n_ranks: Number of its ranks; None: that of this launch.
        dry_run: Do not make the folder for checkpoints.

    Raises:
        ConfigError: A value is invalid, or a file does not exist.
        DataError: No file matches a pattern.
        CapabilityError: The job writes checkpoints and h5py is missing.
    """
    launch.refuse_lonely_tasks()
    task = load_task(config.task)
    options = task_options(task, config.options)
    _refuse_idle(config, options)
    check_names(config.train, getattr(task, "own_metrics", {}))
    EpochCallback.of(config.train)  # check that there is such a function
    if reader_of(task) is not None:
        refuse_reader_options(config)
    check_weights(config, task, wants_of(config, task, options))
    check_replaced(task, config)
    _check_table("table", config.table)
    for name, table in config.tables.items():
        _check_table(f"tables.{name}", merged(config.table, table))
    check_launch(config.cluster, n_ranks or launch.launched_size())
    check_checkpoints(config.checkpoint, make=not dry_run)
    data = config.data
    data.check_folds()
    if data.holdout(0) is not None and data.train == "digits":
        raise ConfigError(
            "data.train = 'digits': is no file of which samples can be held out; give a file"
        )
    for path in (data.train_files, data.validation_files, data.test_files):
        missing = [] if path in ("", "digits") else files_of(path)
        missing = [file for file in missing if not os.path.isfile(file)]
        if missing and os.path.isdir(missing[0]):
            files = str(Path(missing[0]) / "*.csv")
            raise ConfigError(f"{missing[0]}: is a folder: name its files, such as '{files}'")
        if missing:
            raise ConfigError(
                f"{missing[0]}: no such file (working folder: {Path.cwd()}); give a path that all hosts have"
            )
    return task


def check_checkpoints(options: CheckpointConfig, make: bool = True) -> None:
    """Check the options of checkpoints, of which some would otherwise fail only at the end of the training.

    Args:
        options: Those of the job.
        make: Make the folder for checkpoints; else check that the folder around it is writable.

    Raises:
        ConfigError: A number is out of range, `resume` names no checkpoint, or the folder cannot be made.
        CapabilityError: The job writes checkpoints and h5py is missing.
    """
    Retention(options.keep_last, options.keep_every)
    Triggers(
        options.every_steps,
        options.every_s,
        options.on_usr1,
        options.grace_s,
        options.incremental,
        options.compact,
    ).check("checkpoint.")
    if options.resume not in RESUME_WORDS and not Path(options.resume).is_dir():
        raise ConfigError(
            f"resume = {options.resume!r}: must be 'auto', 'never' or the folder of a checkpoint"
        )
    if not options.folder:
        return
    load_writer()
    check_writable("checkpoint.folder", Path(options.folder), make)


def task_options(task: type[Task], options: Mapping[str, Any]) -> msgspec.Struct:
    """Return the task's options: the given ones, and defaults for the others.

    Raises:
        ConfigError: An option is unknown, of the wrong type or out of range.
    """
    try:
        check_known(options, task.Options, "options.")
    except UnknownKeyError as error:
        raise with_suggestion(error, JobConfig) from None
    return convert(fitted(options, task.Options), task.Options, "options")


def option_names(task: str) -> tuple[str, ...]:
    """Return the names of the options of a task; () if there is no such task."""
    try:
        return load_task(task).Options.__struct_fields__
    except MpipsError:
        return ()


def _refuse_idle(config: JobConfig, options: msgspec.Struct) -> None:
    """Check that the job sets no option of the task that has no effect beside the others.

    Options of a task may have a method `idle`, which returns why an option has none, by its name.

    Raises:
        ConfigError: It sets one.
    """
    idle: dict[str, str] = options.idle() if hasattr(options, "idle") else {}
    for name in config.options:
        if name in idle:
            raise ConfigError(
                f"options.{name} = {config.options[name]!r} has no effect: {idle[name]}; leave it out"
            )


def check_replaced(task: type[Task], config: JobConfig) -> None:
    """Check that no option of the task belongs to an optimizer that the job replaces.

    Raises:
        ConfigError: One does. The message names it, what replaces it, and what to write instead.
    """
    places = getattr(task, "optimizer_options", {})
    for option, value in config.options.items():
        table, key = places.get(option, ("", ""))
        if not key:
            continue
        # An option for all tables still has an effect while the optimizer of one table is not replaced.
        own = config.tables.get(table, TableConfig()) if table else TableConfig()
        for where, found in ((f"tables.{table}", own.optimizer), ("table", config.table.optimizer)):
            if found is None or not (has_name(found) or key in found):
                continue
            raise ConfigError(
                f"options.{option} = {value} has no effect, because [{where}] sets another optimizer; write "
                f"{where}.optimizer.{key} = {value}, or leave one of them out (--set options.{option}=)"
            )


def _check_table(where: str, table: TableConfig) -> None:
    """Check the overrides of one table. `where`: name of their section.

    Raises:
        ConfigError: A value is invalid.
    """
    try:
        if table.optimizer is not None and has_name(table.optimizer):
            optimizer_from_config(table.optimizer)
        if table.consistency is not None or table.policy is not None:
            parse_consistency(table, BSP())
        if table.partition is not None and table.partition != MEASURED:
            Partition.from_config(table.partition)
        if table.init is not None:
            Initializer.parse(table.init)
        if table.clip_norm is not None and not 0 <= table.clip_norm < float("inf"):
            raise ConfigError(f"clip_norm = {table.clip_norm}: must be 0 or more")
    except ConfigError as error:
        raise ConfigError(f"[{where}]: {error}") from None
