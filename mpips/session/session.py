"""`mpips.run`: a worker function on tables. With one rank all roles are in this process, without MPI."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mpips.checkpoint.folder import check_writable
from mpips.checkpoint.start import find_start
from mpips.checkpoint.structure import load_writer
from mpips.config.monitoring import MonitorConfig, monitor_config
from mpips.config.options import SessionOptions
from mpips.config.schema import JobConfig, RedundancyConfig, load_config
from mpips.config.triggers import OnUsr1, Triggers
from mpips.errors import ConfigError, MpipsError
from mpips.model.grouping import listed_groups
from mpips.model.job_tables import check_tables
from mpips.model.stages import has_stages
from mpips.model.table_group import TableGroup, ungrouped
from mpips.mpi import failure_report, launch
from mpips.mpi.one_rank import Ranks
from mpips.mpi.roles import check_servers
from mpips.process import forked
from mpips.recovery.saving import Saving, SavingPlan
from mpips.rundir import directory
from mpips.session.calling import check_main
from mpips.session.clocks_at_end import clock_notes
from mpips.session.driver import JobView, Outcome, drive
from mpips.terminal.screen import say

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpips.model.table import Table
    from mpips.worker.worker import Worker

Main = Callable[["Worker"], Any]
after_run: list[Callable[[Outcome], None]] = []  # each is called with the outcome of every `run`
supervised_jobs: list[
    Path
] = []  # the run directories of jobs that this process began under `mpips run`
scripts: list[Any] = []  # the Script of `mpips.init`, whose job is that of this process; else empty


class CheckedArguments(msgspec.Struct, frozen=True):
    """The arguments that `run` and `init` have in common.

    Attributes:
        options: Options of the session.
        folder: Folder for checkpoints; None: none are written.
        triggers: When checkpoints are written before the end.
        run: The supervised run of this launch, or None.
        monitor: Section [monitor] of the job file: metrics for other programs.
        redundancy: Section [redundancy] of the supervised run.
    """

    options: SessionOptions
    folder: Path | None
    triggers: Triggers
    run: directory.Supervised | None
    monitor: MonitorConfig = MonitorConfig()
    redundancy: RedundancyConfig = RedundancyConfig()

    @property
    def has_own_folder(self) -> bool:
        """True if only attempts of this supervised run write checkpoints into the folder."""
        return self.run is not None and self.folder == self.run.folder.checkpoints


class FunctionPlan(msgspec.Struct, frozen=True):
    """The SavingPlan of `run`: its arguments `save` and `resume`.

    `resume` is about the beginning of a run. Where the folder is that of a supervised run, a later attempt
    starts from the newest checkpoint there: else it would lose what the attempts before have trained.
    """

    saving: Saving
    resume: str
    comm: MPI.Intracomm | None
    has_own_folder: bool = False

    def draft(self) -> Saving:
        """Return what is saved, without a start."""
        return self.saving

    def choose(self, exchange: Path | None = None) -> Saving:
        """Choose the checkpoint to start from. Collective over `comm`, blocking; see SavingPlan."""
        folder = self.saving.folder
        start = find_start(
            folder, "auto" if self.has_own_folder else self.resume, self.comm, exchange
        )
        if start.manifest is None and self.has_own_folder and self.resume not in ("auto", "never"):
            start = find_start(folder, self.resume, self.comm)
        manifest = start.manifest
        return replace(
            self.saving,
            run_id=self.saving.run_id if manifest is None else manifest.run_id,
            start=start.path,
            origin=manifest,
            generation=start.generation,
            is_exchange=start.in_memory,
        )


class FunctionProgram:
    """The program of `run`: a worker function with its tables and its arguments for checkpoints."""

    def __init__(
        self,
        main: Main,
        tables: list[Table],
        checked: CheckedArguments,
        resume: str,
        verbose: bool,
    ) -> None:
        """Take checked arguments of `run`."""
        self.options = checked.options
        self.monitor = checked.monitor
        self.warm = checked.redundancy.warm
        self.has_partners = checked.redundancy.partner
        self.main = main
        self._tables = tables
        self._folder = checked.folder
        self._has_own_folder = checked.has_own_folder
        self._resume = resume
        self._triggers = checked.triggers
        self._verbose = verbose

    def prepare(
        self, ranks: Ranks, n_workers: int, run_id: str, comm: MPI.Intracomm | None
    ) -> SavingPlan:
        """Return the plan; no data is read."""
        draft = Saving(self._folder, run_id, triggers=self._triggers)
        return FunctionPlan(draft, self._resume, comm, self._has_own_folder)

    def tables(self) -> list[Table]:
        """Return the tables given to `run`."""
        return self._tables

    def initial_values(self) -> None:
        """Return None: tables have the values of their `init`."""

    def begin(self, saving: Saving, n_workers: int) -> None:
        """Do nothing: `main` reads worker.start."""

    def show(self, view: JobView) -> None:
        """Print roles and transports of several ranks."""
        if self._verbose and view.description:
            say(view.description)
            if note := _unknown_position(view.saving):
                say(f"note: {note}")

    def report(
        self, epoch: int, step: int, samples: int, loss_sum: float, rates: Sequence[float] = ()
    ) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Do nothing: `show` has begun nothing."""


