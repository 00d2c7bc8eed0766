"""One launch of a job: the real parts of mpips as actors of the world."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mpips import DenseTable, EmbeddingTable, _native
from mpips.config.triggers import Triggers
from mpips.model.placement import place
from mpips.mpi.messages import Agreed, Ask, Saved, Taken, Waits
from mpips.recovery.memory import At, Memory, place_of, resumed_at, servers_behind
from mpips.recovery.saving import Saving
from mpips.recovery.takeover import resume
from mpips.server.durability import Durability
from mpips.server.server import Server
from mpips.snapshot.coordinator import Coordinator
from mpips.transport.channel import Channel
from mpips.worker.connection import Connection
from mpips.worker.connection_options import ConnectionOptions, needs_common_clock
from mpips.worker.residuals import Residuals, residual_layout
from mpips.worker.worker import Worker
from simulation.disk import Checkpoint, Disk, DiskServerPart
from simulation.memory import Node, NodeRegions
from simulation.messages import Mail, WorkerControl
from simulation.network import TurnChannel, TurnNetwork, remote_channel, rig_of
from simulation.program import KEYS, Era, Pace, Pull, Watch
from simulation.world import World

TIMEOUT_S = 1e9
SLOT_BYTES = 1024
AREA_BYTES = 64 << 10  # of all rendezvous buffers of a server


class Launch:
    """The ranks of one launch.

    Attributes:
        memory: The state from which clocks in memory count.
        copy: The files of a server at some time of the launch, by part; {}: none was copied.
    """

    def __init__(
        self,
        world: World,
        node: Node,
        disk: Disk,
        era: Era,
        watches: Sequence[Watch],
        generation: int,
        memory: Memory | None,
        start: Checkpoint | None,
    ) -> None:
        """Start up.

        Args:
            world: The actors of this launch go there.
            node: Shared memory.
            disk: Checkpoints.
            era: What workers do.
            watches: What workers have seen, by worker.
            generation: Number of the launch in the run.
            memory: The state from which clocks in memory count, if this launch continues in memory.
            start: The checkpoint to start from, if it does not.
        """
        self._world, self._node, self._disk, self._era = world, node, disk, era
        self._watches, self._generation = watches, generation
        shape = era.shape
        self._tables = list(shape.tables)
        self._is_warm = memory is not None
        at_servers, at_workers = shape.nodes
        near = [[w for w, n in enumerate(at_workers) if n == node] for node in at_servers]
        self._placement = place(
            self._tables,
            shape.n_servers,
            shape.n_workers,
            shape.n_slots,
            SLOT_BYTES,
            near,
            AREA_BYTES,
        )
        self._regions = NodeRegions(node)
        saving = Saving(
            Path("/sim"),
            "run",
            origin=start.head if start is not None else None,  # type: ignore[arg-type]
            triggers=Triggers(every_steps=shape.every_steps),
        )
        self.servers = [self._server(s, start) for s in range(shape.n_servers)]
        at: list[list[At]] = []
        self._behind: list[tuple[int, ...]] = [()] * shape.n_workers
        if memory is not None:
            at = [
                [At.of(server.core.position(w)) for w in range(shape.n_workers)]
                for server in self.servers
            ]
            places = tuple(
                place_of(w, [found[w] for found in at], memory) for w in range(shape.n_workers)
            )
            self._behind = [
                servers_behind([found[w] for found in at], place) for w, place in enumerate(places)
            ]
            # By server, as the servers' positions.
            rows = [resumed_at([found[w] for found in at], place) for w, place in enumerate(places)]
            at = [list(column) for column in zip(*rows, strict=True)]
            saving = dataclasses.replace(
                saving.in_memory(memory, places, ()), triggers=saving.triggers
            )
            self.memory = memory
        else:
            self.memory = Memory(
                generation=generation,
                tables="",
                shape=(shape.n_servers, shape.n_workers),
                step=saving.steps_before,
                run_id="run",
                workers=tuple(start.head.workers) if start is not None else (),
            )
        self._saving = saving
        self._to_scheduler, self._to_servers = Mail(world), [Mail(world) for _ in self.servers]
        self._to_workers = [Mail(world) for _ in range(shape.n_workers)]
        self._coordinator = Coordinator(
            saving.triggers,
            needs_common_clock(self._tables),
            saving.steps_before,
            shape.n_workers,
            shape.n_servers,
            lambda w, message: self._to_workers[w].send(0, message),
            self._send_to_servers,
            shape.patience_s,
            lambda text: None,
        )
        self._coordinator.begin_at(saving.first_clock)
        self._parts = [self._part(s) for s in range(shape.n_servers)]
        self._networks: list[TurnNetwork] = []
        self._rigs = [rig_of(server, shape.n_workers, self._tables) for server in self.servers]
        self.workers = [self._worker(w, at) for w in range(shape.n_workers)]
        self._is_over = False
        # The server that is copied, and from which turn on.
        self._copied = world.random.randrange(shape.n_servers)
        self._copied_from = world.turns + world.random.randrange(1000)
        self.copy: dict[str, bytes] = {}
        for w in range(shape.n_workers):
            world.spawn(f"worker {w}", lambda w=w: self._work(w))
        for s in range(shape.n_servers):
            world.spawn(f"server {s}", lambda s=s: self._serve(s))
        world.spawn("scheduler", self._schedule)
        if self._networks:
            world.spawn("network", self._carry)

    def _send_to_servers(self, message: Any) -> None:
        for mail in self._to_servers:
            mail.send(0, message)

    def _server(self, index: int, start: Checkpoint | None) -> Server:
        life = Durability(self._generation, journal=True, warm=self._is_warm)
        server = Server(index, self._tables, self._placement, self._regions, 0, True, None, life)
        if self._is_warm:
            server.finish_recovery(self._no_staging)
            return server
        if start is not None:
            self._restore(server, start)
        server.begin_journal()
        return server

    def _no_staging(self, worker: int, generation: int) -> _native.SharedMemory:
        raise AssertionError("workers of the simulation have no staging memory")

    def _restore(self, server: Server, start: Checkpoint) -> None:
        """Fill a server's shards, as mpips.recovery.restore does from HDF5."""
        for i, table in enumerate(self._tables):
            server.core.set_steps_before(i, start.versions[table.name])
            if isinstance(table, DenseTable):
                for part in self._placement.dense[table.name]:
                    if part.server == server.index:
                        values = start.dense[table.name][part.start : part.stop]
                        server.core.set_dense(i, np.ascontiguousarray(values))
                continue
            partitioner = self._placement.partitioners[table.name]
            rows = start.rows.get(table.name, {})
            keys = np.array([k for k in rows if partitioner.owner(k) == server.index], np.int64)
            if len(keys):
                server.core.load_rows(i, keys, np.stack([rows[int(k)] for k in keys]))

    def _part(self, index: int) -> DiskServerPart:
        shape = self._era.shape
        return DiskServerPart(
            self._disk,
            shape.n_servers,
            self._saving,
            self.servers[index],
            self._placement,
            self._tables,
            shape.n_workers,
            None,
            shape.patience_s,
            lambda message: self._to_scheduler.send(shape.n_workers + index, message),
        )

    def _worker(self, w: int, at: Sequence[Sequence[At]]) -> Worker:
        shape, saving = self._era.shape, self._saving
        channels = [self._channel(w, server) for server in self.servers]
        for channel, found in zip(channels, at, strict=False):
            resume(channel, found[w], skips_clocks=False)
        control = WorkerControl(w, self._to_workers[w], self._to_scheduler.send)
        place = saving.places[w] if saving.places else None
        connection = Connection(
            w,
            [f"worker {i}" for i in range(shape.n_workers)],
            self._tables,
            channels,
            control,
            None,
            TIMEOUT_S,
            ConnectionOptions(
                position=saving.position(0, w, shape.n_workers),
                first_clock=place.clock if place is not None else 0,
                writes_position=True,
                first_step=place.steps if place is not None else 0,
                residuals=self._residuals(w),
                behind=self._behind[w],
            ),
        )
        return Worker(connection, self._tables, self._placement)

    def _channel(self, w: int, server: Server) -> Channel:
        shape, layout = self._era.shape, server.layout
        if shape.nodes[0][server.index] != shape.nodes[1][w]:
            network, channel = remote_channel(
                self._world, self._rigs[server.index], w, self._generation, shape.kind
            )
            self._networks.append(network)
            return channel
        writer = _native.RingWriter(
            server.region,
            layout.mailbox_offset(w),
            layout.geometry,
            w,
            self._generation,
            True,
            len(self._tables),
        )
        return TurnChannel(self._world, server.region, layout, writer, shape.n_workers)

    def _residuals(self, w: int) -> Residuals | None:
        _, n_bytes = residual_layout(self._tables, self._placement, 2)
        if not n_bytes:
            return None
        if self._is_warm:
            return Residuals(self._regions.reopen(f"e{w}"), self._tables, self._placement, 2)
        found = Residuals(self._regions.create(f"e{w}", n_bytes), self._tables, self._placement, 2)
        found.fill({})
        return found

    # The actors.

    def _work(self, w: int) -> None:
        worker, era, watch, draws = self.workers[w], self._era, self._watches[w], self._world.random
        connection = worker._connection
        if connection.residuals is not None:
            assert connection.residuals.lost == 0, "a residual is lost"
        connection.end_clock_behind()
        clock = worker.now
        cursor = dict(worker.cursor)
        at = cursor["clock"] if cursor.get("era") == era.number else 0
        assert at == clock, f"worker {w} continues at clock {clock} with the cursor {cursor}"
        for now in range(clock, era.shape.clocks[w]):
            assert worker.now == now
            watch.begin(now)
            for op in era.ops(w, now):
                watch.note()
                if isinstance(op, Pull):
                    self._pull(worker, watch, op)
                elif isinstance(op, Pace):
                    worker.keep_pace(op.bound)
                else:
                    self._push(worker, op)
            worker.set_cursor({"era": era.number, "clock": now + 1})
            if era.shape.asks and draws.random() < 0.1:
                worker.checkpoint()
            worker.clock()
            self._world.maybe_pause()
        watch.begin(era.shape.clocks[w])
        connection.finish()
        self._to_scheduler.send(w, None)

    def _push(self, worker: Worker, push: Any) -> None:
        table = worker.table(self._tables[push.table].name)
        # SGD subtracts the update.
        update = -self._era.update(worker.index, push)
        if push.keys is None:
            table.push(update)
        else:
            table.push(np.array(push.keys, np.int64), update)

    def _pull(self, worker: Worker, watch: Watch, op: Pull) -> None:
        table = self._tables[op.table]
        handle = worker.table(table.name)
        if op.keys is None:
            found = handle.pull().copy()
            if isinstance(table, DenseTable) and table.compression is None:
                watch.check(op.table, found, self._watches, None)
            return
        keys = np.array(op.keys, np.int64)
        watch.check(op.table, handle.pull(keys).copy(), self._watches, keys)

    def _serve(self, s: int) -> None:
        server, part, world = self.servers[s], self._parts[s], self._world
        stopped = False
        while not stopped:
            if server.drain():
                world.changed()
            for _, message in self._to_servers[s].receive():
                if message == "stop":
                    stopped = True
                else:
                    part.take(message)
            if part.poll():
                world.changed()
            if self._is_due_for_copy(s):
                self.copy = self._node.copy_of(s)
            world.wait()
        server.drain()
        part.save(world.pause)

    def _is_due_for_copy(self, s: int) -> bool:
        wanted = s == self._copied and self._era.may_lag and not self.copy
        return wanted and self._world.turns >= self._copied_from

    def _carry(self) -> None:
        """Let messages arrive, until nobody sends any more."""
        while not self._is_over:
            for network in self._networks:
                network.carry()
            self._world.wait()

    def _schedule(self) -> None:
        world, coordinator, shape = self._world, self._coordinator, self._era.shape
        n_done = 0
        while True:
            for sender, message in self._to_scheduler.receive():
                if message is None:
                    n_done += 1
                    coordinator.worker_done(sender)
                elif isinstance(message, Agreed):
                    coordinator.agreed(sender, message)
                elif isinstance(message, Waits):
                    coordinator.waits(sender, message)
                elif isinstance(message, Ask):
                    coordinator.ask(message)
                elif isinstance(message, Taken):
                    coordinator.taken(sender - shape.n_workers, message)
                elif isinstance(message, Saved):
                    coordinator.saved(sender - shape.n_workers, message)
                else:
                    raise AssertionError(f"the scheduler has received {message}")
            w = world.random.randrange(shape.n_workers)
            coordinator.note_clock(w, self.workers[w].now)
            coordinator.poll()
            if n_done == shape.n_workers and not coordinator.busy:
                break
            world.wait()
        for mail in self._to_servers:
            mail.send(0, "stop")
        self._is_over = True

    # What is there.

    def check_end(self) -> None:
        """Check the tables after the end of all workers."""
        era = self._era
        for i, table in enumerate(self._tables):
            expected = era.values(i, era.shape.clocks)
            if isinstance(table, EmbeddingTable):
                found = np.zeros((KEYS, 8), np.float32)
                for server in self.servers:
                    keys, rows = server.core.embedding_content(i)
                    found[keys] += rows
            else:
                found = np.full(table.n_elements, np.nan, np.float32)
                for part in self._placement.dense[table.name]:
                    values = self.servers[part.server].core.dense_values(i)
                    found[part.start : part.stop] = values
                if table.compression is not None:
                    for worker in self.workers:
                        # SGD has subtracted what was sent; the rest it would subtract.
                        residuals = worker._connection.residuals
                        assert residuals is not None
                        found -= residuals.values([table.name])[table.name]
            assert np.array_equal(found, expected), f"table {i} ends with {found}, not {expected}"
