"""From a program to its outcome: the one path of `mpips.run` and of `mpips train`.

gathered    with several ranks: load MPI, give every rank a role; one rank has all roles
at_work     prepare, make a `Job`, play this rank's roles

Both are blocks: `drive` calls the program's worker function in them, `mpips.init` leaves them open until the
end of the script.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from mpips.errors import LeavingError
from mpips.mpi import failure_report, launch
from mpips.mpi.one_rank import OneRank
from mpips.mpi.signals import signals_unwind
from mpips.recovery.saving import Saving, SavingPlan
from mpips.rundir.directory import Supervised, run_id
from mpips.scheduler.rank_table import RankTable
from mpips.session.calling import call
from mpips.session.final_tables import FinalTables
from mpips.terminal.screen import say

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpips.config.monitoring import MonitorConfig
    from mpips.config.options import SessionOptions
    from mpips.model.table import Table
    from mpips.mpi.messages import Report
    from mpips.mpi.one_rank import Ranks
    from mpips.rundir.files import RankPlace
    from mpips.scheduler.run_progress import RunProgress
    from mpips.session.initial_values import InitialValues
    from mpips.session.running import RunningJob
    from mpips.worker.worker import Worker

Value = TypeVar("Value")


@dataclass
class Outcome:
    """The result of a run on each rank.

    Attributes:
        value: Return value of the worker function, on workers; None elsewhere.
        role: Roles of this rank: "scheduler", "server 0", "worker 2", ...
        statistics: On the ranks of the first worker and of the scheduler {"totals": {...}, "servers": [...],
            "workers": [...], "scheduler": {...}}; on all other ranks {"totals": {...}, "scheduler": {...},
            "own": {...}} with this rank's entry only. "totals" is {"servers": {...}, "workers": {...}} with
            the keys of the entries: sums, or the greatest value of clocks, versions and maxima.
        transports: Number of pairs of worker and server by the name of their transport.
        ranks: Place of every rank.
        tables: Values of the tables at the end, by name: `outcome.tables["w"]`. See
            `mpips.session.final_tables.FinalTables`.
    """

    value: Any = None
    role: str = ""
    statistics: dict[str, Any] = field(default_factory=dict)
    transports: Mapping[str, int] = field(default_factory=dict)
    ranks: tuple[RankPlace, ...] = ()
    tables: FinalTables = field(default_factory=FinalTables)

    def __repr__(self) -> str:
        """Return the rank's role, its value, the job's size and last clock, and the names of the tables."""
        totals = self.statistics.get("totals", {})
        parts = [f"value {reprlib.repr(self.value)}"]
        for role in ("workers", "servers"):
            if n := totals.get(role, {}).get("number"):
                parts.append(f"{n} {role if n > 1 else role[:-1]}")
        if (clock := totals.get("workers", {}).get("clock")) is not None:
            parts.append(f"clock {clock}")
        parts.append(f"tables {reprlib.repr([*self.tables])}")
        return f"<outcome of {self.role or 'a rank'}: {', '.join(parts)}>"

    @property
    def is_first_worker(self) -> bool:
        """True on exactly one rank of the job, which prints results."""
        return self.role.endswith("worker 0")

    @property
    def unsaved(self) -> str:
        """The reason for which the checkpoint at the end was not written; "": none."""
        saved = self.statistics.get("totals", {}).get("servers", {}).get("checkpoint") or {}
        return str(saved.get("error", ""))


class JobView(msgspec.Struct, frozen=True):
    """The facts that a program shows when a job begins. On the scheduler's rank.

    Attributes:
        saving: Folder for checkpoints, and the start of the job.
        rank_table: Place and activity of every rank.
        description: Roles and transports of several ranks, and notes on the start.
    """

    saving: Saving
    rank_table: RankTable
    description: str


class Program(Protocol):
    """The work of a job: its tables, the worker's function, its display.

    Attributes:
        options: Options of the session.
        warm: In a supervised run the servers' memory outlives a launch.
        has_partners: Servers have replicas on other nodes, where there are any.
        monitor: Section [monitor] of the job file: metrics for other programs.
    """

    options: SessionOptions
    monitor: MonitorConfig
    warm: bool
    has_partners: bool

    def prepare(
        self, ranks: Ranks, n_workers: int, run_id: str, comm: MPI.Intracomm | None
    ) -> SavingPlan:
        """Read the inputs of the tables. Collective over the ranks; blocks.

        Args:
            ranks: All ranks of the job.
            n_workers: Number of workers of the job.
            run_id: Name of the run in its checkpoints.
            comm: Communicator of all ranks; None: this process alone.
        """

    def tables(self) -> list[Table]:
        """Return the job's tables. Called after `prepare`."""

    def initial_values(self) -> InitialValues | None:
        """Return the initial values of dense tables, where worker 0 has them.

        None on every rank: tables have those of their `init`. Else those of worker 0 count. Called after
        `prepare`.
        """

    def begin(self, saving: Saving, n_workers: int) -> None:
        """Take the start of the job. Called on every rank after start-up."""

    def show(self, view: JobView) -> RunProgress | None:
        """Show that the job begins; return its progress if the program's end is known. On the scheduler."""

    def report(
        self, epoch: int, step: int, samples: int, loss_sum: float, rates: Sequence[float] = ()
    ) -> None:
        """Take a worker's progress report, on the scheduler.

        Args:
            epoch: Epoch of the worker, from 0.
            step: Step of the run.
            samples: Samples since its report before.
            loss_sum: Sum of their losses.
            rates: Its learning rates; empty: unknown, or as before.
        """

    def main(self, worker: Worker) -> Any:
        """Do the work of one worker; returns its result."""

    def close(self) -> None:
        """End the display that `show` has begun. Called also after an error."""