@contextmanager
def one_report() -> Iterator[None]:
    """End all ranks of a launch with the same code on an error that all of them raise; rank 0 prints it."""
    try:
        yield
    except MpipsError as error:
        failure_report.write(**failure_report.fields_of(error))
        launch.say_and_exit(str(error), error.exit_code)


def run(
    main: Main,
    tables: Sequence[Table | TableGroup],
    *,
    comm: MPI.Intracomm | None = None,
    verbose: bool = True,
    save: str | Path | None = None,
    resume: str = "auto",
    every_steps: int = 0,
    every_s: float = 0.0,
    on_usr1: OnUsr1 = "continue",
    grace_s: float = 25.0,
    incremental: int = 0,
    compact: bool = False,
    monitor: Mapping[str, Any] | None = None,
    **options: Any,
) -> Outcome:
    """Run a job: `main(worker)` on every worker, servers and scheduler on the other ranks.

    Collective over `comm`: every rank calls it with the same tables and options. Returns on every rank
    when all workers have returned. On one rank (also without any launcher) the same `main` runs with
    all roles in this process.

    Args:
        main: Called once on each worker. sys.exit() in it counts as return; with a code or a message it ends
            the job like an error.
        tables: Dense and embedding tables of the job, and streams of samples.
        comm: Communicator of all ranks; None: COMM_WORLD of the launch.
        verbose: Print the table of roles and the transports at start.
        save: Folder for checkpoints. The last one, of all tables, is written when all workers have returned.
            None: the folder of the run directory under `mpips run`, else no checkpoints. If the last one
            fails, a warning is printed, and `Outcome.unsaved` contains the reason.
        resume: "auto": start from the newest good checkpoint in `save`, if there is one; "never"; or the path
            of a checkpoint. Its job may have had another number of servers. See `Worker.start`. Under
            `mpips run` without `save` it is about the first attempt: later ones start from the newest
            checkpoint of the run.
        every_steps: Write a checkpoint at each multiple of this many steps; 0: do not. Needs `save`.
        every_s: Write a checkpoint every so many seconds; 0: do not. Needs `save`. Under `mpips run` it is
            600 if neither `every_steps` nor `every_s` is given.
        on_usr1: After the checkpoint that SIGUSR1 requests, "continue" or "exit" (with code 75).
        grace_s: Seconds that the last checkpoint may take after SIGTERM or Ctrl-C; 0: no last checkpoint.
            See `mpips.config.triggers.Triggers`.
        incremental: N: every N-th checkpoint has whole tables, and those between only what has changed since
            the one before; see `docs/howto/checkpoints.md`. 0 or 1: all are whole.
        compact: With `incremental`: chains of N checkpoints are made whole in the background, and go on.
        monitor: Options of section [monitor] of a job file by name, such as {"port": 9400}. Under `mpips run`
            they precede those of the run.
        **options: See `mpips.config.options.SessionOptions`.

    Returns:
        The value of `main` (on workers) and the statistics of the job: their totals on all ranks, the entries
        of all ranks only on the ranks of the first worker and of the scheduler. See `Outcome`.

    Until `run` returns, mpips handles SIGUSR1, SIGTERM and (without a prompt) SIGINT. Before it, SIGUSR1 ends
    a program that has no handler. `Worker.checkpoint` requests a checkpoint from the program. A checkpoint
    that cannot be written is reported and counted (`statistics["scheduler"]["checkpoints"]`); the job
    continues.

    Raises:
        ConfigError: Tables or options are invalid; under a launcher without `comm` see SystemExit.
        CapabilityError: h5py is missing and checkpoints would be written.
        ForkError: This process is a forked child of a rank.
        RegionError, TransportError: The start failed on one rank; all ranks of `comm` raise it.
        CheckpointError: The checkpoint to start from is damaged.
        SystemExit: Under a launcher without `comm`, if the job could not start: the error has been printed
            once, and the code is that of its kind. Also if the job was told to end: 75 after a checkpoint,
            else 143 (KeyboardInterrupt after SIGINT).

    After the start, an error on any rank ends the job instead: the scheduler prints it once and ends all
    ranks with its exit code, so `run` does not return.
    """
    if comm is not None or launch.launched_size() > 1 or directory.current() is not None:
        forked.refuse_children()
    if scripts:
        raise ConfigError(
            "mpips.run was called in a script that mpips.init has begun: use one of the two"
        )
    size = comm.Get_size() if comm is not None else launch.launched_size()
    # Let one rank print an error that all ranks of a launch have.
    with one_report() if comm is None and size > 1 else nullcontext():
        failure_report.begin()
        check_main(main)
        own = ungrouped(tables)
        check_tables(own)
        triggers = Triggers(every_steps, every_s, on_usr1, grace_s, incremental, compact)
        checked = check_arguments(options, size, save, triggers, monitor)
        refuse_elastic(own, checked.run)
    program = FunctionProgram(main, own, checked, resume, verbose)
    if comm is None:
        with one_report():
            launch.refuse_lonely_tasks()
    if checked.run is not None:
        supervised_jobs.append(checked.run.folder.path)
    with one_report() if comm is None and size > 1 else nullcontext():
        outcome = drive(program, checked.run, comm, size)
    if outcome.is_first_worker and (reason := outcome.unsaved):
        say(f"mpips: warning: {reason}; the values at the end of the job are in no checkpoint")
    if outcome.is_first_worker:
        for note in clock_notes(outcome.statistics, own):
            say(note)
    for listener in after_run:
        listener(outcome)
    return outcome


