"""One job over several ranks, from regions to farewell.

Start-up is collective and agrees on every error. From then on nobody enters a collective: workers and
servers talk through rings, everybody tells the scheduler that it lives, and a failure anywhere reaches
the scheduler, which prints one message and ends all ranks. At the end all ranks meet once more, in a
non-blocking barrier with a deadline.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from mpi4py import MPI
from threadpoolctl import threadpool_limits

from mpips import _native
from mpips.chronicle import Chronicle, open_chronicle
from mpips.cluster import lastwords
from mpips.cluster.cluster import Cluster
from mpips.cluster.control import Client, Endpoint
from mpips.cluster.launch import asked_threads
from mpips.cluster.messages import Report
from mpips.cuts.conductor import Conductor, LeavingError
from mpips.cuts.keeper import Keeper
from mpips.cuts.triggers import UserSignal
from mpips.errors import ConfigError, MpipsError, StallError
from mpips.model.table import Table, fingerprint
from mpips.options import SessionOptions
from mpips.placement import Placement, place
from mpips.rundir import RankPlace
from mpips.saving import Saving, restore
from mpips.scheduler import JobFailure, Scheduler
from mpips.server import Server
from mpips.transport.channel import Channel
from mpips.transport.connect import Connector
from mpips.transport.p2p import P2pService
from mpips.transport.region import Regions, attach, sweep
from mpips.transport.rma import make_window
from mpips.worker import Worker, needs_common_clock

Main = Callable[[Worker], Any]
OnReport = Callable[[int, Report], None]


def chronicled(on_report: OnReport | None, chronicle: Chronicle | None) -> OnReport | None:
    """What hears the workers' reports: whoever shows progress, and the record of a supervised run."""
    if chronicle is None:
        return on_report

    def both(worker: int, report: Report) -> None:
        chronicle.report(report.epoch, report.samples, report.loss_sum)
        if on_report is not None:
            on_report(worker, report)

    return both


def look(chronicle: Chronicle, conductor: Conductor | None, clocks: dict[int, int]) -> None:
    """Keep the record of a supervised run up to date."""
    if conductor is not None:
        chronicle.saved(conductor.statistics.get("path", ""))
    chronicle.look(clocks)