@contextmanager
def gathered(
    options: SessionOptions, run: Supervised | None, comm: MPI.Intracomm | None, size: int
) -> Iterator[Ranks]:
    """Give every rank of a launch or of `comm` a role, for the block. Collective over them.

    Args:
        options: Options of the session.
        run: The supervised run of which this launch is an attempt.
        comm: All ranks; None: those of the launch.
        size: Number of ranks.
    """
    with signals_unwind(run):
        if size == 1:
            _show_stderr(run)
            with leaves_after_checkpoint():
                yield OneRank()
            return
        if comm is None:
            comm = launch.load_mpi(launch.start_limit(options.timeout_s))
        from mpips.mpi.cluster import Cluster

        with Cluster(comm, options.servers or None, options.timeout_s, run) as cluster:
            if cluster.worker == 0:
                _show_stderr(run)
            yield cluster


def _show_stderr(run: Supervised | None) -> None:
    """Let the terminal of `mpips run` show stderr of this rank, which has worker 0."""
    if run is not None:
        failure_report.show_stderr()


@contextmanager
def at_work(
    program: Program, ranks: Ranks, run: Supervised | None
) -> Iterator[tuple[RunningJob, Outcome]]:
    """Prepare the program, start the job and play this rank's roles. Collective over the ranks.

    The block does the work of the worker, if this rank has one; see `Job.at_work`. The outcome has no
    `value`, and its statistics are set when the block has ended.

    Args:
        program: The program.
        ranks: All ranks of the job, which has not started yet.
        run: The supervised run of which this launch is an attempt.
    """
    from mpips.session.job import Job

    n_workers = len(ranks.assignment.workers)
    plan = program.prepare(ranks, n_workers, run_id(run, ranks.token), ranks.comm)
    job = Job(
        ranks,
        program.tables(),
        program.options,
        plan,
        run,
        program.warm,
        program.has_partners,
        program.initial_values(),
        program.monitor,
    )
    saving = job.saving
    program.begin(saving, n_workers)
    run_progress = None

    def show() -> None:
        nonlocal run_progress
        if ranks.is_scheduler:
            run_progress = program.show(JobView(saving, job.rank_table, job.describe()))

    def on_report(_: int, r: Report) -> None:
        rates = r.details.rates if r.details is not None else ()
        program.report(r.epoch, saving.steps_before + r.clock, r.samples, r.loss_sum, rates)

    outcome = Outcome(None, job.role, {}, job.transports, job.rank_table.places)
    try:
        # All ranks wait for it, so that the roles are printed before anything that a worker prints.
        ranks.agree("showing the job", show)
        if run is not None:
            from mpips.mpi import started

            started.note(run, job.role)
        with job.at_work(on_report, run_progress) as work:
            yield work, outcome
        outcome.statistics = work.statistics
        outcome.tables = FinalTables.of(program.tables(), work.statistics, job.shards_at_end())
    finally:
        program.close()


def drive(
    program: Program, run: Supervised | None, comm: MPI.Intracomm | None, size: int
) -> Outcome:
    """Run a program on all ranks of a launch or of `comm`, or in this process. Collective over them.

    Args:
        program: The program.
        run: The supervised run of which this launch is an attempt.
        comm: All ranks; None: those of the launch.
        size: Number of ranks.
    """
    with (
        gathered(program.options, run, comm, size) as ranks,
        at_work(program, ranks, run) as (work, outcome),
    ):
        if work.worker is not None:
            from mpips.worker.worker import connection_of

            connection_of(work.worker).watch_clock()
            outcome.value = call(program.main, work.worker, alone=size == 1)
    return outcome


@contextmanager
def leaves_after_checkpoint() -> Iterator[None]:
    """End this process, which has all roles, when the checkpoint after which it was to end is written."""
    try:
        yield
    except LeavingError as error:
        say(f"mpips: leaving: {error}")
        raise SystemExit(error.exit_code) from None


def run_alone(
    main: Callable[[Worker], Any], tables: list[Table], options: SessionOptions
) -> Outcome:
    """Run `main` with all roles in this process, without MPI, checkpoints and display."""
    from mpips.session.job import Job

    job = Job(OneRank(), tables, options)
    value, statistics = job.run(main)
    final = FinalTables.of(tables, statistics, job.shards_at_end())
    return Outcome(value, job.role, statistics, job.transports, job.rank_table.places, final)