def check_arguments(
    options: dict[str, Any],
    size: int,
    save: str | Path | None,
    triggers: Triggers,
    monitor: Mapping[str, Any] | None = None,
) -> CheckedArguments:
    """Return the checked arguments that `run` and `init` have in common.

    Args:
        options: Keyword arguments of SessionOptions.
        size: Number of ranks.
        save: Folder for checkpoints as given, or None.
        triggers: When checkpoints are written, as given.
        monitor: Options of section [monitor], as given.

    Raises:
        ConfigError: An argument is invalid, or the supervised run is finished.
        CapabilityError: h5py is missing and checkpoints would be written.
    """
    settings = make_options(options)
    check_launch(settings, size)
    triggers = triggers.check()
    run = directory.current()
    folder = Path(save) if save is not None else None
    seen, redundancy = monitor_config(monitor or {}), RedundancyConfig()
    if run is not None:
        refuse_second(run)
        config = _config_of(run)
        triggers = triggers.supervised(config is not None and config.checkpoint.on_usr1 == "exit")
        if config is not None:
            stored: dict[str, Any] = msgspec.to_builtins(config.monitor)
            seen = monitor_config({**stored, **(monitor or {})})
            redundancy = config.redundancy
        folder = folder or run.folder.checkpoints
    if folder is not None:
        # Without h5py the job would end without its checkpoint: raise CapabilityError now.
        load_writer()
    if save is not None:
        check_writable("save", Path(save), make=False)
    seen.check(run is not None)
    return CheckedArguments(settings, folder, triggers, run, seen, redundancy)


