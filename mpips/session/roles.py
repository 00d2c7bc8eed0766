"""The roles of one rank at work: worker, server, scheduler; server and scheduler in one; or all three.

worker      does the worker's work, reports to the scheduler that it is done, waits for the final statistics
server      applies updates until the scheduler stops it, saves, reports, waits for the final statistics
scheduler   polls until all ranks have reported that they are done

In a job of one rank the worker's program runs in the thread of all roles. Its waits let the server consume
records and take part in checkpoints (`between_drains`), and its polls drive the scheduler. When it is done,
the server goes on as in a job of two ranks.
"""

from __future__ import annotations

import functools
import importlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from mpips import _native
from mpips.errors import ReplayError
from mpips.mpi import launch
from mpips.mpi.messages import ONLY, Figures
from mpips.mpi.one_rank import OneRank
from mpips.mpi.role_work import RoleWork
from mpips.process import forked
from mpips.record.files import NO_STOP
from mpips.rundir.directory import replace_json
from mpips.terminal.screen import say
from mpips.transport.channel import MemoryChannel
from mpips.transport.region import TOUCH_S

if TYPE_CHECKING:
    from mpips.mpi.array_mail import ArrayMail
    from mpips.mpi.control import Client
    from mpips.mpi.one_rank import Ranks
    from mpips.mpi.tree import WorkerTree
    from mpips.rundir.directory import Supervised
    from mpips.scheduler.own_worker import OwnWorker
    from mpips.scheduler.rank_table import RankTable
    from mpips.scheduler.scheduler import Scheduler
    from mpips.server.server import Server
    from mpips.session.decision_log import DecisionLog
    from mpips.session.parts import Parts
    from mpips.session.tracing import RankTracer
    from mpips.snapshot.server_part import ServerPart
    from mpips.transport.progress import ProgressThread
    from mpips.worker.connection import Connection
    from mpips.worker.worker import Worker

_SCHEDULER_POLL_S = 0.002  # between two polls of a scheduler on a server's rank
_FINAL_POLL_S = 0.005  # between two looks for the final statistics


_SCHEDULER = (
    "mpips.scheduler.history_file",
    "mpips.scheduler.recorder",
    "mpips.scheduler.scheduler",
    "mpips.scheduler.trace_orders",
    "mpips.session.observing",
    "mpips.snapshot.coordinator",
    "mpips.worker.connection_options",
)
_SERVER = ("mpips.server.look_ups", "mpips.server.server", "mpips.snapshot.server_part")
_WORKER = (
    "mpips.transport.progress",
    "mpips.worker.connection",
    "mpips.worker.connection_options",
    "mpips.worker.worker",
)
_AMONG_WORKERS = (
    "mpips.mpi.array_mail",
    "mpips.mpi.mail",
    "mpips.mpi.tree",
    "mpips.transport.remote",
    "threadpoolctl",
)


def load_roles(ranks: Ranks, run: Supervised | None) -> None:
    """Import the modules of this rank's roles. Not collective. `run`: the supervised run, or None.

    Other ranks do without them. A rank loads its own before start-up, so that no rank that is at work, or
    that fails, has to read a module: its memory may be used up, or its file system gone.
    """
    names = _SCHEDULER if ranks.is_scheduler else ()
    if ranks.server is not None:
        names = (*names, *_SERVER)
    if ranks.worker is not None:
        names = (*names, *_WORKER, *(_AMONG_WORKERS if ranks.size > 1 else ()))
    for name in (*names, *(("mpips.session.tracing",) if run is not None else ())):
        if name not in sys.modules:
            importlib.import_module(name)


