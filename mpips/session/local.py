"""A job with scheduler, server and worker in one process and one thread, without MPI.

The worker's waits drive the server: the channel between them calls `drain`, which lets the server consume
records and write checkpoints, and takes requests by signals.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.checkpoint.start import newest_name
from mpips.config.monitoring import MonitorConfig
from mpips.errors import ConfigError
from mpips.model.auto_codec import decided_alone
from mpips.model.placement import place
from mpips.model.served import local_tables, served
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.mpi.messages import Figures, Heartbeat
from mpips.mpi.signals import SignalRequests, TerminatedError
from mpips.mpi.watchdog import watching
from mpips.process import forked
from mpips.recovery.restore import restore
from mpips.recovery.saving import FixedPlan, Saving, SavingPlan
from mpips.rundir.files import RankPlace
from mpips.scheduler.history_file import job_tables
from mpips.scheduler.job_statistics import complete_statistics
from mpips.scheduler.rank_table import RankTable
from mpips.scheduler.recorder import OnReport, open_recorder
from mpips.scheduler.trace_orders import TraceOrders
from mpips.server.server import Server
from mpips.session.calling import call
from mpips.session.initial_values import store_rows
from mpips.session.local_scheduler import LocalScheduler
from mpips.session.observing import open_metrics
from mpips.session.running import RunningJob
from mpips.session.tracing import RankTracer
from mpips.snapshot.copy import shards_in_place
from mpips.snapshot.server_part import ServerPart
from mpips.transport.channel import LocalChannel
from mpips.transport.region import Regions, new_token
from mpips.worker.connection import Connection
from mpips.worker.connection_options import ConnectionOptions
from mpips.worker.image.start import notes_of, start_alone
from mpips.worker.replicated.memory import local_part, with_copies
from mpips.worker.start import MadeParts
from mpips.worker.worker import Worker

if TYPE_CHECKING:
    from mpips.checkpoint.shards import ShardData
    from mpips.config.options import SessionOptions
    from mpips.rundir.directory import Supervised
    from mpips.scheduler.observed import Observer
    from mpips.scheduler.run_progress import RunProgress
    from mpips.session.initial_values import InitialValues
    from mpips.worker.replicated.part import ReplicatedPart

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
ALL_ROLES = "scheduler + server 0 + worker 0"


class LocalJob:
    """A job in this process; the counterpart of mpips.session.job.Job.

    Attributes:
        rank_table: Activity of this process.
        saving: Folder for checkpoints, and the start of the job.
        transports: Name of the transport of the only pair of worker and server.
        role: All roles.
    """

    role = ALL_ROLES

    def __init__(
        self,
        tables: Sequence[Table],
        options: SessionOptions,
        plan: SavingPlan | None = None,
        run: Supervised | None = None,
        initial: InitialValues | None = None,
        content: Mapping[str, tuple[Int64, Float32]] | None = None,
        monitor: MonitorConfig = MonitorConfig(),  # noqa: B008 (frozen)
    ) -> None:
        """Make the server, and restore its tables if the job starts from a checkpoint.

        Args:
            tables: All tables of the job.
            options: Options of the session.
            plan: Folder for checkpoints and the checkpoint to start from; None: no checkpoints.
            run: The supervised run of this process, or None.
            initial: Initial values of tables; None: tables have those of their `init`.
            content: Content of embedding tables by name, as `content` of an earlier job returned it.
            monitor: Section [monitor] of the job file: metrics for other programs.

        Raises:
            MpipsError: The tables do not fit, or the checkpoint is damaged.
        """
        self.rank_table = RankTable([_this_process()], [table.name for table in served(tables)])
        self.transports = {"local": 1}
        tables = decided_alone(tables)
        self._local = local_tables(tables)
        declared, tables = tables, served(tables)
        self._tables = tables
        self._options = options
        self._monitor = monitor
        if monitor.record:
            raise ConfigError(
                "monitor.record = true: needs several ranks; in one process updates have one order, and "
                "the same program repeats it: set it to false"
            )
        self._orders: TraceOrders | None = None
        self._run = run
        self._placement = place(tables, 1, 1, options.ring_slots, options.slot_bytes)
        self._regions = Regions(new_token(), shared=False)
        self.saving = (plan or FixedPlan(Saving(None, self._regions.token))).choose()
        self._copies: ReplicatedPart | None = (
            None  # the replicated tables, from the start of the worker on
        )
        self._server = Server(0, tables, self._placement, self._regions, options.seed, True, None)
        if run is not None or monitor.port is not None:
            self._server.observe_rows()
        self._notes: list[str] = []
        if self.saving.start is not None:
            restore(self._server, self._placement, tables, self.saving.start)
            self._notes += notes_of(self.saving, 1, declared, tables)
        elif initial is not None:
            indices = {table.name: i for i, table in enumerate(tables)}
            for group in range(len(initial.groups)):
                for name, values in initial.take(group).items():
                    self._server.core.set_dense(indices[name], values.reshape(-1))
            for name, keys, rows in initial.take_rows():
                table = tables[indices[name]]
                assert isinstance(table, EmbeddingTable)
                store_rows(self._server, indices[name], table, keys, rows)
            for name, states, steps in initial.take_states():
                for slot, state in enumerate(states):
                    self._server.core.set_dense_state(indices[name], slot, state.reshape(-1))
                self._server.core.set_steps_before(indices[name], steps)
        for name, (keys, rows) in (content or {}).items():
            self._server.core.load_rows(self._index(name), keys, rows)

    def content(self, name: str) -> tuple[Int64, Float32]:
        """Return the rows of an embedding table, with the state of its optimizer, after the end of the job.

        Returns:
            The keys, int64, shape (n,), in any order; and for each key a row of float32: values, state, and
            for rules that count updates the bits of the count.
        """
        return self._server.core.embedding_content(self._index(name))

    def shards_at_end(self) -> Callable[[], list[ShardData]] | None:
        """Return what returns the shards after the end, and holds them; None: a checkpoint has them."""
        if self.saving.folder is not None:
            return None
        server, placement, tables = self._server, self._placement, list(self._tables)
        copies = self._copies

        def shards() -> list[ShardData]:
            found = shards_in_place(server, placement, tables)
            return found if copies is None else with_copies(found, copies)

        return shards

    def _index(self, name: str) -> int:
        return [table.name for table in self._tables].index(name)

    def describe(self) -> str:
        """Return notes on the start; one process has no roles and transports to show."""
        return "\n".join(f"note: {note}" for note in self._notes)

    def run(
        self,
        main: Callable[[Worker], Any],
        on_report: OnReport | None = None,
        run_progress: RunProgress | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Call `main` with the worker; returns its value and the statistics. Blocks.

        Args:
            main: The worker's function.
            on_report: Called with 0 and each progress report.
            run_progress: Progress of the run; `on_report` counts in it.

        Raises:
            Exception: Any exception of `main`.
        """
        with self.at_work(on_report, run_progress) as work:
            assert work.worker is not None
            value = call(main, work.worker, alone=True)
        return value, work.statistics

    @contextmanager
    def at_work(
        self, on_report: OnReport | None = None, run_progress: RunProgress | None = None
    ) -> Iterator[RunningJob]:
        """Play all roles; the block does the work of the worker, and its end finishes the job.

        Args:
            on_report: Called with 0 and each progress report.
            run_progress: Progress of the run; `on_report` counts in it.
        """
        metrics = open_metrics(self._monitor)
        try:
            with self._recorded(metrics, on_report, run_progress) as work:
                yield work
        finally:
            if metrics is not None:
                metrics.close()

    @contextmanager
    def _recorded(
        self,
        metrics: Observer | None,
        on_report: OnReport | None,
        run_progress: RunProgress | None,
    ) -> Iterator[RunningJob]:
        """Play all roles for the block, with a recorder; see `at_work`."""
        has_dense = any(isinstance(table, DenseTable) for table in self._tables)
        recorder = open_recorder(
            self._run,
            self.rank_table,
            self.saving,
            run_progress,
            paths={"shared": 1} if has_dense else {},
            tables=job_tables(self._tables, self._placement, [["local"]]),
            observer=metrics,
            logs=self._monitor.extra_logs,
        )
        scheduler = LocalScheduler(on_report, recorder, self.rank_table)
        server_part = self._make_server_part(scheduler)
        folder = self.saving.folder
        work = RunningJob()
        with (
            SignalRequests(folder is not None, self.saving.triggers.grace_s, self._run) as requests,
            watching(requests),
            closing(server_part),
            self._connected(scheduler, server_part, requests) as connection,
        ):
            worker = work.worker = Worker(connection, self._tables, self._placement)
            try:
                with forked.children_end_here("the job"):
                    with forked.children_end_here("main"):
                        yield work
                    connection.finish()
                    scheduler.end_cuts(server_part)

                    def between() -> None:
                        scheduler.poll()
                        connection.poll_workers()

                    server_part.save(between)
            except (TerminatedError, KeyboardInterrupt) as error:
                code = error.code if isinstance(error, TerminatedError) else 130
                requests.say_end(code, newest_name(folder))
                raise
            work.statistics = complete_statistics(
                [{**self._server.statistics(), **server_part.statistics()}],
                [{"worker": 0, "clock": worker.now, "pushes": worker.counters()}],
                scheduler.statistics(),
            )
        if recorder is not None:
            recorder.finish(work.statistics)
        if self._orders is not None:
            self._orders.close()

    def _make_server_part(self, scheduler: LocalScheduler) -> ServerPart:
        timeout_s = self._options.timeout_s
        server_part = ServerPart(
            self.saving,
            self._server,
            self._placement,
            self._tables,
            1,
            None,
            timeout_s,
            scheduler.take_from_server,
            self._run,
        )
        scheduler.coordinate(self.saving, self._tables, server_part, timeout_s)
        return server_part

    @contextmanager
    def _connected(
        self, scheduler: LocalScheduler, server_part: ServerPart, requests: SignalRequests
    ) -> Iterator[Connection]:
        """Connect the worker with the server for the block.

        Its end cuts the cycles of references that would hold the tables: the process may go on, and run
        other jobs.
        """
        options, server, saving = self._options, self._server, self.saving
        layout = self._placement.layouts[0]
        writer = _native.RingWriter(
            server.region,
            layout.mailbox_offset(0),
            layout.geometry,
            0,
            0,
            options.checksums,
            len(self._tables),
        )
        staging = self._regions.create_sparse("w0", options.staging_mib << 20)
        server.core.set_staging(0, staging)

        def drain() -> int:
            consumed, ask = server.drain(), requests.take()
            if saving.folder is None:
                return consumed
            if ask is not None:
                scheduler.ask(ask)
            if server_part.poll():
                consumed += server.drain()  # records behind a cut
            return consumed

        channel = LocalChannel(server.region, layout, writer, 1, drain)
        start = ConnectionOptions(
            saving.position(options.seed, 0, 1),
            saving.triggers.every_steps if saving.folder is not None else 0,
            folder=saving.folder,
        )
        stores = saving.folder is not None
        replicated = local_part(self._tables, self._placement, self._regions, [server], stores)
        local, residuals = start_alone(
            self._tables, self._local, self._placement, self._regions, saving
        )
        made = MadeParts(replicated, local, residuals=residuals)
        self._copies = made.replicated
        connection = Connection(
            0,
            ["worker 0"],
            self._tables,
            [channel],
            scheduler,
            staging,
            options.timeout_s,
            start,
            made=made,
        )

        def heartbeat() -> Heartbeat:
            return Heartbeat(scheduler.state, connection.step, _figures(connection, server))

        self.rank_table.show_own(heartbeat)
        tracer = self._traced(scheduler, connection)
        try:
            yield connection
            if tracer is not None:
                tracer.end()
        finally:
            scheduler.trace(None)
            last = heartbeat()
            self.rank_table.show_own(lambda: last)
            connection.retire()
            scheduler.close()

    def _traced(self, scheduler: LocalScheduler, connection: Connection) -> RankTracer | None:
        """Let the scheduler order traces of this process; None without a run directory."""
        run = self._run
        if run is None:
            return None
        names = [table.name for table in self._tables]
        place = self.rank_table.places[0]
        tracer = RankTracer(run, place, names, lambda: (0, 0), connection, self._server)
        orders = TraceOrders(
            run, (0,), (0,), lambda rank, order: tracer.take(order), self._monitor.trace_steps
        )
        scheduler.trace(orders)
        self._orders = orders
        return tracer


def run_local(
    main: Callable[[Worker], Any],
    tables: Sequence[Table],
    options: SessionOptions,
    saving: Saving | None = None,
    run: Supervised | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Make a LocalJob and run it; returns the value of `main` and the statistics."""
    plan = FixedPlan(saving) if saving is not None else None
    return LocalJob(tables, options, plan, run).run(main)


def _figures(connection: Connection, server: Server) -> Figures:
    """Return the worker's figures, with those of the server that a worker does not have."""
    found, served = connection.figures(), server.figures()
    found.memory_bytes = served.memory_bytes
    found.staleness, found.tables, found.rows = served.staleness, served.tables, served.rows
    found.shm_used_bytes = served.shm_used_bytes
    found.shm_total_bytes = served.shm_total_bytes
    return found


def _this_process() -> RankPlace:
    return RankPlace(rank=0, role=ALL_ROLES, host=socket.gethostname(), pid=os.getpid())