def _config_of(run: directory.Supervised) -> JobConfig | None:
    """Return the configuration of a supervised run; None: `mpips run` has not made its directory."""
    if not run.folder.config_file.exists():
        return None
    return load_config(str(run.folder.config_file), [])


def refuse_elastic(tables: Sequence[Table], run: directory.Supervised | None) -> None:
    """Raise ConfigError for tables of stages in a run that may continue with another number of workers."""
    config = _config_of(run) if run is not None and has_stages(tables) else None
    if config is not None and (config.run.is_elastic or config.run.min_workers):
        raise ConfigError(
            "the tables belong to stages of the model, whose number divides the number of workers, and the "
            "run may continue with any number of workers: leave out run.elastic, run.max_workers and "
            "run.min_workers"
        )


def refuse_second(run: directory.Supervised) -> None:
    """Raise ConfigError for a second job of one program: a run directory records one job.

    All ranks raise it, also those whose first job returned before the scheduler marked the run as finished.

    Raises:
        ConfigError: The run is finished, or this process has had a job of it.
    """
    if run.folder.path in supervised_jobs or run.folder.finished() is not None:
        raise ConfigError(
            "mpips.run was called a second time, but `mpips run` supervises one job of a program: do both in "
            "one main, or start the program by mpirun"
        )


def _unknown_position(saving: Saving) -> str:
    """Return a note on a checkpoint without a position of `main`; "" for one with a position."""
    workers = saving.origin.workers if saving.origin is not None else ()
    if not saving.steps_before or any(state.cursor for state in workers):
        return ""
    return (
        f"the tables are those of step {saving.steps_before}, but main has set no position "
        "(worker.set_cursor): unless it reads worker.start it begins with its first step"
    )


def check_launch(options: SessionOptions, size: int) -> None:
    """Raise ConfigError for options that do not fit the number of ranks."""
    if size == 1:
        if options.transport not in ("auto", "local"):
            raise ConfigError(
                f"transport = {options.transport!r} needs several ranks, this job has 1: use 'auto'"
            )
        if options.servers > 1:
            raise ConfigError(f"servers = {options.servers} is too many for 1 rank: use 1")
    elif options.transport == "local":
        raise ConfigError(
            f"transport = 'local' needs a job of 1 rank, this one has {size}: use 'auto'"
        )
    elif options.servers:
        check_servers(options.servers, size)
    if not isinstance(options.topology, str):
        # Without a number of servers this is the greatest number of workers; start-up checks the real one.
        listed_groups(options.topology, max(1, size - 1 - max(1, options.servers)))


def make_options(options: dict[str, Any]) -> SessionOptions:
    """Return checked options from keyword arguments.

    Raises:
        ConfigError: A name is unknown or was removed, or a value is invalid.
    """
    known, removed = SessionOptions.__struct_fields__, SessionOptions.REMOVED
    for name in options:
        if name in removed:
            raise ConfigError(f"option {name!r} was removed: {removed[name]}")
        if name not in known:
            raise ConfigError(f"unknown option {name!r}; valid are {', '.join(known)}")
    return SessionOptions(**options).check()