class Job:
    """A session on a cluster. Making and running it is collective over the cluster's ranks."""

    def __init__(
        self,
        cluster: Cluster,
        tables: Sequence[Table],
        options: SessionOptions,
        saving: Saving | None = None,
    ) -> None:
        """Make regions, window and channels; start from a checkpoint if `saving` names one.

        Raises:
            MpipsError: On every rank, what went wrong on any of them.
        """
        self.cluster = cluster
        self.options = options
        self._saving = saving or Saving(None, cluster.token)
        self._server_comm: MPI.Intracomm | None = None
        self.tables = list(tables)
        a = cluster.assignment
        self._check_equal()
        self.placement: Placement = place(
            tables,
            len(a.servers),
            len(a.workers),
            options.ring_slots,
            options.slot_kib * 1024,
            a.remote_workers(options.transport),
            options.remote_staging_mib << 20,
        )
        sweep()
        self.regions = Regions(cluster.token, shared=True)
        self.server: Server | None = None
        self._service: P2pService | None = None
        self._remote = False
        self._client: Client | None = None
        self._staging: _native.SharedMemory | None = None
        self._channels: list[Channel] = []
        self._window: MPI.Win | None = None
        self._comms: list[MPI.Intracomm] = []
        try:
            self._connect()
        except MpipsError:
            self._release()
            raise
        except BaseException:
            self.regions.unlink()
            raise

    def _check_equal(self) -> None:
        mine = fingerprint(self.tables, msgspec.json.encode(self.options).decode())
        prints = self.cluster.agree("comparing the ranks' tables", lambda: mine)
        other = next((r for r, p in enumerate(prints) if p != prints[0]), None)
        if other is not None:
            raise ConfigError(
                f"rank {other} has other tables or options than rank 0; every rank must be given the same"
            )

    def _connect(self) -> None:
        c = self.cluster
        c.agree("making the regions", self._make_regions)
        region = self.server.region if self.server is not None else None
        memory = region.view(0, region.n_bytes, True) if region is not None else None
        with c.watchdog.guard("making the MPI window"):
            self._window = None if self.options.transport == "p2p" else make_window(c.comm, memory)
        self._p2p_comm, self._control_comm = self._comms = [c.comm.Dup(), c.comm.Dup()]
        color = MPI.UNDEFINED if c.server is None else 0
        servers = c.comm.Split(color, c.server or 0)
        if isinstance(servers, MPI.Intracomm) and c.server is not None:
            self._comms.append(servers)
            self._server_comm = servers
        rows = c.agree("connecting workers and servers", self._make_channels)
        self.transports: list[list[str]] = [rows[r]["names"] for r in c.assignment.workers]
        self.notes: list[str] = [n for r in c.assignment.workers for n in rows[r]["notes"]]
        c.agree("attaching the workers' staging memory", self._attach_staging)

    def _make_regions(self) -> None:
        c = self.cluster
        if c.server is not None:
            self.server = Server(
                c.server,
                self.tables,
                self.placement,
                self.regions,
                self.options.seed,
                self._oversubscribed,
                self._progress,
            )
            if self._saving.start is not None:
                restore(self.server, self.placement, self.tables, self._saving.start)
        if c.worker is not None:
            self._staging = self.regions.create_sparse(
                f"w{c.worker}", self.options.staging_mib << 20
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

    def _make_channels(self) -> dict[str, list[str]]:
        c = self.cluster
        if c.worker is None:
            return {"names": [], "notes": []}
        a = c.assignment
        connector = Connector(
            worker=c.worker,
            name=c.name_of(c.rank),
            transport=self.options.transport,
            token=c.token,
            window=self._window,
            p2p_comm=self._p2p_comm,
            n_workers=len(a.workers),
            n_tables=len(self.tables),
            checksums=self.options.checksums,
            oversubscribed=self._oversubscribed,
            timeout_s=self.options.timeout_s,
            guard=c.watchdog.guard,
            idle=self._idle,
        )
        for s, rank in enumerate(a.servers):
            same = a.node_of[rank] == a.node_of[c.rank]
            layout = self.placement.layouts[s]
            self._channels.append(connector.connect(s, c.name_of(rank), rank, same, layout))
        return {"names": [channel.name for channel in self._channels], "notes": connector.notes}

    def _attach_staging(self) -> None:
        c = self.cluster
        if self.server is None:
            return
        a = c.assignment
        layout = self.server.layout
        mailboxes = {}
        for w, row in enumerate(self.transports):
            start = layout.mailbox_offset(w)
            stop = start + layout.geometry.mailbox_bytes + layout.area_bytes(w)
            mailboxes[a.workers[w]] = (start, stop)
            if row[self.server.index] == "shm":
                self.server.core.set_staging(w, attach(c.token, f"w{w}", 0))
            else:
                self._remote = True
        region = self.server.region
        view = region.view(0, region.n_bytes, True)
        self._service = P2pService(
            self._p2p_comm, view, mailboxes, layout.geometry.said_bytes, c.watchdog.guard
        )

    def _idle(self) -> None:
        """What a worker does while it waits for a message to be taken."""
        if self._client is not None:
            self._client.poll()

    def _progress(self) -> int:
        """Enter MPI on a server: windows over a network advance only then. Messages served."""
        return self._service.poll() if self._remote and self._service is not None else 0

    def describe(self) -> str:
        """Roles and transports, for people."""
        lines = [self.cluster.assignment.describe()]
        names = sorted({name for row in self.transports for name in row})
        counts = {n: sum(row.count(n) for row in self.transports) for n in names}
        pairs = ", ".join(f"{n} for {k} pair{'s' if k != 1 else ''}" for n, k in counts.items())
        lines.append(f"transport: {pairs}")
        lines += [f"note: {note}" for note in dict.fromkeys(self.notes)]
        return "\n".join(lines)

    def run(self, main: Main, on_report: OnReport | None = None) -> tuple[Any, dict[str, Any]]:
        """Play this rank's roles until the job is over; returns main's value and the statistics.

        Does not return where any rank fails: the job is ended with that rank's exit code.
        """
        c = self.cluster
        endpoint = Endpoint(self._control_comm, c.watchdog.guard)
        node = c.assignment.node_of[c.assignment.scheduler]
        where = c.assignment.node_names[node]
        client = Client(endpoint, c.assignment.scheduler, where, self.options.timeout_s)
        self._client = client
        scheduler = chronicle = None
        try:
            if c.is_scheduler:
                chronicle = open_chronicle(self._places(), self._saving)
                scheduler = Scheduler(
                    endpoint,
                    c.assignment,
                    list(c.topology.pids),
                    self.options.timeout_s,
                    chronicled(on_report, chronicle),
                )
                conductor = scheduler.conductor = self._make_conductor(scheduler)
                if chronicle is not None:
                    scheduler.on_look = functools.partial(look, chronicle, conductor)
            with UserSignal(self._saving.folder is not None) as signalled:
                client.signalled = signalled.take
                if scheduler is not None:
                    scheduler.signalled = signalled.take
                value, summary = self._play(main, client, scheduler)
            self._meet()
            if scheduler is not None and chronicle is not None:
                chronicle.finish(msgspec.json.decode(summary))
        except (KeyboardInterrupt, SystemExit) as error:
            self._die(error)
        except BaseException as error:
            self._fail(error, client, scheduler)
        return value, msgspec.json.decode(summary)

    def _make_conductor(self, scheduler: Scheduler) -> Conductor | None:
        if self._saving.folder is None:
            return None
        a = self.cluster.assignment
        return Conductor(
            self._saving.triggers,
            needs_common_clock(self.tables),
            self._saving.steps_before,
            len(a.workers),
            len(a.servers),
            scheduler.tell_worker,
            scheduler.tell_servers,
            self.options.timeout_s,
        )

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
            self._channels,
            client,
            self._staging,
            self.options.timeout_s,
            self._saving.position(self.options.seed, c.worker, len(c.assignment.workers)),
            self._saving.triggers.every_steps if self._saving.folder is not None else 0,
        )
        client.state = "computing"
        with threadpool_limits(self._threads):
            value = main(worker)
        worker.finish()
        told = {"worker": c.worker, "clock": worker.now, "pushes": worker.counters()}
        client.done(msgspec.json.encode(told))
        client.state = "waiting for the others to finish"
        return value, self._farewell(client)

    def _farewell(self, client: Client) -> bytes:
        while client.farewell is None:
            client.poll()
            time.sleep(0.005)
        return client.farewell

    def _serve(self, client: Client, scheduler: Scheduler | None) -> bytes:
        assert self.server is not None
        client.state = "serving"
        last = 0.0
        keeper = self._make_keeper(client, scheduler)

        def poll() -> bool:
            nonlocal last
            if scheduler is None:
                client.poll()
            elif time.monotonic() - last > 0.002:
                last = time.monotonic()
                scheduler.poll()
            return keeper.poll()

        if scheduler is None:
            self.server.serve(self._remote, poll, lambda: client.stopped)
            client.state = "writing a checkpoint"
            client.done(msgspec.json.encode(self._save(keeper, poll)))
            return self._farewell(client)
        # Two ranks: this one schedules too, and hears of its own end from itself.
        rank = self.cluster.rank
        self.server.serve(self._remote, poll, lambda: scheduler.workers_done)
        scheduler.take_own(rank, msgspec.json.encode(self._save(keeper, poll)))
        return scheduler.summary

    def _make_keeper(self, client: Client, scheduler: Scheduler | None) -> Keeper:
        server = self.server
        assert server is not None
        tell = client.tell
        if scheduler is not None:
            tell = functools.partial(scheduler.take_cut, server.index)
        keeper = Keeper(
            self._saving,
            server,
            self.placement,
            self.tables,
            len(self.cluster.assignment.workers),
            self._server_comm,
            self.options.timeout_s,
            tell,
        )
        client.on_cut = keeper.take
        if scheduler is not None:
            scheduler.on_cut = keeper.take
        return keeper

    def _save(self, keeper: Keeper, poll: Callable[[], object]) -> dict[str, Any]:
        """Save what the servers hold, if it is wanted; this server's statistics. All servers do it."""
        assert self.server is not None
        keeper.save(poll)
        return {**self.server.statistics(), **keeper.statistics()}

    def _meet(self) -> None:
        """The last common point: after it nobody touches anybody's memory."""
        c = self.cluster
        request = c.comm.Ibarrier()
        deadline = time.monotonic() + self.options.timeout_s
        while not request.Test():
            if time.monotonic() > deadline:
                raise StallError(
                    f"not all ranks came to the end within {self.options.timeout_s:g} s"
                )
            time.sleep(0.001)
        self._release()

    def _release(self) -> None:
        """Give back window, communicators and memory. Collective: every rank comes here or none."""
        self.regions.unlink()
        with self.cluster.watchdog.guard("freeing the MPI window"):
            if self._window is not None:
                self._window.Unlock_all()
                self._window.Free()
            for comm in self._comms:
                comm.Free()
        # The server's core holds a callback to this object: a cycle that the collector cannot see, if
        # anything here leads to the server (the client does, through its hook for cuts).
        self.server = self._service = self._staging = self._client = None
        self._channels.clear()

    def _die(self, error: BaseException) -> None:
        """Interrupted or told to end: clean up and leave at once, without MPI."""
        self.regions.unlink()
        self.cluster.last_rites()
        sys.stdout.flush()
        sys.stderr.flush()
        given = error.code if isinstance(error, SystemExit) else 130
        code = given if isinstance(given, int) else 1
        lastwords.speak(
            kind=type(error).__name__,
            message=f"ended with code {code}",
            exit_code=code,
            role=self.cluster.assignment.roles_of(self.cluster.rank),
            secondary=code > 128,
        )
        os._exit(code)

    def _fail(self, error: BaseException, client: Client, scheduler: Scheduler | None) -> None:
        """Get the error printed once and the job ended. Does not return."""
        self.regions.unlink()
        self.cluster.last_rites()
        if isinstance(error, LeavingError):
            lastwords.speak(kind="Leaving", message=str(error), exit_code=error.exit_code)
            print(f"mpips: leaving: {error}", file=sys.stderr, flush=True)
            self.cluster.abort(error.exit_code)
        message, code = self._verdict(error)
        self._speak(error, code, client)
        if scheduler is None:
            client.fail(message, code, patience_s=3.0)
        print(f"mpips: error: {message}", file=sys.stderr, flush=True)
        self.cluster.abort(code)

    def _speak(self, error: BaseException, code: int, client: Client) -> None:
        words = {**lastwords.words_of(error), "exit_code": code}
        about = self.cluster.rank
        if isinstance(error, JobFailure):
            # Whoever failed has spoken for itself, unless it is silent.
            about = error.rank
            words |= {"secondary": not error.silent, "traceback": ""}
            words["kind"] = "silent" if error.silent else "Failure"
        else:
            words |= {"state": client.state, "clock": client.clock}
        lastwords.speak(about=about, role=self.cluster.assignment.roles_of(about), **words)

    def _verdict(self, error: BaseException) -> tuple[str, int]:
        if isinstance(error, JobFailure):
            return str(error), error.exit_code
        who = self.cluster.name_of(self.cluster.rank)
        if isinstance(error, MpipsError):
            return f"{who}: {error}", error.exit_code
        text = "".join(traceback.format_exception(error)).rstrip()
        if isinstance(error, MPI.Exception):
            return f"{who}: MPI failed: {error.Get_error_string()}\n{text}", 1
        return f"{who} raised {type(error).__name__}: {error}\n{text}", 1
