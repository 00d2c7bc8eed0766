"""Launches of one job in one process: servers with journals, workers that go on where memory says.

A launch ends as by SIGKILL: nothing is written any more, all locks are gone, the names in /dev/shm stay.
`Launches.again` is the next one; it does what `mpips.recovery.takeover` does, without MPI.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

from mpips import _native
from mpips.model.placement import place
from mpips.model.table import Table
from mpips.recovery.memory import At, Memory, Place, place_of, resumed_at, servers_behind
from mpips.recovery.saving import Saving
from mpips.scheduler.own_worker import OwnWorker
from mpips.server.durability import Durability
from mpips.server.server import Server
from mpips.transport.channel import LocalChannel
from mpips.transport.region import Regions, attach, new_token, persistent, unlink_job
from mpips.worker.connection import Connection
from mpips.worker.connection_options import ConnectionOptions
from mpips.worker.worker import Worker, connection_of

TIMEOUT_S = 10.0


class KilledError(Exception):
    """The launch ends here."""


class MortalConnection(Connection):
    """The connection of a worker that ends at a chosen place.

    Attributes:
        left: It ends before the write that follows so many of those that `clock` and `finish` make;
            None: it does not.
        counts_places: Those that say the worker's place count, too.
        ends_when_full: It ends where it would wait for room in a ring.
    """

    left: int | None = None
    counts_places = True
    ends_when_full = False
    _in_place = False

    def clock(self) -> None:
        """Tick, or end."""
        write_position = self.snapshot.write_position

        def say(now: int, step: int | None = None) -> None:
            self._in_place = True
            write_position(now, step)
            self._in_place = False

        self.snapshot.write_position = say  # type: ignore[method-assign]
        try:
            super().clock()
        finally:
            self.snapshot.write_position = write_position  # type: ignore[method-assign]

    def refuse_after(self, what: str) -> None:
        """Do nothing: the process is dead."""

    def write(self, server: int, attempt: Callable[[], bool]) -> None:
        """Write a record, or end."""
        if self.left is not None and (self.counts_places or not self._in_place):
            if self.left == 0:
                raise KilledError
            self.left -= 1
        super().write(server, attempt)

    def wait_credit(self, server: int) -> None:
        """Wait for room in a ring, or end."""
        if self.ends_when_full:
            raise KilledError
        super().wait_credit(server)


class Launches:
    """A job of several servers and workers; all of a launch's parts are attributes.

    Attributes:
        generation: Number of the launch, from 0.
        places: Where each worker goes on; empty in the first launch.
        workers: One for each worker of the job, with a `MortalConnection`, which lets
            the servers work where it waits.
        idle: The servers consume nothing.
    """

    def __init__(
        self,
        *tables: Table,
        n_servers: int = 1,
        n_workers: int = 1,
        n_slots: int = 16,
        slot_bytes: int = 1024,
    ) -> None:
        self.tables, self.token = list(tables), persistent(new_token())
        self.n_servers, self.n_workers = n_servers, n_workers
        self.placement = place(self.tables, n_servers, n_workers, n_slots, slot_bytes)
        self.idle = False
        self.memory = Memory(generation=0, tables="", shape=(n_servers, n_workers))
        self._open(0)

    def again(self) -> Launches:
        """End this launch and start the next one."""
        self.servers = self.workers = self.channels = self.regions = None  # type: ignore[assignment]
        gc.collect()
        self._open(self.generation + 1)
        return self

    def close(self) -> None:
        """Remove the job's memory, and give its addresses back."""
        self.servers = self.workers = self.channels = self.regions = None  # type: ignore[assignment]
        gc.collect()
        unlink_job(self.token)

    def drain(self) -> int:
        """Let the servers consume what they can; the number of records."""
        if self.idle:
            return 0
        return sum(server.core.drain(0.0, 0) for server in self.servers)

    def _open(self, generation: int) -> None:
        self.generation = generation
        self.regions = Regions(self.token, shared=True)
        self.servers = [self._server(s) for s in range(self.n_servers)]
        at = [self._positions(server) for server in self.servers] if generation else []
        self.places: Sequence[Place] = tuple(
            place_of(w, [server[w] for server in at], self.memory)
            for w in range(self.n_workers if generation else 0)
        )
        for server in self.servers:
            server.drop_repeated([place.clock for place in self.places], is_copied=False)
        at = [self._positions(server) for server in self.servers] if generation else []
        self._behind: list[tuple[int, ...]] = [()] * self.n_workers
        for w, goes_on in enumerate(self.places):
            found = [server[w] for server in at]
            self._behind[w] = servers_behind(found, goes_on)
            for server, own in zip(at, resumed_at(found, goes_on), strict=True):
                server[w] = own
        self.channels = [
            [self._channel(server, w, at) for server in self.servers] for w in range(self.n_workers)
        ]
        saving = Saving(None, "run", origin=self.memory, places=tuple(self.places))
        self.workers = [self._worker(w, saving) for w in range(self.n_workers)]
        for worker in self.workers:
            connection_of(worker).end_clock_behind()

    def _server(self, index: int) -> Server:
        life = Durability(self.generation, journal=True, warm=self.generation > 0)
        server = Server(index, self.tables, self.placement, self.regions, 0, True, None, life)
        if self.generation == 0:
            server.begin_journal()
        else:
            server.finish_recovery(lambda w, g: attach(self.token, f"w{w}-{g}", 0))
        return server

    def _positions(self, server: Server) -> list[At]:
        return [At.of(server.core.position(w)) for w in range(self.n_workers)]

    def _channel(self, server: Server, w: int, at: list[list[At]]) -> LocalChannel:
        writer = _native.RingWriter(
            server.region,
            server.layout.mailbox_offset(w),
            server.layout.geometry,
            w,
            self.generation,
            True,
            len(self.tables),
        )
        if at:
            a = at[server.index][w]
            before = (a.clock, a.finished, a.pushes, a.tag, a.ended)
            writer.resume(a.sequence, a.applied, *before, False)
        return LocalChannel(server.region, server.layout, writer, self.n_workers, self.drain)

    def _worker(self, w: int, saving: Saving) -> Worker:
        position = saving.position(0, w, self.n_workers)
        connection = MortalConnection(
            w,
            [f"worker {i}" for i in range(self.n_workers)],
            self.tables,
            self.channels[w],
            OwnWorker(),
            None,
            TIMEOUT_S,
            ConnectionOptions(
                position,
                0,
                self.places[w].clock if self.places else 0,
                True,
                behind=self._behind[w],
            ),
        )
        return Worker(connection, self.tables, self.placement)