class Roles:
    """The work of this rank between start-up and shutdown.

    Attributes:
        summary: Final statistics of the job as JSON; set at the end of `at_work`.
        tracer: This rank's part in traces; None without a run directory, and until the work begins.
    """

    def __init__(
        self,
        parts: Parts,
        client: Client | OwnWorker,
        scheduler: Scheduler | None,
        rank_table: RankTable,
    ) -> None:
        """`scheduler`: the scheduler on this rank, or None."""
        self._parts = parts
        self._client = client
        self._scheduler = scheduler
        self._rank_table = rank_table
        self._touched = time.monotonic()
        self.summary = b""
        self._connection: Connection | None = None
        self._server_part: ServerPart | None = None
        self.tracer: RankTracer | None = None

    @contextmanager
    def at_work(self) -> Iterator[Worker | None]:
        """Play this rank's roles until the job is over. The block does the work of the worker, if any."""
        if self._parts.ranks.worker is not None:
            try:
                with self._working() as worker:
                    yield worker
            except BaseException:
                # After an error in a job of one rank the process may go on, and run other jobs.
                if self._server_part is not None:
                    self._server_part.close()
                raise
            return
        yield None
        if self._parts.server is not None:
            self.summary = self._serve()
            return
        assert self._scheduler is not None
        self._scheduler.run()
        self.summary = self._scheduler.summary

    def retire(self) -> None:
        """Let every later use of the worker raise EndedError, and free the tables of a server.

        Call it when no rank is at work any more. Client, scheduler and the server's part in checkpoints call
        each other: this cuts the cycles of references, which would hold the server's memory.
        """
        self._client.begin(RoleWork())
        self._server_part = None
        if self._scheduler is not None:
            self._scheduler.leave_server()
        if self._connection is not None:
            self._connection.retire()

    def between_drains(self) -> bool:
        """Do one step of the server's part in checkpoints, in a job of one rank; return True for more."""
        return self._server_part is not None and self._server_part.poll()

    @contextmanager
    def _working(self) -> Iterator[Worker]:
        from mpips.transport.progress import ending_with
        from mpips.worker.worker import Worker

        client, scheduler, server = self._client, self._scheduler, self._parts.server
        server_part = self._make_server_part() if server is not None else None
        connection = self._connection = self._connect()
        worker = Worker(connection, self._parts.tables, self._parts.placement)
        client.state = "computing"
        tracer = self._make_tracer(connection)
        client.begin(
            RoleWork(
                figures=functools.partial(_figures, connection, server),
                each_heartbeat=self._touch,
                take_trace=tracer.take if tracer is not None else None,
            )
        )
        if server_part is not None:
            self._rank_table.show_own(client.heartbeat)
        with self._limited_threads():
            try:
                with forked.children_end_here("main"), ending_with(connection.progress):
                    connection.end_clock_behind()
                    self._expect_cut(connection)
                    yield worker
                connection.finish()
            except _native.ReplayMismatch as error:
                raise ReplayError(
                    f"{error}; a step that is repeated after a restart must make the same pushes (random "
                    "numbers from worker.random, keys independent of values that other workers change); "
                    "the next attempt starts from the checkpoint"
                ) from None
        if tracer is not None:
            tracer.end()
        if self._parts.worker_record is not None and (note := self._parts.worker_record.end()):
            say(f"mpips: warning: {note}")
        index = self._parts.ranks.worker
        statistics: dict[str, Any] = {
            "worker": index,
            "clock": worker.now,
            "pushes": worker.counters(),
        }
        if connection.without_clock:
            statistics["without_clock"] = connection.without_clock
        if connection.residuals is not None:
            statistics["lost_residuals"] = connection.residuals.lost
        client.done(msgspec.json.encode(statistics))
        if server_part is not None:
            assert scheduler is not None
            self.summary = self._serve_out(server_part, scheduler, connection.poll_workers)
            return
        client.state = "waiting for the others to finish"
        self.summary = self._await_final_statistics(connection.poll_workers)
        connection.settle_workers()

    def _expect_cut(self, connection: Connection) -> None:
        """Let the worker write the record of a replay's cut at its clock of the recorded run."""
        stops = self._parts.stops if self._parts.ends_at is None else ()
        if stops and (stop := stops[connection.index]) != NO_STOP:
            connection.snapshot.expect_only(stop)

    def _connect(self) -> Connection:
        from mpips.recovery.memory import servers_behind
        from mpips.worker.connection import Connection
        from mpips.worker.connection_options import ConnectionOptions

        p, c, saving = self._parts, self._parts.ranks, self._parts.saving
        assert c.worker is not None
        start = ConnectionOptions(
            saving.position(p.options.seed, c.worker, len(c.assignment.workers)),
            saving.triggers.every_steps if saving.folder is not None else 0,
            saving.places[c.worker].clock if saving.places else 0,
            p.warm,
            p.partners(),
            saving.places[c.worker].steps if saving.places else 0,
            p.groups,
            servers_behind(p.at, saving.places[c.worker]) if saving.places else (),
            saving.folder,
        )
        names = [c.name_of(r) for r in c.assignment.workers]
        if p.worker_record is not None:
            p.worker_record.join([ch for ch in p.links.channels if isinstance(ch, MemoryChannel)])
        # The connection drops the image in it after its use.
        made, p.made = p.made, replace(p.made, local=None)
        return Connection(
            c.worker,
            names,
            p.tables,
            p.links.channels,
            self._client,
            p.staging,
            p.options.timeout_s,
            start,
            self._make_tree(names),
            made,
            self._make_progress(),
            p.worker_record,
            self._make_mail(),
            self._refuse_memory,
        )

    def _refuse_memory(self) -> None:
        """Keep later launches from continuing in the memory of this one, since workers exchange arrays."""
        p = self._parts
        if p.warm and p.run is not None:
            from mpips.recovery.memory import refuse_for_messages

            refuse_for_messages(p.run)

    def _make_mail(self) -> ArrayMail | None:
        """Make the messages to and from single workers; None if there is only one worker."""
        p, client, worker = self._parts, self._client, self._parts.ranks.worker
        if p.tree_comm is None or worker is None:
            return None
        from mpips.mpi.array_mail import ArrayMail, any_source

        a = p.cluster.assignment
        node = a.node_of[a.workers[worker]]
        p.mail = ArrayMail(
            p.tree_comm,
            worker,
            a.workers,
            lambda other: a.node_of[a.workers[other]] != node,
            lambda: f"{client.state} at clock {client.clock}",
            any_source(),
            p.cluster.gate.close,
        )
        return p.mail

    def _make_progress(self) -> ProgressThread | None:
        """Make the progress thread of this worker; None where it has no use or must not be."""
        if isinstance(self._parts.ranks, OneRank):
            return None
        from mpips.transport.progress import ProgressThread, is_wanted
        from mpips.transport.remote import RemoteChannel

        links = self._parts.links
        remote = [channel for channel in links.channels if isinstance(channel, RemoteChannel)]
        if not remote or not is_wanted() or not launch.allows_threads():
            return None
        c = self._parts.cluster
        return ProgressThread(c.gate, remote, c.watchdog.thread_guard)

    def _make_tree(self, names: Sequence[str]) -> WorkerTree | None:
        """Make the tree over the workers with these names; None if there is only one."""
        p, client, worker = self._parts, self._client, self._parts.ranks.worker
        if p.tree_comm is None or worker is None:
            return None
        from mpips.mpi.mail import Mail
        from mpips.mpi.tree import WorkerTree, neighbours_of

        ranks = p.cluster.assignment.workers
        mail = Mail(
            p.tree_comm,
            {w: ranks[w] for w in neighbours_of(worker, len(ranks))},
            enter=p.cluster.gate.close,
        )
        p.tree = WorkerTree(
            mail,
            worker,
            names,
            p.options.timeout_s,
            lambda: f"{client.state} at clock {client.clock}",
        )
        return p.tree

    def _serve(self) -> bytes:
        p, client, scheduler = self._parts, self._client, self._scheduler
        assert p.server is not None
        client.state = "serving"
        last = 0.0
        server_part = self._make_server_part()
        tracer = self._make_tracer()
        client.begin(
            RoleWork(
                figures=p.server.figures,
                activity=lambda: server_part.state,
                take_cut=server_part.take,
                take_trace=tracer.take if tracer is not None else None,
            )
        )
        self._rank_table.show_own(client.heartbeat)
        decisions = _decision_log(p.server)

        def poll() -> bool:
            nonlocal last
            self._touch()
            if p.server_record is not None:
                p.server_record.poll()
            if decisions is not None:
                decisions.poll()
            if scheduler is None:
                client.poll()
            elif time.monotonic() - last > _SCHEDULER_POLL_S:
                last = time.monotonic()
                scheduler.poll()
            mirrored = p.mirror is not None and p.mirror.poll()
            more = tracer.polled(server_part.poll) if tracer is not None else server_part.poll()
            return more or mirrored

        progress = p.links.progress
        remote = (progress is not None and progress.remote) or p.mirror is not None
        if scheduler is None:
            with self._look_ups():
                p.server.serve(remote, poll, lambda: client.stopped)
            if p.mirror is not None:
                p.mirror.close(p.options.timeout_s, client.poll)
            client.state = "writing a checkpoint"
            client.done(msgspec.json.encode(self._save(server_part, poll)))
            return self._await_final_statistics()
        # In a job of two ranks the scheduler on this rank takes the server's statistics by a call.
        with self._look_ups():
            p.server.serve(remote, poll, lambda: scheduler.workers_done)
        scheduler.take_own(p.ranks.rank, msgspec.json.encode(self._save(server_part, poll)))
        return scheduler.summary

    def _look_ups(self) -> AbstractContextManager[None]:
        """Return a block in which the server answers look-ups of `mpips serve`, in a supervised run."""
        p = self._parts
        if p.run is None or not p.regions.shared or p.server is None:
            return nullcontext()
        from mpips.server.look_ups import answering

        return answering(p.server, p.tables, p.placement, p.regions, p.run.generation)

    def _serve_out(
        self, server_part: ServerPart, scheduler: Scheduler, poll_workers: Callable[[], object]
    ) -> bytes:
        """Complete the cut under way and save, when the worker of the only rank is done; see `_serve`."""

        def poll() -> None:
            scheduler.poll()
            poll_workers()

        poll()
        while not scheduler.workers_done:
            server_part.poll()
            poll()
        scheduler.take_own(0, msgspec.json.encode(self._save(server_part, poll)))
        return scheduler.summary

    def _make_tracer(self, connection: Connection | None = None) -> RankTracer | None:
        """Make this rank's part in traces; None without a run directory."""
        p, run = self._parts, self._parts.run
        if run is None:
            return None
        from mpips.session.tracing import RankTracer

        names = [table.name for table in p.tables]
        place = self._rank_table.places[p.ranks.rank]
        offset = self._client.offset
        # The scheduler's own rank has the scheduler's clock.
        best = (lambda: (0, 0)) if self._scheduler is not None else lambda: offset.best
        self.tracer = RankTracer(run, place, names, best, connection, p.server)
        return self.tracer

    def _make_server_part(self) -> ServerPart:
        from mpips.snapshot.server_part import ServerPart

        p, client, scheduler = self._parts, self._client, self._scheduler
        assert p.server is not None
        tell = client.tell
        if scheduler is not None:
            tell = functools.partial(scheduler.take_cut, p.server.index)
        server_part = self._server_part = ServerPart(
            p.saving,
            p.server,
            p.placement,
            p.tables,
            len(p.ranks.assignment.workers),
            p.server_comm,
            p.options.timeout_s,
            tell,
            p.run,
            p.groups,
            [table.name for table in p.grouped_tables.values()],
            p.server_record.note_copy if p.server_record is not None else lambda: None,
        )
        # A replay that ends at a step writes its own copies, and no cut behind them.
        if p.stops and p.ends_at is None:
            server_part.take(ONLY)
        if p.ends_at is not None:
            from mpips.server.recorded import ReplayingServer

            assert isinstance(p.server_record, ReplayingServer)
            assert p.server_record.copier is not None
            p.server_record.copier.ends_by(tell)
        if scheduler is not None:
            scheduler.join_server(server_part.take)
        return server_part

    def _save(self, server_part: ServerPart, poll: Callable[[], object]) -> dict[str, Any]:
        """Write the last checkpoint, if the job has any; returns this server's statistics. On all servers."""
        p = self._parts
        assert p.server is not None
        if self.tracer is not None:
            self.tracer.end()
        mirrored = p.mirror.statistics() if p.mirror is not None else {}
        self._end_record(poll)
        if p.ends_at is None:
            server_part.save(poll)
        return {**p.server.statistics(), **server_part.statistics(), **mirrored}

    def _end_record(self, poll: Callable[[], object]) -> None:
        """End the server's part in a record or a replay, when all workers have finished. `poll`: other work.

        Raises:
            DifferenceError: The replay differs from the recorded run.
        """
        p = self._parts
        if p.server_record is None or p.server is None:
            return
        from mpips.server.recorded import ReplayingServer, table_digests

        note = p.server_record.end(table_digests(p.server, p.placement, p.tables), poll)
        if note:
            say(f"mpips: warning: {note}")
        if isinstance(p.server_record, ReplayingServer) and p.run is not None:
            path = p.run.folder.path / f"replayed-{p.server.index}.json"
            replace_json(path, p.server_record.result)

    def _await_final_statistics(self, meanwhile: Callable[[], object] = lambda: None) -> bytes:
        while self._client.final_statistics is None:
            self._client.poll()
            meanwhile()
            time.sleep(_FINAL_POLL_S)
        return self._client.final_statistics

    def _touch(self) -> None:
        """Renew, when it is time, the mark that the memory of the run is in use. Cheap."""
        now = time.monotonic()
        if self._parts.warm and now - self._touched > TOUCH_S:
            self._touched = now
            self._parts.regions.touch()

    def _limited_threads(self) -> AbstractContextManager[object]:
        """Return a block with threads for NumPy's linear algebra as configured, else a share of the cores.

        The last bits of a product depend on this number. A configured number therefore gives the same bits on
        any layout of ranks. The only rank of a job leaves it as the process has it.
        """
        if isinstance(self._parts.ranks, OneRank):
            return nullcontext()
        from threadpoolctl import threadpool_limits

        limit: AbstractContextManager[object] = threadpool_limits(
            launch.asked_threads() or self._parts.ranks.n_cores
        )
        return limit


def _figures(connection: Connection, server: Server | None) -> Figures:
    """Return the worker's counts, with those of the server on its rank that a worker does not have."""
    found = connection.figures()
    if server is not None:
        served = server.figures()
        found.memory_bytes = served.memory_bytes
        found.staleness, found.tables, found.rows = served.staleness, served.tables, served.rows
        found.shm_used_bytes = served.shm_used_bytes
        found.shm_total_bytes = served.shm_total_bytes
    return found


def _decision_log(server: Server) -> DecisionLog | None:
    """Return the log of a server's decisions; None: it takes none."""
    if not server.decides:
        return None
    from mpips.session.decision_log import DecisionLog

    return DecisionLog(server)
