"""`mpips.run`: a worker function on tables. With one rank everything is in this process, without MPI."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpips.checkpoint.start import find_start
from mpips.config.options import SessionOptions
from mpips.config.triggers import Triggers
from mpips.errors import ConfigError, MpipsError
from mpips.model.table import Table, check_tables
from mpips.mpi import failure_report, launch
from mpips.mpi.roles import check_servers
from mpips.process import forked
from mpips.recovery.saving import Saving, SavingPlan
from mpips.rundir import directory
from mpips.session.calling import refuse_generator
from mpips.session.driver import JobRanks, JobView, Outcome, drive
from mpips.worker.worker import Worker

if TYPE_CHECKING:
    from mpi4py import MPI

Main = Callable[[Worker], Any]
after_run: list[Callable[[Outcome], None]] = []  # called with what `run` returns


@dataclass(frozen=True)
class _FunctionPlan:
    """The SavingPlan of `run`: its arguments `save` and `resume`."""

    saving: Saving
    resume: str
    comm: MPI.Intracomm | None

    def draft(self) -> Saving:
        return self.saving

    def choose(self) -> Saving:
        start = find_start(self.saving.folder, self.resume, self.comm)
        manifest = start.manifest
        return replace(
            self.saving,
            run_id=self.saving.run_id if manifest is None else manifest.run_id,
            start=start.path,
            origin=manifest,
            generation=start.generation,
        )


class FunctionProgram:
    """A worker function with its tables, and what was asked for to be saved."""

    def __init__(
        self,
        main: Main,
        tables: list[Table],
        options: SessionOptions,
        folder: Path | None,
        resume: str,
        triggers: Triggers,
        verbose: bool,
    ) -> None:
        """Arguments as of `run`, checked."""
        self.options = options
        self.warm = True
        self.partner_bound: int | None = None
        self.main = main
        self._tables = tables
        self._folder = folder
        self._resume = resume
        self._triggers = triggers
        self._verbose = verbose

    def prepare(
        self, ranks: JobRanks, n_workers: int, run_id: str, comm: MPI.Intracomm | None
    ) -> SavingPlan:
        """Nothing is read before the checkpoint is chosen."""
        draft = Saving(self._folder, run_id, triggers=self._triggers)
        return _FunctionPlan(draft, self._resume, comm)

    def tables(self) -> list[Table]:
        """Return the tables that were given."""
        return self._tables

    def begin(self, saving: Saving, n_workers: int) -> None:
        """`main` reads worker.start."""

    def show(self, view: JobView) -> None:
        """Print roles and transports of several ranks."""
        if self._verbose and view.description:
            print(view.description, file=sys.stderr, flush=True)
            if note := _unknown_position(view.saving):
                print(f"note: {note}", file=sys.stderr, flush=True)

    def report(self, epoch: int, step: int, samples: int, loss_sum: float) -> None:
        """Nothing is shown while it runs."""

    def close(self) -> None:
        """Nothing was begun."""


@contextmanager
def one_report() -> Iterator[None]:
    """End all ranks of a launch alike on an error that all of them have: rank 0 says it."""
    try:
        yield
    except MpipsError as error:
        failure_report.write(**failure_report.fields_of(error))
        launch.say_and_exit(str(error), error.exit_code)


def run(
    main: Main,
    tables: Sequence[Table],
    *,
    comm: MPI.Intracomm | None = None,
    verbose: bool = True,
    save: str | Path | None = None,
    resume: str = "auto",
    every_steps: int = 0,
    every_s: float = 0.0,
    on_usr1: str = "continue",
    grace_s: float = 25.0,
    **options: Any,
) -> Outcome:
    """Run a job: `main(worker)` on every worker, servers and scheduler on the other ranks.

    Collective over `comm`: every rank calls it with the same tables and options. Returns on every rank
    when all workers have returned. On one rank (also without any launcher) the same `main` runs with
    all roles in this process.

    Args:
        main: Called once on each worker. sys.exit() in it is a return; with a code or a message it ends the
            job as an error does.
        tables: Dense and embedding tables of the job.
        comm: Communicator to use; COMM_WORLD of the launch if None.
        verbose: Print the table of roles and the transports at start.
        save: Folder for a checkpoint of all tables when all workers have returned; None: that of the run
            directory, if this is supervised, else nowhere. If that fails,
            `statistics["servers"][0]["checkpoint"]["error"]` says why.
        resume: "auto": start from the newest good checkpoint in `save`, if there is one; "never"; or
            the path of a checkpoint. It may be of another number of servers. See `Worker.start`.
        every_steps, every_s, on_usr1, grace_s: With `save` (under `mpips run` every ten minutes if neither
            of the first two is given): checkpoints while the workers are at work; see
            `mpips.config.triggers.Triggers`. Until `run` returns, SIGUSR1, SIGTERM and (without a prompt)
            SIGINT belong to mpips; before it, SIGUSR1 ends a program that has no handler.
            `Worker.checkpoint` asks for one by hand. One that cannot be written is said and counted
            (`statistics["scheduler"]["checkpoints"]`); the job goes on.
        **options: See `mpips.config.options.SessionOptions`.

    Returns:
        What `main` returned (on workers) and the statistics of the job (everywhere).

    Raises:
        ConfigError: Tables or options cannot work; under a launcher without `comm` see SystemExit.
        ForkError: This is a helper process of a rank.
        RegionError, TransportError: On one rank, or on every rank of `comm`.
        CheckpointError: The checkpoint to start from is damaged.
        SystemExit: Under a launcher without `comm`: the job could not start. The error has been
            printed once; the code is that of its kind. Or the job was told to end: 75 after a
            checkpoint, else 143 (KeyboardInterrupt after SIGINT).

    An error later, on any rank, does not come back from here: the scheduler prints it once and ends
    all ranks with its exit code.
    """
    if comm is not None or launch.launched_size() > 1 or directory.current() is not None:
        forked.refuse_children()
    size = comm.Get_size() if comm is not None else launch.launched_size()
    # Where all ranks of a launch make the same mistake, one of them prints it.
    with one_report() if comm is None and size > 1 else nullcontext():
        failure_report.begin()
        tables = list(tables)
        check_tables(tables)
        refuse_generator(main)
        settings = make_options(options)
        check_launch(settings, size)
        triggers = Triggers(every_steps, every_s, on_usr1, grace_s).check()
        supervised = directory.current()
        if supervised is not None:
            refuse_second(supervised)
            triggers = triggers.supervised()
    folder = Path(save) if save is not None else None
    if folder is None and supervised is not None:
        folder = supervised.folder.checkpoints
    program = FunctionProgram(main, tables, settings, folder, resume, triggers, verbose)
    if comm is None:
        with one_report():
            launch.refuse_lonely_tasks()
    with one_report() if comm is None and size > 1 else nullcontext():
        outcome = drive(program, supervised, comm, size)
    for hear in after_run:
        hear(outcome)
    return outcome


def refuse_second(run: directory.Supervised) -> None:
    """Refuse a second job of one program: a run directory has one job, and it is done.

    Raises:
        ConfigError: The run is finished.
    """
    if run.folder.finished() is not None:
        raise ConfigError(
            "mpips.run was called a second time: `mpips run` supervises one job of a program; do both in one "
            "main, or start the program by mpirun"
        )


def _unknown_position(saving: Saving) -> str:
    """Return a note on a checkpoint that holds no position of `main`; "" where it holds one."""
    workers = saving.origin.workers if saving.origin is not None else ()
    if not saving.steps_before or any(state.cursor for state in workers):
        return ""
    return (
        f"the tables are those of step {saving.steps_before}, but main has not said where it stands "
        "(worker.set_cursor): unless it looks at worker.start it begins with its first step"
    )


def check_launch(options: SessionOptions, size: int) -> None:
    """Refuse options that do not suit the number of ranks."""
    if size == 1:
        if options.transport not in ("auto", "local"):
            raise ConfigError(
                f"transport = {options.transport!r} needs several ranks; with one rank it is 'local'"
            )
        if options.servers > 1:
            raise ConfigError(f"servers = {options.servers} is too many for 1 rank: use 1")
        return
    if options.transport == "local":
        raise ConfigError(f"transport = 'local' is for one rank, here are {size}; use 'auto'")
    if options.servers:
        check_servers(options.servers, size)


def make_options(options: dict[str, Any]) -> SessionOptions:
    """Options from keyword arguments, checked.

    Raises:
        ConfigError: An unknown name or an impossible value.
    """
    known = SessionOptions.__struct_fields__
    for name in options:
        if name not in known:
            raise ConfigError(f"unknown option {name!r}; valid are {', '.join(known)}")
    return SessionOptions(**options).check()
