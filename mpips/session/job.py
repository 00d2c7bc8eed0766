"""One job: start-up, roles at work, shutdown.

    start_up  (startup.py)    collective; an error of one rank is raised on all ranks
    Roles     (roles.py)      no collective: rings, and messages to and from the scheduler
    meet      (shutdown.py)   a non-blocking barrier with a deadline, then all parts are released
    Ending    (ending.py)     instead, where a rank fails or is told to end: it does not return

From start-up to shutdown every rank sends heartbeats to the scheduler. A rank that fails sends it the error;
the scheduler prints one message and ends all ranks.

A job of one rank goes the same way without MPI: its steps together are calls (mpips.mpi.one_rank), its
messages too (mpips.scheduler.own_worker), and so is its connection (own_link.py). Where it fails, the error
is raised to the program, which may go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import msgspec

from mpips import _native
from mpips.config.monitoring import MonitorConfig
from mpips.errors import ConfigError, MpipsError, StallError
from mpips.model.grouping import described
from mpips.model.served import served
from mpips.model.stages import has_stages
from mpips.model.table import Table, replicated_tables
from mpips.mpi.one_rank import OneRank
from mpips.mpi.siblings import process_state
from mpips.mpi.signals import SignalRequests, interruption_behind
from mpips.mpi.watchdog import watching
from mpips.process import forked
from mpips.process.patience import Patience
from mpips.record.files import replay_order
from mpips.recovery.saving import FixedPlan, Saving, SavingPlan
from mpips.scheduler.job_statistics import is_saved
from mpips.scheduler.own_worker import OwnWorker
from mpips.scheduler.rank_table import RankTable
from mpips.session.calling import call
from mpips.session.ending import Ending, OwnEnding
from mpips.session.expected_rows import describe as describe_expected
from mpips.session.own_link import OwnLink
from mpips.session.recording import ReplayPlan
from mpips.session.recording import begin as begin_record
from mpips.session.roles import Roles, load_roles
from mpips.session.running import RunningJob
from mpips.session.shutdown import meet, release
from mpips.session.startup import job_fingerprint, start_up
from mpips.snapshot.copy import shards_in_place
from mpips.worker.replicated.memory import node_layout, with_copies

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mpips.checkpoint.shards import ShardData
    from mpips.config.options import SessionOptions
    from mpips.model.placement import Placement
    from mpips.mpi.cluster import Cluster
    from mpips.mpi.control import Client, Endpoint
    from mpips.mpi.messages import Trace, TraceEnd
    from mpips.mpi.one_rank import Ranks
    from mpips.rundir.directory import Supervised
    from mpips.scheduler.observed import ObservedRun
    from mpips.scheduler.recorder import OnReport, RunRecorder
    from mpips.scheduler.run_progress import RunProgress
    from mpips.scheduler.scheduler import OnPoll, Scheduler, ToAllServers, ToOneWorker
    from mpips.scheduler.trace_orders import TraceOrders
    from mpips.server.server import Server
    from mpips.session.initial_values import InitialValues
    from mpips.snapshot.coordinator import Coordinator
    from mpips.worker.replicated.part import ReplicatedPart
    from mpips.worker.worker import Worker

_FEW_GROUPS = 4  # groups of workers that are named
_LEASE_PAUSE_S = 0.002

Main = Callable[["Worker"], Any]


class Job:
    """A job. Its construction and `run` are collective over its ranks.

    Attributes:
        rank_table: Place and activity of every rank, up to date on the scheduler's rank.
    """

    def __init__(
        self,
        ranks: Ranks,
        tables: Sequence[Table],
        options: SessionOptions,
        plan: SavingPlan | None = None,
        run: Supervised | None = None,
        warm: bool = True,
        has_partners: bool = False,
        initial: InitialValues | None = None,
        monitor: MonitorConfig = MonitorConfig(),  # noqa: B008 (frozen)
    ) -> None:
        """Make regions, window and channels; continue in memory or start from a checkpoint. Blocks.

        Args:
            ranks: All ranks.
            tables: All tables of the job; the same on every rank.
            options: Options of the session; the same on every rank.
            plan: Folder for checkpoints and the checkpoint to start from; None: no checkpoints.
            run: The supervised run of which this launch is an attempt.
            warm: In a supervised run servers leave their memory to the next launch, and take over the
                memory of the previous one: then `saving.places` contains the workers' positions.
            has_partners: Servers have replicas on other nodes; see `mpips.recovery.replica`.
            initial: Initial values of dense tables, of which those on the rank of worker 0 count. None
                on all ranks: tables have those of their `init`.
            monitor: Section [monitor] of the job file: metrics for other programs.

        Raises:
            MpipsError: The first error of any rank; all ranks raise it.
        """
        if run is not None and run.generation > 0 and not isinstance(ranks, OneRank):
            _await_lease(ranks, run, options.timeout_s)
        load_roles(ranks, run)
        self.rank_table = RankTable(ranks.places, [table.name for table in served(tables)])
        self._client: Client | OwnWorker | None = None
        self._roles: Roles | None = None
        self._monitor = monitor
        # The server of a job of one rank, behind its end, and the replicated tables of its worker.
        self._left: tuple[Server, ReplicatedPart | None] | None = None
        chosen: SavingPlan = plan or FixedPlan(Saving(None, ranks.token))
        replay = replay_order(run.folder) if run is not None else None
        if monitor.record and has_stages(tables):
            raise ConfigError(
                "monitor.record = true with tables that belong to stages of the model: leave it out, or "
                "declare the tables without stages"
            )
        if isinstance(ranks, OneRank) and replay is not None:
            raise ConfigError(
                "this run directory is that of a replay: mpips replay starts its ranks"
            )
        if isinstance(ranks, OneRank) and monitor.record:
            raise ConfigError(
                "monitor.record = true: needs several ranks; in one process updates have one order, and "
                "the same program repeats it: set it to false"
            )
        if monitor.record or replay is not None:
            # Attempts begin anew or from a checkpoint: the record of a killed rank lacks its last entries,
            # so nothing repeats what its memory has.
            warm = False
        if replay is not None:
            assert run is not None
            chosen = ReplayPlan(chosen, replay, run.folder)
        self._parts = start_up(
            ranks, tables, options, chosen, run, warm, has_partners, self._idle, initial
        )
        if monitor.record or replay is not None:
            try:
                begin_record(self._parts, monitor, replay, job_fingerprint(tables, options))
            except MpipsError:
                release(self._parts, for_good=False)
                raise
        if self._parts.server is not None and (run is not None or monitor.port is not None):
            self._parts.server.observe_rows()

    @property
    def saving(self) -> Saving:
        """Folder for checkpoints, and the start of the job."""
        return self._parts.saving

    @property
    def placement(self) -> Placement:
        """Shards of each server."""
        return self._parts.placement

    @property
    def transports(self) -> Mapping[str, int]:
        """Number of pairs of worker and server by the name of their transport."""
        return self._parts.links.transports

    @property
    def role(self) -> str:
        """Roles of this rank."""
        c = self._parts.ranks
        return c.assignment.roles_of(c.rank)

    def shards_at_end(self) -> Callable[[], list[ShardData]] | None:
        """Return what returns the shards behind the end of a job of one rank, and holds them.

        None: a checkpoint has them, or the servers were other processes.
        """
        if self._left is None or self.saving.folder is not None:
            return None
        (server, copies), placement, tables = self._left, self.placement, self._parts.tables

        def shards() -> list[ShardData]:
            found = shards_in_place(server, placement, tables)
            return found if copies is None else with_copies(found, copies)

        return shards

    def content(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the rows of an embedding table, with the state of its optimizer, after a job of one rank.

        Returns:
            The keys, int64, shape (n,), in any order; and for each key a row of float32: values, state, and
            for rules that count updates the bits of the count.
        """
        assert self._left is not None
        index = [table.name for table in self._parts.tables].index(name)
        return self._left[0].core.embedding_content(index)

    def describe(self) -> str:
        """Return roles and transports, for people, and notes on the start; with one rank the notes alone."""
        p = self._parts
        lines = []
        if not isinstance(p.links, OwnLink):
            lines = [p.ranks.assignment.describe(), p.links.describe()]
        if lines and (found := replicated_tables(p.tables)):
            n_bytes = node_layout(found, len(p.ranks.assignment.workers), p.warm).first_bytes
            tables = f"{len(found)} table{'s' if len(found) > 1 else ''}"
            lines.append(
                f"replicated: {tables}, {n_bytes / 2**20:.1f} MiB on each node with workers"
            )
        if lines and (expected := describe_expected(p.tables, len(p.ranks.assignment.servers))):
            lines.append(expected)
        if p.groups:
            groups = [described(group, p.subgroups) for group in p.groups[:_FEW_GROUPS]]
            more = f", and {n} more" if (n := len(p.groups) - _FEW_GROUPS) > 0 else ""
            n_tables = len(p.grouped_tables) + len(p.grouped_rows)
            lines.append(
                f"groups of workers: {', '.join(groups)}{more}; each pushes the sums of its updates of "
                f"{n_tables} table{'s' if n_tables > 1 else ''}"
            )
        lines += [f"note: {note}" for note in dict.fromkeys(p.notes)]
        if p.cold:
            lines.append(f"note: not continuing in memory: {p.cold}")
        of_saving = (self.saving.version_note, self.saving.unused_triggers)
        lines += [f"note: {note}" for note in of_saving if note]
        return "\n".join(lines)

    def run(
        self, main: Main, on_report: OnReport | None = None, run_progress: RunProgress | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Play this rank's roles until the job is over; returns main's value and the statistics. Blocks.

        The call does not return if any of several ranks fails: the job ends with the exit code of that rank.

        Args:
            main: The worker's function.
            on_report: Called with every progress report, on the scheduler's rank.
            run_progress: Progress of the run; `on_report` counts in it.
        """
        value = None
        with self.at_work(on_report, run_progress) as work:
            if work.worker is not None:
                value = call(main, work.worker, alone=self._parts.ranks.size == 1)
        return value, work.statistics

    @contextmanager
    def at_work(
        self, on_report: OnReport | None = None, run_progress: RunProgress | None = None
    ) -> Iterator[RunningJob]:
        """Play this rank's roles; the block does the work of the worker, if this rank has one.

        The end of the block waits until the job is over. It does not return if any of several ranks fails:
        the job ends with the exit code of that rank. An error of the only rank is raised.

        Args:
            on_report: Called with every progress report, on the scheduler's rank.
            run_progress: Progress of the run; `on_report` counts in it.
        """
        p, c = self._parts, self._parts.ranks
        requests = SignalRequests(p.saving.folder is not None, p.saving.triggers.grace_s, p.run)
        endpoint, client, ending = self._make_messages(requests)
        self._client = client
        scheduler = recorder = metrics = orders = roles = None
        work = RunningJob()
        try:
            if c.is_scheduler:
                from mpips.scheduler.history_file import job_tables
                from mpips.scheduler.recorder import open_recorder
                from mpips.session.observing import open_metrics

                metrics = open_metrics(self._monitor)
                recorder = open_recorder(
                    p.run,
                    self.rank_table,
                    p.saving,
                    run_progress,
                    p.warm,
                    p.options.timeout_s,
                    p.links.paths,
                    metrics,
                    self._monitor.extra_logs,
                    job_tables(p.tables, p.placement, p.links.pairs),
                )
                orders = self._make_orders(endpoint)
                scheduler = self._make_scheduler(endpoint, on_report, recorder, requests, orders)
                if isinstance(client, OwnWorker):
                    is_recorded = recorder is not None or orders is not None
                    client.join(scheduler, p.saving.folder is not None or is_recorded)
            if p.run is not None:
                # No worker dies at work before the supervisor can see that this attempt is at work.
                c.arrive("recording the start of the attempt")
            with requests, self._watched(requests):
                if c.is_scheduler and p.run is not None:
                    p.run.show_at_work(True)
                with forked.children_end_here("the job"):
                    roles = self._roles = Roles(p, client, scheduler, self.rank_table)
                    with roles.at_work() as work.worker:
                        yield work
                work.statistics = msgspec.json.decode(roles.summary)
                self.rank_table.end()
                if p.server is not None and c.size == 1:
                    self._left = p.server, p.made.replicated
                if c.is_scheduler and p.run is not None:
                    p.run.show_at_work(False)
                meet(p, endpoint, is_saved(work.statistics))
                self._forget(roles)
            if recorder is not None:
                _native.fault_point("unmarked")
                recorder.finish(work.statistics)
            if orders is not None:
                orders.close()
        except BaseException as error:
            reason = interruption_behind(error) or error
            if isinstance(reason, KeyboardInterrupt | SystemExit):
                self.rank_table.end()
                ending.die(reason)
            else:
                ending.fail(reason, client, scheduler)
            self._give_back(roles)
            if reason is not error:
                raise reason from None
            raise
        finally:
            if metrics is not None:
                metrics.close()

    def _make_messages(
        self, requests: SignalRequests
    ) -> tuple[Endpoint | OwnWorker, Client | OwnWorker, Ending | OwnEnding]:
        """Make the messages to and from the scheduler, and the end of this rank in a job that fails."""
        p, c = self._parts, self._parts.ranks
        if isinstance(c, OneRank):
            own = OwnWorker()
            return own, own, OwnEnding(p.saving.folder, requests)
        from mpips.mpi.control import Endpoint

        assert p.control_comm is not None
        endpoint = Endpoint(p.control_comm, c.watchdog.guard, c.gate.close)
        # Only memory that outlives this launch can be refused to the next one.
        ending = Ending(c, p.regions, p.saving.folder, requests, p.run if p.warm else None)
        return endpoint, self._make_client(endpoint, requests), ending

    def _watched(self, requests: SignalRequests) -> AbstractContextManager[None]:
        """Return a block in which a watchdog bounds the time after a signal."""
        c = self._parts.ranks
        if isinstance(c, OneRank):
            return watching(requests)
        c.watchdog.allow_checkpoint(requests, self._has_lost_ranks)
        return nullcontext()

    def _forget(self, roles: Roles) -> None:
        """Drop what refers to the tables: they must not stay until Python looks for cycles."""
        client, self._client, self._roles = self._client, None, None
        self.rank_table.show_own(None)
        roles.retire()
        if isinstance(client, OwnWorker):
            client.leave()

    def _give_back(self, roles: Roles | None) -> None:
        """Release the parts of a job of one rank that has failed; other jobs do not come here."""
        if roles is not None:
            self._forget(roles)
        release(self._parts, for_good=True)

    def _make_client(self, endpoint: Endpoint, requests: SignalRequests) -> Client:
        from mpips.mpi.control import Client

        p, c = self._parts, self._parts.cluster
        return Client(
            endpoint,
            c.assignment.scheduler,
            c.assignment.node_names[c.assignment.node_of[c.assignment.scheduler]],
            p.options.timeout_s,
            requests.take,
            c.rank,
            c.size,
        )

    def _make_scheduler(
        self,
        endpoint: Endpoint | OwnWorker,
        on_report: OnReport | None,
        recorder: RunRecorder | ObservedRun | None,
        requests: SignalRequests,
        orders: TraceOrders | None,
    ) -> Scheduler:
        from mpips.scheduler.recorder import recorded
        from mpips.scheduler.scheduler import Scheduler

        p, c = self._parts, self._parts.ranks
        visible = [] if isinstance(c, OneRank) else c.topology.visible_to(c.rank)
        return Scheduler(
            endpoint,
            c.assignment,
            [place.pid for place in self.rank_table.places],
            p.options.timeout_s,
            recorded(on_report, recorder),
            self.rank_table,
            visible,
            requests.take,
            self._make_coordinator if p.saving.folder is not None else None,
            _each_poll(recorder, orders),
        )

    def _make_orders(self, endpoint: Endpoint | OwnWorker) -> TraceOrders | None:
        """Make what orders traces; None without a run directory, or where all roles are not at work."""
        p, a = self._parts, self._parts.ranks.assignment
        if p.run is None:
            return None
        from mpips.scheduler.trace_orders import TraceOrders

        def send(rank: int, order: Trace | TraceEnd) -> None:
            if rank != p.ranks.rank:
                endpoint.send(rank, order)
            elif self._roles is not None and self._roles.tracer is not None:
                self._roles.tracer.take(order)

        return TraceOrders(p.run, a.workers, a.servers, send, self._monitor.trace_steps)

    def _make_coordinator(
        self, send_to_worker: ToOneWorker, send_to_servers: ToAllServers
    ) -> Coordinator:
        from mpips.recovery.exchange import Exchange
        from mpips.snapshot.coordinator import Coordinator
        from mpips.worker.connection_options import needs_common_clock

        p, a = self._parts, self._parts.ranks.assignment
        coordinator = Coordinator(
            p.saving.triggers,
            needs_common_clock(p.tables, p.groups),
            p.saving.steps_before,
            len(a.workers),
            len(a.servers),
            send_to_worker,
            send_to_servers,
            p.options.timeout_s,
            exchange=Exchange(p.ranks.token, self._why_no_exchange()),
            # The command that started a supervised run begins a new one.
            again="run again to continue" if p.run is None else "",
        )
        if p.saving.places:
            ahead = max(place.ahead - place.clock + place.steps for place in p.saving.places)
            coordinator.begin_at(ahead)
        if p.ends_at is not None:
            coordinator.expect_only(f"the replay has come to step {p.ends_at}, and {{wrote}}")
        elif p.stops:
            coordinator.expect_only()
        return coordinator

    def _why_no_exchange(self) -> str:
        """Return why a change of the size of this job needs a file; "": shared memory can hold the job."""
        p = self._parts
        if not p.warm:
            return "no memory of the job outlives a launch (redundancy.warm = false)"
        n_nodes = len(set(p.ranks.assignment.node_of))
        return f"the ranks are on {n_nodes} nodes" if n_nodes > 1 else ""

    def _idle(self) -> bool:
        """Poll the control plane while a worker waits until a server receives a message.

        In a job of one rank: do other work of its server between two drains; return True if it may consume
        more.
        """
        if isinstance(self._client, OwnWorker):
            return self._roles is not None and self._roles.between_drains()
        if self._client is not None:
            self._client.poll()
        return False

    def _has_lost_ranks(self) -> bool:
        """Return whether a process of this node is dead, so that no cut can be taken. For the watchdog."""
        t, mine = self._parts.cluster.topology, self._parts.cluster.rank
        others = (r for r in range(len(t.pids)) if r != mine and t.sees(mine, r))
        return any(process_state(t.pids[rank]) == "dead" for rank in others)


def _await_lease(cluster: Cluster, run: Supervised, timeout_s: float) -> None:
    """Wait until the supervisor has begun this attempt. Collective, blocking.

    The ranks of a standby launch may come here before it has concluded the attempt before; see
    `mpips.supervisor.early_start`.

    Args:
        cluster: All ranks.
        run: The run.
        timeout_s: Seconds that the supervisor may take.

    Raises:
        StallError: It takes longer.
        MpipsError: A later attempt, or one of another supervisor, has the run meanwhile.
    """

    def wait() -> None:
        if not cluster.is_scheduler:
            return
        limit, first = Patience(timeout_s), run.folder.lease()
        while run.is_early():
            if limit.is_over:
                raise StallError(
                    f"`mpips run` has not begun attempt {run.generation} of {run.folder.path} within "
                    f"{timeout_s:g} s of the death of a rank"
                )
            time.sleep(_LEASE_PAUSE_S)
        # Read the lease again: it is that with which the wait has ended, or a later one.
        last = run.folder.lease()
        if first is None or last is None:
            return
        is_other = (first.host, first.pid) != (last.host, last.pid)
        if is_other or last.generation > run.generation:
            raise MpipsError(
                f"these ranks of attempt {run.generation} of {run.folder.path} were replaced before they "
                f"began: process {last.pid} on {last.host} has started attempt {last.generation}"
            )

    cluster.agree("waiting for the end of the attempt before", wait, lengthy=True)


def _each_poll(
    recorder: RunRecorder | ObservedRun | None, orders: TraceOrders | None
) -> OnPoll | None:
    """Return what the scheduler calls at every poll; None: nothing."""
    if orders is None:
        return recorder.look_at if recorder is not None else None

    def both(coordinator: Coordinator | None, clocks: Mapping[int, int]) -> None:
        if recorder is not None:
            recorder.look_at(coordinator, clocks)
        orders.poll()

    return both
