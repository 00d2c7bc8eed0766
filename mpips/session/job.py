"""One job over several ranks, from regions to final_statistics.

Start-up is collective and agrees on every error. From then on nobody enters a collective: workers and
servers talk through rings, everybody tells the scheduler that it lives, and a failure anywhere reaches
the scheduler, which prints one message and ends all ranks. At the end all ranks meet once more, in a
non-blocking barrier with a deadline.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from mpi4py import MPI
from threadpoolctl import threadpool_limits

from mpips import _native
from mpips.config.options import SessionOptions
from mpips.errors import (
    ConfigError,
    MpipsError,
    ReplayError,
    StallError,
)
from mpips.model.consistency import BSP
from mpips.model.placement import Placement, place
from mpips.model.table import Table, fingerprint
from mpips.mpi.cluster import Cluster
from mpips.mpi.control import Client, Endpoint
from mpips.mpi.launch import asked_threads
from mpips.mpi.siblings import process_state
from mpips.mpi.signals import SignalRequests
from mpips.process import forked
from mpips.recovery.memory import At
from mpips.recovery.mirror import Mirror
from mpips.recovery.replica import SYNC, Partners, check_tables
from mpips.recovery.replica_start import Partnership
from mpips.recovery.restore import restore
from mpips.recovery.saving import Saving
from mpips.recovery.takeover import Takeover
from mpips.rundir import directory
from mpips.rundir.directory import RankPlace
from mpips.scheduler.rank_table import RankTable
from mpips.scheduler.recorder import OnReport, is_saved, open_recorder, recorded
from mpips.scheduler.run_progress import RunProgress
from mpips.scheduler.scheduler import Scheduler
from mpips.server.server import Durability, Server, backup_workers
from mpips.session.calling import call
from mpips.session.ending import Ending
from mpips.session.links import Links
from mpips.snapshot.coordinator import Coordinator
from mpips.snapshot.server_part import ServerPart
from mpips.transport.region import (
    TOUCH_S,
    Regions,
    attach,
    persistent,
    staging_part,
    sweep,
    unlink_job,
)
from mpips.worker.worker import Worker, needs_common_clock

Main = Callable[[Worker], Any]


class Job:
    """A session on a cluster. Making and running it is collective over the cluster's ranks."""

    def __init__(
        self,
        cluster: Cluster,
        tables: Sequence[Table],
        options: SessionOptions,
        saving: Saving | Callable[[bool], Saving] | None = None,
        warm: bool = True,
        partner_bound: int | None = None,
    ) -> None:
        """Make regions, window and channels; start from a checkpoint if `saving` names one.

        A function gives `saving` without a checkpoint (False), and is asked for the one to start from
        (True, collective) only where memory does not serve: to verify one takes time, and it may be bad.

        Where the run is supervised, `warm` lets servers leave their state to the next launch, and take
        over what the one before has left: `saving.places` then says where the workers go on. With a
        `partner_bound` each server has a copy on another node; see
        `mpips.recovery.replica_start.Partnership`.

        Raises:
            MpipsError: On every rank, what went wrong on any of them.
        """
        self.cluster = cluster
        self.options = options
        self._plan = saving if callable(saving) else None
        given = saving(False) if callable(saving) else saving
        self.saving = given or Saving(None, cluster.token)
        self._run = directory.current() if warm else None
        if self._run is not None:
            cluster.token = persistent(cluster.token)
        self._bound = partner_bound
        self._partnership: Partnership | None = None
        self._mirror: Mirror | None = None
        self.cold = ""  # why what the launch before has left is not used
        self._at: list[list[At]] = []  # of each server, each worker's position, if it is taken over
        self._server_comm: MPI.Intracomm | None = None
        self.tables = list(tables)
        a = cluster.assignment
        self.rank_table = RankTable(self._places())
        self._check_equal()
        if partner_bound is not None:
            self._check_partners()
        self.placement: Placement = place(
            tables,
            len(a.servers),
            len(a.workers),
            options.ring_slots,
            options.slot_kib * 1024,
            a.remote_workers(options.transport),
            options.remote_staging_mib << 20 if partner_bound is None else 0,
        )
        sweep(spare=cluster.token)
        supervised = directory.current() is not None
        self.regions = Regions(cluster.token, shared=True, supervised=supervised)
        self._ending = Ending(cluster, self.regions, self.saving.folder, self._run)
        self.server: Server | None = None
        self._client: Client | None = None
        self._touched = time.monotonic()
        self._staging: _native.SharedMemory | None = None
        self._comms: list[MPI.Intracomm] = []
        self._skips_clocks = backup_workers(self.tables) > 0
        self._links = Links(
            cluster,
            options,
            self.placement,
            len(self.tables),
            self._skips_clocks,
            self._generation,
            self._idle,
        )
        try:
            self._connect()
        except MpipsError:
            self._release(for_good=False)
            raise
        except BaseException:
            self.regions.leave()
            raise

    def _check_partners(self) -> None:
        if self._run is None:
            raise ConfigError(
                "redundancy.partner = true without memory that outlives a launch: start the job with `mpips "
                "run` and leave redundancy.warm = true"
            )
        check_tables(self.tables)

    def _check_equal(self) -> None:
        mine = fingerprint(self.tables, msgspec.json.encode(self.options).decode())
        prints = self.cluster.agree("comparing the ranks' tables", lambda: mine)
        other = next((r for r, p in enumerate(prints) if p != prints[0]), None)
        if other is not None:
            raise ConfigError(
                f"rank {other} has other tables or options than rank 0; every rank must be given the same"
            )

    def _start(self) -> Saving:
        """With the checkpoint to start from; collective."""
        if self._plan is None:
            return self.saving
        self.cluster.arrive("looking for a checkpoint")
        return self._plan(True)

    def _connect(self) -> None:
        c = self.cluster
        takeover: Takeover | None = None
        if self._run is not None:
            comm = c.duplicate("connecting the partners")
            self._comms.append(comm)
            self._partnership = Partnership(
                comm, c.assignment, c.token, self._generation, c.watchdog.guard, self._bound
            )
            tables = fingerprint(self.tables, msgspec.json.encode(self.options).decode())
            takeover = Takeover(
                c,
                self._run,
                self._partnership,
                tables,
                lambda: self._make_server(warm=True),
                self._make_copy,
                self._skips_clocks,
            )
            self.saving = takeover.choose(self.saving, self._start)
            self.server, self._at, self.cold = takeover.server, takeover.at, takeover.cold
        else:
            self.saving = self._start()
        c.agree("making the regions", self._make_regions, lengthy=True)
        self._control_comm = c.duplicate("connecting the control plane")
        self._comms.append(self._control_comm)
        color = MPI.UNDEFINED if c.server is None else 0
        c.arrive("connecting the servers")
        with c.watchdog.guard("start-up (connecting the servers)"):
            servers = c.comm.Split(color, c.server or 0)
        if isinstance(servers, MPI.Intracomm) and c.server is not None:
            self._comms.append(servers)
            self._server_comm = servers
        staging = self._staging_part if self._bound is None else None
        self._links.open(self.server, self._at, staging, self._oversubscribed)
        self.notes = list(self._links.notes)
        if takeover is not None and self._partnership is not None:
            self._mirror = takeover.join(self.server)
            self.notes += self._partnership.notes

    def _make_server(self, warm: bool) -> Server:
        server = self.cluster.server
        assert server is not None
        return self._server(server, Durability(self._generation, self._run is not None, warm))

    def _make_copy(self, index: int, name: str) -> Server:
        """The copy of another server, from memory of this name."""
        copy = self._server(index, Durability(self._generation, journal=True, warm=True, name=name))
        copy.finish_recovery(lambda w, g: attach(self.cluster.token, staging_part(w, g), 0))
        return copy

    def _server(self, index: int, durability: Durability) -> Server:
        return Server(
            index,
            self.tables,
            self.placement,
            self.regions,
            self.options.seed,
            self._oversubscribed,
            self._links.progress,
            durability,
        )

    @property
    def _generation(self) -> int:
        """Of records; they outlive a launch only in memory that is kept."""
        return self._run.generation if self._run is not None else 0

    def _staging_part(self, worker: int) -> str:
        return f"w{worker}" if self._run is None else staging_part(worker, self._generation)

    def _make_regions(self) -> None:
        c = self.cluster
        if c.server is not None and self.server is None:
            self.server = self._make_server(warm=False)
            if self.saving.start is not None:
                restore(self.server, self.placement, self.tables, self.saving.start)
            if self._run is not None:
                self.server.begin_journal()
        if c.worker is not None and self._bound is None:
            self._staging = self.regions.create_sparse(
                self._staging_part(c.worker), self.options.staging_mib << 20
            )

    @property
    def _oversubscribed(self) -> bool:
        t = self.cluster.topology
        return t.oversubscribed(t.node_of[self.cluster.rank])

    @property
    def _threads(self) -> int:
        """Threads for NumPy's linear algebra here: as asked for, or the node's ranks share its cores.

        They decide on the last bits of a product, so who asks gets the same on any layout of ranks.
        """
        if asked := asked_threads():
            return asked
        t = self.cluster.topology
        node = t.node_of[self.cluster.rank]
        return max(1, t.cores[node] // t.node_of.count(node))

    @property
    def transports(self) -> list[list[str]]:
        """Of each worker, the transport to each server."""
        return self._links.transports

    def _idle(self) -> None:
        """What a worker does while it waits for a message to be taken."""
        if self._client is not None:
            self._client.poll()

    def describe(self) -> str:
        """Roles and transports, for people."""
        lines = [self.cluster.assignment.describe()]
        lines.append(self._links.describe())
        lines += [f"note: {note}" for note in dict.fromkeys(self.notes)]
        if self.cold:
            lines.append(f"note: not going on in memory: {self.cold}")
        return "\n".join(lines)

    def run(
        self, main: Main, on_report: OnReport | None = None, run_progress: RunProgress | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Play this rank's roles until the job is over; returns main's value and the statistics.

        On the scheduler's rank `on_report` hears of all progress, and `run_progress`, which it drives, tells
        how far the job is.

        Does not return where any rank fails: the job is ended with that rank's exit code.
        """
        c = self.cluster
        endpoint = self._endpoint = Endpoint(self._control_comm, c.watchdog.guard)
        node = c.assignment.node_of[c.assignment.scheduler]
        where = c.assignment.node_names[node]
        client = Client(endpoint, c.assignment.scheduler, where, self.options.timeout_s)
        self._client = client
        scheduler = recorder = None
        try:
            if c.is_scheduler:
                in_memory = self._run is not None
                recorder = open_recorder(self.rank_table, self.saving, run_progress, in_memory)
                scheduler = Scheduler(
                    endpoint,
                    c.assignment,
                    list(c.topology.pids),
                    self.options.timeout_s,
                    recorded(on_report, recorder),
                    self.rank_table,
                    [r for r in range(c.size) if c.topology.sees(c.rank, r)],
                )
                coordinator = scheduler.coordinator = self._make_coordinator(scheduler)
                if recorder is not None:
                    scheduler.on_look = functools.partial(recorder.look_at, coordinator)
            with SignalRequests(
                self.saving.folder is not None, self.saving.triggers.grace_s
            ) as signal_requests:
                client.signalled = signal_requests.take
                if scheduler is not None:
                    scheduler.signalled = signal_requests.take
                self._ending.signal_requests = c.watchdog.signal_requests = signal_requests
                self._ending.folder = self.saving.folder
                c.watchdog.is_hopeless = self._has_lost_ranks
                with forked.children_end_here("the job"):
                    value, summary = self._play(main, client, scheduler)
                self.rank_table.end()
                self._meet(is_saved(msgspec.json.decode(summary)))
            if scheduler is not None and recorder is not None:
                _native.fault_point("unmarked")
                recorder.finish(msgspec.json.decode(summary))
        except (KeyboardInterrupt, SystemExit) as error:
            self.rank_table.end()
            self._ending.die(error)
        except BaseException as error:
            self._ending.fail(error, client, scheduler)
        return value, msgspec.json.decode(summary)

    def _has_lost_ranks(self) -> bool:
        """Whether a rank of this node is dead: then there is no cut. Called by the watchdog."""
        t, mine = self.cluster.topology, self.cluster.rank
        others = (r for r in range(len(t.pids)) if r != mine and t.sees(mine, r))
        return any(process_state(t.pids[rank]) == "dead" for rank in others)

    def _make_coordinator(self, scheduler: Scheduler) -> Coordinator | None:
        if self.saving.folder is None:
            return None
        a = self.cluster.assignment
        coordinator = Coordinator(
            self.saving.triggers,
            needs_common_clock(self.tables),
            self.saving.steps_before,
            len(a.workers),
            len(a.servers),
            scheduler.tell_worker,
            scheduler.tell_servers,
            self.options.timeout_s,
        )
        if self.saving.places:
            coordinator.begin_at(max(place.ahead for place in self.saving.places))
        return coordinator

    def _places(self) -> list[RankPlace]:
        a, pids = self.cluster.assignment, self.cluster.topology.pids
        return [
            RankPlace(rank=r, role=a.roles_of(r), host=a.node_names[a.node_of[r]], pid=pids[r])
            for r in range(len(pids))
        ]

    def _play(self, main: Main, client: Client, scheduler: Scheduler | None) -> tuple[Any, bytes]:
        c = self.cluster
        if c.worker is not None:
            return self._work(main, client)
        if self.server is not None:
            return None, self._serve(client, scheduler)
        assert scheduler is not None
        scheduler.run()
        return None, scheduler.summary

    def _work(self, main: Main, client: Client) -> tuple[Any, bytes]:
        c = self.cluster
        assert c.worker is not None
        worker = Worker(
            c.worker,
            [c.name_of(r) for r in c.assignment.workers],
            self.tables,
            self.placement,
            self._links.channels,
            client,
            self._staging,
            self.options.timeout_s,
            self.saving.position(self.options.seed, c.worker, len(c.assignment.workers)),
            self.saving.triggers.every_steps if self.saving.folder is not None else 0,
            self.saving.places[c.worker].clock if self.saving.places else 0,
            self._run is not None,
            self._partners(),
        )
        client.state = "computing"
        client.figures = worker.figures
        client.beside = self._touch
        with threadpool_limits(self._threads):
            try:
                with forked.children_end_here("main"):
                    value = call(main, worker, alone=False)
                worker.finish()
            except _native.ReplayMismatch as error:
                raise ReplayError(
                    f"{error}; a step that is repeated after a restart must make the same pushes (its random "
                    "numbers from worker.random, its keys not by values that other workers change); the "
                    "next attempt starts from the checkpoint"
                ) from None
        statistics = {"worker": c.worker, "clock": worker.now, "pushes": worker.counters()}
        client.done(msgspec.json.encode(statistics))
        client.state = "waiting for the others to finish"
        return value, self._await_final_statistics(client)

    def _partners(self) -> Partners:
        if self._bound is None or self._partnership is None:
            return Partners()
        bsp = any(isinstance(table.consistency, BSP) for table in self.tables)
        return Partners(self._partnership.of, bsp and self._bound == SYNC)

    def _await_final_statistics(self, client: Client) -> bytes:
        while client.final_statistics is None:
            client.poll()
            time.sleep(0.005)
        return client.final_statistics

    def _serve(self, client: Client, scheduler: Scheduler | None) -> bytes:
        assert self.server is not None
        client.state = "serving"
        last = 0.0
        server_part = self._make_server_part(client, scheduler)
        client.figures = self.server.figures
        client.aside = lambda: server_part.state
        self.rank_table.own = client.heartbeat

        def poll() -> bool:
            nonlocal last
            self._touch()
            if scheduler is None:
                client.poll()
            elif time.monotonic() - last > 0.002:
                last = time.monotonic()
                scheduler.poll()
            mirrored = self._mirror is not None and self._mirror.poll()
            return server_part.poll() or mirrored

        remote = self._links.progress.remote or self._mirror is not None
        if scheduler is None:
            self.server.serve(remote, poll, lambda: client.stopped)
            if self._mirror is not None:
                self._mirror.close(self.options.timeout_s, client.poll)
            client.state = "writing a checkpoint"
            client.done(msgspec.json.encode(self._save(server_part, poll)))
            return self._await_final_statistics(client)
        # Two ranks: this one schedules too, and hears of its own end from itself.
        rank = self.cluster.rank
        self.server.serve(remote, poll, lambda: scheduler.workers_done)
        scheduler.take_own(rank, msgspec.json.encode(self._save(server_part, poll)))
        return scheduler.summary

    def _touch(self) -> None:
        """Renew, when it is time, what tells that the memory of the run is in use. Cheap."""
        now = time.monotonic()
        if self._run is not None and now - self._touched > TOUCH_S:
            self._touched = now
            self.regions.touch()

    def _make_server_part(self, client: Client, scheduler: Scheduler | None) -> ServerPart:
        server = self.server
        assert server is not None
        tell = client.tell
        if scheduler is not None:
            tell = functools.partial(scheduler.take_cut, server.index)
        server_part = ServerPart(
            self.saving,
            server,
            self.placement,
            self.tables,
            len(self.cluster.assignment.workers),
            self._server_comm,
            self.options.timeout_s,
            tell,
        )
        client.on_cut = server_part.take
        if scheduler is not None:
            scheduler.on_cut = server_part.take
        return server_part

    def _save(self, server_part: ServerPart, poll: Callable[[], object]) -> dict[str, Any]:
        """Save what the servers hold, if it is wanted; this server's statistics. All servers do it."""
        assert self.server is not None
        mirrored = self._mirror.statistics() if self._mirror is not None else {}
        server_part.save(poll)
        return {**self.server.statistics(), **server_part.statistics(), **mirrored}

    def _meet(self, saved: bool) -> None:
        """The last common point: after it no rank touches another's memory.

        Persistent memory goes only if the last checkpoint was `saved`: else the next launch saves it.
        """
        c = self.cluster
        request = c.comm.Ibarrier()
        deadline = time.monotonic() + self.options.timeout_s
        while not request.Test():
            # A last sign of durability that nobody takes would keep MPICH from freeing the communicator.
            self._endpoint.receive()
            if time.monotonic() > deadline:
                raise StallError(
                    f"not all ranks came to the end within {self.options.timeout_s:g} s"
                )
            time.sleep(0.001)
        self._endpoint.receive()
        self._release(for_good=saved or self._run is None)

    def _release(self, for_good: bool = True) -> None:
        """Give back window, communicators and memory. Collective: every rank comes here or none."""
        if for_good:
            self.regions.unlink()
            unlink_job(self.cluster.token)
        else:
            self.regions.leave()
        with self.cluster.watchdog.guard("freeing the MPI window"):
            self._links.close()
            for comm in self._comms:
                comm.Free()
        self.server = self._staging = self._client = self._mirror = self.rank_table.own = None
