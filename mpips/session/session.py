"""A session: ranks take their roles, regions and channels are made, the work runs, all is cleaned up.

`run` is the whole life of a job. With one rank everything is in this process and MPI is not touched.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpips.checkpoint.start import find_start
from mpips.config.options import SessionOptions
from mpips.config.triggers import Triggers
from mpips.errors import ConfigError, LeavingError, MpipsError
from mpips.model.table import Table, check_tables
from mpips.mpi import failure_report, launch
from mpips.mpi.roles import check_servers
from mpips.mpi.signals import signals_unwind
from mpips.process import forked
from mpips.recovery.saving import Saving
from mpips.rundir import directory
from mpips.scheduler.rank_table import RankTable
from mpips.scheduler.recorder import open_recorder
from mpips.scheduler.run_progress import RunProgress
from mpips.session.calling import refuse_generator
from mpips.session.local import run_local
from mpips.transport.region import new_token
from mpips.worker.worker import Worker

if TYPE_CHECKING:
    from mpi4py import MPI

Main = Callable[[Worker], Any]
after_run: list[Callable[[Outcome], None]] = []  # called with what `run` returns
_ALL_ROLES = "scheduler + server 0 + worker 0"


@dataclass
class Outcome:
    """What a run returns on each rank.

    Attributes:
        value: What the worker function returned, on workers; None elsewhere.
        role: "scheduler", "server 0", "worker 2", ...
        statistics: {"servers": [...], "workers": [...], "scheduler": {...}} of the whole job.
        transports: Name of the transport of each (worker, server) pair, by worker then server.
        ranks: Where every rank is.
    """

    value: Any = None
    role: str = ""
    statistics: dict[str, Any] = field(default_factory=dict)
    transports: list[list[str]] = field(default_factory=list)
    ranks: tuple[directory.RankPlace, ...] = ()

    @property
    def is_first_worker(self) -> bool:
        """True on exactly one rank of the job: the one to print results on."""
        return self.role.endswith("worker 0")


@dataclass(frozen=True)
class Wanted:
    """What `run` was asked to keep and to start from."""

    folder: Path | None = None
    resume: str = "never"
    triggers: Triggers = field(default_factory=Triggers)

    def saving(self, token: str, comm: MPI.Intracomm | None) -> Saving:
        """With the checkpoint that it starts from. Collective over `comm` if given."""
        start = find_start(self.folder, self.resume, comm)
        manifest = start.manifest
        run_id = token if manifest is None else manifest.run_id
        return Saving(
            self.folder,
            run_id,
            start.path,
            manifest,
            triggers=self.triggers,
            generation=start.generation,
        )


@contextmanager
def leaves_after_checkpoint() -> Iterator[None]:
    """End this process, all roles in it, when the checkpoint after which it was to end is written."""
    try:
        yield
    except LeavingError as error:
        print(f"mpips: leaving: {error}", file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from None


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
    wanted = Wanted(folder, resume, triggers)
    if comm is None:
        with one_report():
            launch.refuse_lonely_tasks()
    outcome = _run(main, tables, settings, comm, verbose, wanted, size)
    for hear in after_run:
        hear(outcome)
    return outcome


def _run(
    main: Main,
    tables: list[Table],
    settings: SessionOptions,
    comm: MPI.Intracomm | None,
    verbose: bool,
    wanted: Wanted,
    size: int,
) -> Outcome:
    """In this process or on all ranks of a launch or of `comm`."""
    if size == 1:
        with signals_unwind(), leaves_after_checkpoint():
            saving = wanted.saving(directory.run_id(new_token()), None)
            return run_alone(main, tables, settings, None, saving)
    with signals_unwind():
        if comm is not None:
            return run_cluster(main, tables, settings, comm, verbose, wanted)
        with one_report():
            world = launch.load_mpi(launch.start_limit(settings.timeout_s))
            return run_cluster(main, tables, settings, world, verbose, wanted)


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


def run_cluster(
    main: Main,
    tables: list[Table],
    options: SessionOptions,
    world: MPI.Intracomm,
    verbose: bool,
    wanted: Wanted | None = None,
) -> Outcome:
    """Run on all ranks of a communicator; see `run`."""
    from mpips.mpi.cluster import Cluster
    from mpips.session.job import Job

    with Cluster(world, options.servers or None, options.timeout_s) as cluster:
        run_id = directory.run_id(cluster.token)
        cluster.arrive("looking for a checkpoint")
        saving = (wanted or Wanted()).saving(run_id, cluster.comm)
        job = Job(cluster, tables, options, saving)
        if verbose and cluster.is_scheduler:
            print(job.describe(), file=sys.stderr, flush=True)
            if note := _unknown_position(job.saving):
                print(f"note: {note}", file=sys.stderr, flush=True)
        value, statistics = job.run(main)
        role = cluster.assignment.roles_of(cluster.rank)
        return Outcome(value, role, statistics, job.transports, job.rank_table.places)


def _unknown_position(saving: Saving) -> str:
    """What to know of a start whose checkpoint holds no position of `main`; "" where it does."""
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


def run_alone(
    main: Main,
    tables: list[Table],
    options: SessionOptions,
    on_report: Callable[[int, int, int, float], None] | None = None,
    saving: Saving | None = None,
    rank_table: RankTable | None = None,
    run_progress: RunProgress | None = None,
) -> Outcome:
    """All roles in this process, no MPI. `on_report(epoch, clock, samples, loss_sum)`."""
    rank_table = rank_table or RankTable([here()])
    recorder = open_recorder(rank_table, saving, run_progress)
    value, statistics = run_local(main, tables, options, on_report, saving, recorder, rank_table)
    return Outcome(value, _ALL_ROLES, statistics, [["local"]], rank_table.places)


def here() -> directory.RankPlace:
    """This process, where it has all roles."""
    return directory.RankPlace(rank=0, role=_ALL_ROLES, host=socket.gethostname(), pid=os.getpid())
