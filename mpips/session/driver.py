"""From a program to its outcome: the one path of `mpips.run` and of `mpips train`.

one rank        prepare, choose what to start from, run all roles in this process
several ranks   load MPI, give every rank a role, prepare, make a `Job`, run it
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mpips.config.options import SessionOptions
from mpips.errors import LeavingError
from mpips.model.table import Table
from mpips.mpi import launch
from mpips.mpi.signals import signals_unwind
from mpips.recovery.saving import Saving, SavingPlan
from mpips.rundir.directory import RankPlace, Supervised, run_id
from mpips.scheduler.rank_table import RankTable
from mpips.scheduler.recorder import open_recorder
from mpips.scheduler.run_progress import RunProgress
from mpips.session.local import run_local
from mpips.transport.region import new_token
from mpips.worker.worker import Worker

if TYPE_CHECKING:
    from mpi4py import MPI

Value = TypeVar("Value")
ALL_ROLES = "scheduler + server 0 + worker 0"


@dataclass
class Outcome:
    """The result of a run on each rank.

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
    ranks: tuple[RankPlace, ...] = ()

    @property
    def is_first_worker(self) -> bool:
        """True on exactly one rank of the job: the one to print results on."""
        return self.role.endswith("worker 0")


class JobRanks(Protocol):
    """The ranks of a job before its start-up: one process, or a cluster."""

    @property
    def worker(self) -> int | None:
        """This rank's worker index, or None."""

    def agree(self, what: str, work: Callable[[], Value], lengthy: bool = False) -> list[Value]:
        """Do work on every rank; everyone's result, or the first error on all.

        `lengthy`: it may take longer than the job's timeout.
        """


class OneRank:
    """The only rank, which is worker 0."""

    worker = 0

    def agree(self, what: str, work: Callable[[], Value], lengthy: bool = False) -> list[Value]:
        """See JobRanks."""
        return [work()]


@dataclass(frozen=True)
class JobView:
    """The facts that a program shows a person when a job begins; on the scheduler's rank.

    Attributes:
        saving: Where the job starts.
        rank_table: Calls what is set as `on_look`, `on_end` and in `on_evaluated`.
        description: Roles and transports; "" for one rank.
    """

    saving: Saving
    rank_table: RankTable
    description: str


class Program(Protocol):
    """The work of a job: its tables, the worker's function, and what is shown of it.

    Attributes:
        options: Of the session.
        warm: In a supervised run memory outlives a launch.
        partner_bound: How many records a copy on another node may lack; None: no copies.
    """

    options: SessionOptions
    warm: bool
    partner_bound: int | None

    def prepare(
        self, ranks: JobRanks, n_workers: int, run_id: str, comm: MPI.Intracomm | None
    ) -> SavingPlan:
        """Read what is needed to make the tables. Collective over the ranks; blocks.

        Args:
            ranks: Of the job.
            n_workers: Of the job.
            run_id: Names the run in its checkpoints.
            comm: All ranks; None: this process alone.
        """

    def tables(self) -> list[Table]:
        """Return the job's tables; after `prepare`."""

    def begin(self, saving: Saving, n_workers: int) -> None:
        """Take note of where the job starts. On every rank, after start-up."""

    def show(self, view: JobView) -> RunProgress | None:
        """Show a person that the job begins; how far it is, if the program knows its end."""

    def report(self, epoch: int, step: int, samples: int, loss_sum: float) -> None:
        """Take a worker's progress report. On the scheduler's rank; `step` of the run."""

    def main(self, worker: Worker) -> Any:
        """Work of one worker."""

    def close(self) -> None:
        """End what `show` has begun; also after an error."""


def drive(
    program: Program, run: Supervised | None, comm: MPI.Intracomm | None, size: int
) -> Outcome:
    """Run a program on all ranks of a launch or of `comm`, or in this process. Collective over them.

    Args:
        program: What to run.
        run: The supervised run of which this launch is an attempt.
        comm: All ranks; None: those of the launch.
        size: Number of ranks.
    """
    with signals_unwind(run):
        if size == 1:
            with leaves_after_checkpoint():
                return _drive_alone(program, run)
        if comm is None:
            comm = launch.load_mpi(launch.start_limit(program.options.timeout_s))
        return _drive_cluster(program, run, comm)


@contextmanager
def leaves_after_checkpoint() -> Iterator[None]:
    """End this process, all roles in it, when the checkpoint after which it was to end is written."""
    try:
        yield
    except LeavingError as error:
        print(f"mpips: leaving: {error}", file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from None


def _drive_alone(program: Program, run: Supervised | None) -> Outcome:
    saving = program.prepare(OneRank(), 1, run_id(run, new_token()), None).choose()
    program.begin(saving, 1)
    rank_table = RankTable([here()])
    try:
        run_progress = program.show(JobView(saving, rank_table, ""))
        recorder = open_recorder(run, rank_table, saving, run_progress)
        value, statistics = run_local(
            program.main,
            program.tables(),
            program.options,
            lambda epoch, clock, samples, loss_sum: program.report(
                epoch, saving.steps_before + clock, samples, loss_sum
            ),
            saving,
            recorder,
            rank_table,
            run,
        )
    finally:
        program.close()
    return Outcome(value, ALL_ROLES, statistics, [["local"]], rank_table.places)


def _drive_cluster(program: Program, run: Supervised | None, comm: MPI.Intracomm) -> Outcome:
    from mpips.mpi.cluster import Cluster
    from mpips.session.job import Job

    options = program.options
    with Cluster(comm, options.servers or None, options.timeout_s, run) as cluster:
        n_workers = len(cluster.assignment.workers)
        name = run_id(run, cluster.token)
        plan = program.prepare(cluster, n_workers, name, cluster.comm)
        job = Job(
            cluster, program.tables(), options, plan, run, program.warm, program.partner_bound
        )
        saving = job.saving
        program.begin(saving, n_workers)
        run_progress = None
        try:
            if cluster.is_scheduler:
                run_progress = program.show(JobView(saving, job.rank_table, job.describe()))
            value, statistics = job.run(
                program.main,
                lambda _, r: program.report(
                    r.epoch, saving.steps_before + r.clock, r.samples, r.loss_sum
                ),
                run_progress,
            )
        finally:
            program.close()
        role = cluster.assignment.roles_of(cluster.rank)
        return Outcome(value, role, statistics, job.transports, job.rank_table.places)


def run_alone(
    main: Callable[[Worker], Any], tables: list[Table], options: SessionOptions
) -> Outcome:
    """Run `main` with all roles in this process, without MPI; nothing is saved or shown."""
    value, statistics = run_local(main, tables, options)
    return Outcome(value, ALL_ROLES, statistics, [["local"]], (here(),))


def here() -> RankPlace:
    """This process, where it has all roles."""
    return RankPlace(rank=0, role=ALL_ROLES, host=socket.gethostname(), pid=os.getpid())
