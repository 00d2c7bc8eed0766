"""One launch of a job: the real parts of mpips as actors of the world, from start-up to the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import numpy as np

from mpips import DenseTable, EmbeddingTable
from mpips.checkpoint.residuals import handed_over
from mpips.config.options import SessionOptions
from mpips.config.triggers import Triggers
from mpips.errors import LeavingError
from mpips.model.auto_placement import Site
from mpips.mpi.messages import Agreed, Ask, Saved, Taken, Waits
from mpips.mpi.roles import Assignment
from mpips.recovery.exchange import Exchange
from mpips.recovery.saving import Saving
from mpips.rundir.directory import RunFolder, Supervised
from mpips.rundir.requests import SCALE_IN_MEMORY
from mpips.session import links, placing, startup
from mpips.session.parts import Parts
from mpips.session.roles import Roles
from mpips.snapshot.coordinator import Coordinator
from mpips.worker.ahead.lookahead import lookahead
from mpips.worker.connection_options import needs_common_clock
from mpips.worker.worker import Worker
from simulation.adaptive import decisions_of
from simulation.cluster import SimulatedCluster, simulated_exchanges
from simulation.comm import Comm, Room
from simulation.disk import Disk, DiskServerPart
from simulation.dropping import JudgedPushes
from simulation.links import SimulatedLinks
from simulation.memory import Node
from simulation.messages import Mail, WorkerControl
from simulation.network import TurnNetwork, simulated_waits
from simulation.program import KEYS, Era, Gather, Pace, Pull, Watch
from simulation.world import World

if TYPE_CHECKING:
    from mpips.server.server import Server

TIMEOUT_S = 1e7
SLOT_KIB = 1


class Layout(NamedTuple):
    """Where the ranks of a launch are.

    Attributes:
        servers, workers: Node of each.
        kind: How workers reach servers on other nodes: "rma" or "p2p".
    """

    servers: tuple[int, ...]
    workers: tuple[int, ...]
    kind: str

    @property
    def nodes(self) -> list[int]:
        """The nodes of its ranks."""
        return sorted({*self.servers, *self.workers})

    def with_another(self, node: int, n_nodes: int) -> Layout:
        """Return the layout with another one in place of a node, of so many."""
        other = next(n for n in range(n_nodes) if n not in self.nodes)
        servers, workers = (tuple(other if n == node else n for n in ranks) for ranks in self[:2])
        return self._replace(servers=servers, workers=workers)

    @property
    def assignment(self) -> Assignment:
        """The roles of the ranks: the scheduler, on the node of server 0, the servers, the workers."""
        n = len(self.servers)
        node_of = (self.servers[0], *self.servers, *self.workers)
        return Assignment(
            node_of,
            tuple(f"node{i}" for i in range(max(node_of) + 1)),
            0,
            tuple(range(1, 1 + n)),
            tuple(range(1 + n, 1 + n + len(self.workers))),
        )


class Plan:
    """From which checkpoint a launch starts that does not continue in memory; see SavingPlan."""

    def __init__(self, disk: Disk, triggers: Triggers) -> None:
        self._disk, self._triggers = disk, triggers

    def draft(self) -> Saving:
        """Return what is saved."""
        return Saving(self._disk.folder, "run", triggers=self._triggers)

    def choose(self, exchange: Path | None = None) -> Saving:
        """Return what is saved, and the exchange or the newest checkpoint."""
        if (found := self._disk.newer(exchange)) is not None:
            saving = replace(self.draft(), origin=found.head, start=found.path)  # type: ignore[arg-type]
            return replace(saving, is_exchange=True)
        if (newest := self._disk.newest) is None:
            return self.draft()
        return replace(self.draft(), origin=newest.head, start=newest.path)  # type: ignore[arg-type]


class LeasedRun(Supervised, frozen=True):
    """The run, as a launch sees it that no later one has replaced."""

    def holds_lease(self) -> bool:
        """Return True."""
        return True


class SimulatedRoles(Roles):
    """The roles of a rank without traces and without a progress thread."""

    def _make_tracer(self, *_: object) -> None:
        return None

    def _make_progress(self) -> None:
        return None


class Launch:
    """The ranks of one launch.

    Attributes:
        era: What its workers do; None until the first rank has started up.
        is_warm: It continues in memory; known with `era`.
        servers: Its servers.
        workers: Its workers, by index, as they come to work.
        networks: Networks of workers to servers on other nodes.
        rigs: What networks need of each server.
        left: Request by which it has ended for a change of its size; None: it has not.
    """

    def __init__(
        self,
        world: World,
        nodes: Sequence[Node],
        disk: Disk,
        folder: RunFolder,
        layout: Layout,
        generation: int,
        shape: Any,
        begin: Callable[[Parts], tuple[Era, Sequence[Watch]]],
        leaves_in: int | None = None,
    ) -> None:
        """Let the ranks start up, as actors.

        Args:
            world: The actors of this launch go there.
            nodes: Shared memory.
            disk: Checkpoints.
            folder: Folder of the run.
            layout: Where its ranks are.
            generation: Number of the launch in the run.
            shape: Tables, numbers of ranks and options.
            begin: Returns what workers do, and what they have seen, once the first rank has started up.
            leaves_in: Turns of the scheduler until it is asked for another size; None: it is not.
        """
        self._leaves_in = leaves_in or 0
        self.left: LeavingError | None = None
        self.world, self._disk, self.layout, self.shape = world, disk, layout, shape
        self._folder, self._generation, self._begin = folder, generation, begin
        self._tables = list(shape.tables)
        n_servers, n_workers = shape.n_servers, shape.n_workers
        self.era: Era | None = None
        self.is_warm = self._is_over = False
        self.servers: list[Server] = [None] * n_servers  # type: ignore[list-item]
        self.workers: dict[int, Worker] = {}
        self.networks: list[TurnNetwork] = []
        self.rigs: list[Any] = [None] * n_servers
        self._parts: dict[int, Parts] = {}
        self._watches: Sequence[Watch] = ()
        self._to_scheduler = Mail(world)
        self._to_servers = [Mail(world) for _ in range(n_servers)]
        self._to_workers = [Mail(world) for _ in range(n_workers)]
        # Clocks in which each worker has pushed in this launch, and pushes that servers judge.
        self._sent = [set[int]() for _ in range(n_workers)]
        self._pushes: dict[int, JudgedPushes] = {}
        assignment = layout.assignment
        self._room = room = Room(world, len(assignment.node_of))
        for rank, node in enumerate(assignment.node_of):
            cluster = SimulatedCluster(Comm(room, rank), assignment, nodes[node].token)
            world.spawn(assignment.roles_of(rank), lambda c=cluster: self._play(c))
        if len(set(assignment.node_of)) > 1:
            world.spawn("network", self._carry)

    # Start-up.

    def _play(self, cluster: SimulatedCluster) -> None:
        """Start up a rank, and let it play its role."""
        shape = self.shape
        parts = startup.start_up(
            cluster,
            self._tables,
            SessionOptions(
                servers=shape.n_servers,
                timeout_s=TIMEOUT_S,
                ring_slots=shape.n_slots,
                slot_kib=SLOT_KIB,
                staging_mib=1,
                topology=shape.topology,
                group_rows_mib=1,
            ),
            Plan(self._disk, Triggers(shape.every_steps, incremental=self._disk.longest)),
            self._run(cluster),
            warm=True,
            has_partners=shape.has_partners,
            idle=self.world.wait,
        )
        if self.era is None:
            self.is_warm = bool(parts.saving.places)
            self.era, self._watches = self._begin(parts)
            self.era.begin_launch(self.is_warm, parts.saving.steps_before)
        self._parts[cluster.rank] = parts
        if cluster.worker is not None:
            self._work(cluster.worker, parts)
        elif cluster.server is not None:
            self._serve(cluster.server, parts)
        else:
            self._schedule(parts)

    def _run(self, cluster: Any) -> Supervised:
        return LeasedRun(self._folder, "run", cluster.token, self._generation)

    # The roles.

    def _work(self, w: int, parts: Parts) -> None:
        era, watch, draws = self.era, self._watches[w], self.world.random
        assert era is not None
        control = WorkerControl(w, self._to_workers[w], self._to_scheduler.send)
        part = SimulatedRoles(parts, control, None, None)  # type: ignore[arg-type]
        with part._working() as worker:
            self.workers[w] = worker
            if parts.made.residuals is not None:
                assert parts.made.residuals.lost == 0, "a residual is lost"
            if era.shape.drops == "reject":
                self._pushes[w] = JudgedPushes(era.applied, self.servers, w, draws)
            clock, cursor, first = worker.now, dict(worker.cursor), 0
            at = cursor["clock"] if cursor.get("era") == era.number else 0
            # A worker that skips clocks has its cursor from before them.
            skips = era.shape.drops == "backup"
            assert at == clock or (skips and at < clock), (
                f"worker {w} continues at clock {clock} with the cursor {cursor}"
            )
            watch.begin_launch(clock if self.is_warm else None)
            if era.shape.gathers:
                # A clock that only some workers repeat has no collective operation in the repetition.
                begins = worker.gather("begins", f"{clock}".encode())
                first = max(map(int, begins))
            for now in self._clocks(worker, clock):
                assert worker.now == now
                self._sent[w].add(now)
                watch.begin(now)
                for op in era.ops(w, now):
                    watch.note()
                    if isinstance(op, Pull):
                        self._pull(worker, watch, op)
                    elif isinstance(op, Pace):
                        worker.keep_pace(op.bound)
                    elif isinstance(op, Gather):
                        if now >= first:
                            self._gather(worker, op, now)
                    else:
                        self._push(worker, op, now)
                if w in self._pushes:
                    self._pushes[w].settle(self.is_warm and now == clock)
                worker.set_cursor({"era": era.number, "clock": now + 1})
                if era.shape.asks and draws.random() < 0.25:
                    worker.checkpoint()
                worker.clock()
                if skips:
                    versions = [server.core.version(0) for server in self.servers]
                    era.applied.check_skip(w, now, worker.now, versions)
                self.world.maybe_pause()
            watch.begin(era.shape.clocks[w])

    def _clocks(self, worker: Worker, first: int) -> Iterable[int]:
        """Return the clocks of a worker, with a look-ahead if there is one."""
        era = self.era
        assert era is not None
        if era.shape.drops == "backup":
            return self._skipping_clocks(worker, era.shape.clocks[worker.index])
        found: Iterable[int] = range(first, era.shape.clocks[worker.index])
        if era.shape.depth and any(isinstance(t, EmbeddingTable) for t in self._tables):
            found = lookahead(
                found,
                keys=lambda now: era.keys(worker.index, now),
                worker=worker,
                depth=era.shape.depth,
            )
        return found

    def _gather(self, worker: Worker, op: Gather, now: int) -> None:
        """Call a collective operation, and check its result."""
        w, n = worker.index, worker.n_workers
        name, is_receiver = f"at {now}", op.everyone or w == 0
        found: Any = None
        if op.kind == "barrier":
            worker.barrier(name)
            clocks = [other.now for other in self.workers.values()]
            assert len(clocks) == n, f"not all workers have come to the barrier of clock {now}"
            assert min(clocks) >= now, f"workers at {clocks} are past the barrier of clock {now}"
            return
        if op.kind == "gather":
            found = worker.gather(name, bytes([w]) * (now * (1 + 700 * w)), op.everyone)
            expected: Any = [bytes([v]) * (now * (1 + 700 * v)) for v in range(n)]
            expected = expected if is_receiver else []
        elif op.kind == "joined":
            mine = np.arange(now, now + 1 + w)
            found = worker.reduce(name, mine, lambda a, b: np.concatenate((a, b)), op.everyone)
            expected = np.concatenate([np.arange(now, now + 1 + v) for v in range(n)])
        else:
            found = worker.reduce(name, np.array([now, w, 1]), op.kind, op.everyone)  # type: ignore[arg-type]
            rows = np.array([[now, v, 1] for v in range(n)])
            expected = rows.sum(0) if op.kind == "sum" else rows.max(0)
        if not is_receiver and op.kind != "gather":
            expected = None
        is_equal = found == expected if op.kind == "gather" else np.array_equal(found, expected)
        assert is_equal, f"{op} of clock {now} returns {found} to worker {w}, not {expected}"

    @staticmethod
    def _skipping_clocks(worker: Worker, end: int) -> Iterator[int]:
        while worker.now < end:
            yield worker.now

    def _push(self, worker: Worker, push: Any, now: int) -> None:
        assert self.era is not None
        table = worker.table(self._tables[push.table].name)
        update = self.era.pushed(worker.index, push, now)
        judged = self._pushes.get(worker.index)
        if judged is not None:
            judged.begin(push)
        if push.keys is None:
            request = table.push(update)
        else:
            request = table.push(np.array(push.keys, np.int64), update)
        if judged is not None:
            judged.take(push, request)

    def _pull(self, worker: Worker, watch: Watch, op: Pull) -> None:
        applied, judged = watch.era.applied, self._pushes.get(worker.index)
        if applied is None:
            self._pull_and_check(worker, watch, op)
            return
        since = applied.begin_pull()
        if judged is not None:
            judged.begin_pull(op)
        found = self._values(worker, op)
        if judged is not None:
            judged.end_pull(op)
        applied.saw(self._generation, watch, op, found, since)

    def _values(self, worker: Worker, op: Pull) -> np.ndarray:
        """Pull."""
        handle = worker.table(self._tables[op.table].name)
        of = () if op.keys is None else (np.array(op.keys, np.int64),)
        if not op.is_begun:
            return np.array(handle.pull(*of))
        request = handle.prefetch(*of)
        self.world.maybe_pause()
        return np.array(request.wait())

    def _pull_and_check(self, worker: Worker, watch: Watch, op: Pull) -> None:
        table = self._tables[op.table]
        handle = worker.table(table.name)
        if op.keys is None:
            if op.is_begun:
                request = handle.prefetch()
                self.world.maybe_pause()
                found = request.wait().copy()
            else:
                found = handle.pull().copy()
            if isinstance(table, DenseTable) and table.compression is None:
                watch.check(op.table, found, self._watches, None)
            return
        keys = np.array(op.keys, np.int64)
        if op.is_begun:
            request = handle.prefetch(keys)
            self.world.maybe_pause()
            found = request.wait().copy()
        else:
            found = handle.pull(keys).copy()
        watch.check(op.table, found, self._watches, keys)

    def _serve(self, s: int, parts: Parts) -> None:
        server, mirror, world, shape = parts.server, parts.mirror, self.world, self.shape
        assert server is not None
        part = DiskServerPart(
            self._disk,
            shape.n_servers,
            parts.saving,
            server,
            parts.placement,
            parts.tables,
            shape.n_workers,
            None,
            shape.patience_s,
            lambda message: self._to_scheduler.send(shape.n_workers + s, message),
            self._run(parts.cluster),
            parts.groups,
            [table.name for table in parts.grouped_tables.values()],
        )
        stopped = False
        decisions = decisions_of(server, world.random, self.era)
        self._look(server)
        while not stopped:
            if server.drain():
                self._look(server)
                world.changed()
            for _, message in self._to_servers[s].receive():
                if message == "stop":
                    stopped = True
                else:
                    part.take(message)
            if part.poll() | (decisions is not None and decisions.poll()):
                world.changed()
            if mirror is not None and mirror.poll():
                world.changed()
            world.wait()
        server.drain()
        self._look(server)
        if mirror is not None:
            mirror.close(TIMEOUT_S, world.pause)
        part.save(world.pause)
        self._to_scheduler.send(shape.n_workers + s, None)

    def _look(self, server: Server) -> None:
        """Read what a server has applied, where it may drop pushes."""
        assert self.era is not None
        if self.era.applied is not None:
            self.era.applied.look(server)

    def _carry(self) -> None:
        """Let messages arrive, until nobody sends any more."""
        while not self._is_over:
            for network in self.networks:
                network.carry()
            self.world.wait()

    def _send_to_servers(self, message: Any) -> None:
        for mail in self._to_servers:
            mail.send(0, message)

    def _schedule(self, parts: Parts) -> None:
        """Play the scheduler. After a request to leave the others go on for some turns, as real ranks do."""
        try:
            self._coordinate(parts)
        except LeavingError as error:
            self.left = error
            self.world.end_soon()

    def _coordinate(self, parts: Parts) -> None:
        world, shape, saving = self.world, self.shape, parts.saving
        coordinator = Coordinator(
            saving.triggers,
            needs_common_clock(parts.tables, parts.groups),
            saving.steps_before,
            shape.n_workers,
            shape.n_servers,
            lambda w, message: self._to_workers[w].send(0, message),
            self._send_to_servers,
            shape.patience_s,
            lambda text: None,
            Exchange(parts.cluster.token, "" if len(self.layout.nodes) == 1 else "two nodes"),
        )
        coordinator.begin_at(saving.first_clock)
        workers, servers, is_stopped = (
            set(range(shape.n_workers)),
            set(range(shape.n_servers)),
            False,
        )
        while servers:
            for sender, message in self._to_scheduler.receive():
                if message is None and sender < shape.n_workers:
                    workers.remove(sender)
                    coordinator.worker_done(sender)
                elif message is None:
                    servers.remove(sender - shape.n_workers)
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
            if w in self.workers:
                coordinator.note_clock(w, self.workers[w].now)
            if not is_stopped:
                self._leaves_in -= 1
                if self._leaves_in == 0:
                    coordinator.ask(Ask("end", world.monotonic(), why=SCALE_IN_MEMORY))
                coordinator.poll()
                if not workers and not coordinator.busy:
                    is_stopped = True
                    self._send_to_servers("stop")
            world.wait()
        for mail in self._to_workers:
            mail.send(0, "bye")
        self._is_over = True

    # What is there.

    def check_end(self) -> None:
        """Check tables, copies of servers and messages after the end of all ranks."""
        era = self.era
        assert era is not None
        self._room.check_end()
        placement = self._parts[0].placement
        if era.applied is not None:
            era.applied.check_pulls()
            for w, worker in self.workers.items() if not self.is_warm else ():
                era.applied.check_counts(w, worker.counters(), self._sent[w])
            return
        for i, table in enumerate(self._tables):
            expected = era.values(i, era.shape.clocks)
            if isinstance(table, EmbeddingTable):
                found = np.zeros((KEYS, 8), np.float32)
                for server in self.servers:
                    keys, rows = server.core.embedding_content(i)
                    found[keys] += rows
            else:
                found = np.full(table.n_elements, np.nan, np.float32)
                for part in placement.dense[table.name]:
                    values = self.servers[part.server].core.dense_values(i)
                    found[part.start : part.stop] = values
                if table.compression is not None:
                    n_workers, grouped = era.shape.n_workers, self._parts[0].grouped_tables
                    handed = handed_over(era.groups, era.shape.clocks, range(n_workers))
                    for w, worker in self.workers.items():
                        if w in handed and i in grouped:
                            continue
                        # SGD has subtracted what was sent; the rest it would subtract.
                        residuals = worker._connection.residuals
                        assert residuals is not None
                        found -= residuals.values([table.name])[table.name]
            if era.rounds is not None and isinstance(table, DenseTable):
                era.rounds.check_end(i, found)
                continue
            assert np.array_equal(found, expected), f"table {i} ends with {found}, not {expected}"
        for parts in self._parts.values():
            for incoming in parts.mirror._incoming if parts.mirror is not None else ():
                self._check_copy(incoming.copy)

    def _check_copy(self, copy: Server) -> None:
        """Check that a copy has what its server has."""
        server, placement = self.servers[copy.index], self._parts[0].placement
        for i, table in enumerate(self._tables):
            if isinstance(table, EmbeddingTable):
                mine, its = (
                    dict(zip(k.tolist(), v.tolist(), strict=True))
                    for k, v in (server.core.embedding_content(i), copy.core.embedding_content(i))
                )
                assert mine == its, f"the copy of server {copy.index} has other rows of table {i}"
                continue
            if all(part.server != copy.index for part in placement.dense[table.name]):
                continue
            mine, its = server.core.dense_values(i), copy.core.dense_values(i)
            assert np.array_equal(mine, its), (
                f"the copy of server {copy.index} differs in table {i}"
            )


def _site(cluster: SimulatedCluster, shares_memory: bool, codecs: object, durable: bool) -> Any:
    """Return what start-up would have measured."""
    nodes = placing._nodes(cluster, shares_memory)
    return Site(*nodes, 1e9, 1e9, 1 << 30, durable), {}


@contextmanager
def simulated_start_up(disk: Disk, launch_of: Callable[[], Launch]) -> Iterator[None]:
    """Within this context start-up connects ranks of the simulation.

    Args:
        disk: Checkpoints.
        launch_of: Returns the launch.
    """
    world = disk.world
    with (
        simulated_exchanges(),
        simulated_waits(world),
        mock.patch.object(links, "Links", lambda *rest: SimulatedLinks(launch_of(), *rest)),
        mock.patch.object(placing, "_measured", _site),
        mock.patch("threadpoolctl.threadpool_limits", return_value=nullcontext()),
        mock.patch("mpips.recovery.takeover.gc"),
        mock.patch("mpips.recovery.restore.restore", disk.restore),
    ):
        yield
