"""Recorded jobs in one thread: several servers, and workers whose programs take turns by a seed.

The programs are generators that never wait: each step writes records, or reads what is there. The seed
decides whose turn it is and when servers consume, so two seeds give two orders of updates. A replay takes the
turns of another seed, and must end with the bits of the recorded job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mpips import _native
from mpips.errors import StallError
from mpips.model.common_copy import stored_states
from mpips.model.consistency import (
    ASP,
    BSP,
    SSP,
    Compensate,
    Reject,
    Scale,
    Switch,
    bsp_until,
    needs_base,
)
from mpips.model.optimizer import SGD, Adagrad, Adam, Momentum
from mpips.model.placement import place
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.record.files import (
    FORMAT,
    NO_STOP,
    End,
    RecordContent,
    RecordedTable,
    RecordHead,
    read_record,
)
from mpips.record.writer import RecordFile
from mpips.server.recorded import RecordingServer, ReplayingServer, table_digests
from mpips.server.server import Server
from mpips.session.recording import _recorded
from mpips.transport.channel import ShmChannel
from mpips.transport.region import Regions, new_token
from mpips.worker.recorded import RecordingWorker, ReplayingWorker

N_SLOTS, SLOT_BYTES = 4, 512
TIMEOUT_S = 0.5


def draw_tables(rng: np.random.Generator) -> list[Table]:
    """Return tables under ASP and SSP with all policies, whose values depend on the order of updates."""
    rules = [Adam(0.1), Adagrad(0.2), Momentum(0.1), SGD(0.1)]
    policies: list[Any] = [Scale(), Reject(2), Scale(), Compensate(0.1), Reject(0)]
    tables: list[Table] = []
    for i in range(int(rng.integers(1, 4))):
        model = ASP if rng.random() < 0.6 else SSP
        consistency = model(policy=policies[int(rng.integers(len(policies)))])
        rule = rules[int(rng.integers(len(rules)))]
        if rng.random() < 0.5:
            n = int(rng.integers(3, 120))
            tables.append(DenseTable(f"w{i}", (n,), optimizer=rule, consistency=consistency))
        else:
            dim = int(rng.integers(1, 9))
            tables.append(EmbeddingTable(f"e{i}", dim, optimizer=rule, consistency=consistency))
    return tables


def switching(tables: Sequence[Table], at: int) -> list[Table]:
    """Return the tables under Switch at this clock; updates that ASP drops or scales depend on the order."""
    policies: list[Any] = [Scale(), Reject(0)]
    return [
        replace(table, consistency=Switch(BSP(), ASP(policies[i % 2]), at))
        for i, table in enumerate(tables)
    ]


class Job:
    """A job that is recorded, or replayed, in this thread."""

    def __init__(
        self,
        tables: Sequence[Table],
        n_servers: int,
        n_workers: int,
        n_clocks: int,
        turns: int,
        folder: Path | None = None,
        record: tuple[list[RecordContent], list[RecordContent]] | None = None,
        salt: int = 0,
        cuts: Sequence[int] = (),
        stops: Sequence[int] = (),
        breaks: Sequence[dict[str, Any]] = (),
    ) -> None:
        """`turns`: seed of the order. `folder`: for the files of a record. `record`: to be replayed. `salt`:
        another value makes another program. `cuts`: clocks of workers at which they write the record of a
        cut. `stops`: clocks at which the replay ends. `breaks`: arguments of `add_break` of each server."""
        self.cuts, self.stops = tuple(cuts), tuple(stops)
        self.at_cut: dict[int, dict[str, str]] = {}  # by server: digests of its tables at the cut
        # By server, index of a table and number of its updates: its values, seen between turns of a server.
        self.seen: dict[tuple[int, int, int], Any] = {}
        # By server, the breaks to which it has come, in order: what is in force and the values of all tables.
        self.at_breaks: list[list[tuple[dict[str, Any], list[int], list[Any]]]] = [
            [] for _ in range(n_servers)
        ]
        self._breaks = [list(breaks) for _ in range(n_servers)]
        self.tables, self.n_servers, self.n_workers = list(tables), n_servers, n_workers
        self._n_clocks, self._salt, self._folder = n_clocks, salt, folder
        self._random = np.random.default_rng([turns, 77])
        self.placement = place(self.tables, n_servers, n_workers, N_SLOTS, SLOT_BYTES)
        self.regions = Regions(new_token(), shared=False)
        self.servers = [
            Server(s, self.tables, self.placement, self.regions, 5, True, None)
            for s in range(n_servers)
        ]
        self._staging = [self.regions.create_sparse(f"w{w}", 1 << 16) for w in range(n_workers)]
        for server in self.servers:
            for w, memory in enumerate(self._staging):
                server.core.set_staging(w, memory)
        self.channels = [[self._channel(s, w) for s in self.servers] for w in range(n_workers)]
        self.steps = [0] * n_workers  # by worker: step of its clock
        self.orders: list[_native.RecordedOrder] = []
        self.server_records: list[Any] = []
        self.worker_records: list[Any] = []
        if folder is not None:
            self._record(folder)
        if record is not None:
            self._replay(*record)
        for w, of_worker in enumerate(self.worker_records):
            of_worker.join(self.channels[w])
        for server in self.servers if self.cuts else ():
            server.core.expect_cut(1)

    def _channel(self, server: Server, w: int) -> ShmChannel:
        writer = _native.RingWriter(
            server.region,
            server.layout.mailbox_offset(w),
            server.layout.geometry,
            w,
            0,
            False,
            len(self.tables),
        )
        return ShmChannel(server.region, server.layout, writer, self.n_workers, True)

    def head(self, role: Any, index: int) -> RecordHead:
        return RecordHead(
            format=FORMAT,
            role=role,
            index=index,
            n_servers=self.n_servers,
            n_workers=self.n_workers,
            tables=tuple(_recorded(t) for t in self.tables),
            start="new",
            fingerprint="",
        )

    def _record(self, folder: Path) -> None:
        for s, server in enumerate(self.servers):
            file = RecordFile(folder / f"server-{s}.rec", self.head("server", s), 16)
            self.server_records.append(RecordingServer(server, file))
        for w in range(self.n_workers):
            file = RecordFile(folder / f"worker-{w}.rec", self.head("worker", w), 16)
            self.worker_records.append(RecordingWorker(file, self.n_servers, len(self.tables)))

    def _replay(self, servers: list[RecordContent], workers: list[RecordContent]) -> None:
        names, n_tables = [t.name for t in self.tables], len(self.tables)
        n_bytes = _native.pull_words_bytes(n_tables, self.n_workers)
        words = [self.regions.create(f"s{s}-replay", n_bytes) for s in range(self.n_servers)]
        ends = self.stops or [NO_STOP] * self.n_workers
        steps = [
            _native.PullSteps(f.data, self.n_servers, n_tables, stop)
            for f, stop in zip(workers, ends, strict=True)
        ]
        for s, server in enumerate(self.servers):
            order = _native.RecordedOrder(servers[s].data, self.n_workers, names, self.stops)
            self.orders.append(order)
            for at in self._breaks[s]:
                order.add_break(**at)
            gate = _native.PullGate(words[s], n_tables, self.n_workers, s, TIMEOUT_S)
            for i, table in enumerate(self.tables):
                if isinstance(table, DenseTable) and self._part(table, s) is not None:
                    gate.add_table(server.region, server.layout, i, table.name)
            for w, of_worker in enumerate(steps):
                gate.add_pulls(w, of_worker, order)
            end = servers[s].end
            digests = end.digests if end is not None else {}
            self.server_records.append(ReplayingServer(server, order, gate, digests))
        data = [file.data for file in servers]
        for w, of_worker in enumerate(steps):
            records = _native.WorkerRecords(data, w, self.n_workers, n_tables, self.stops)
            pulls = _native.RecordedPulls(of_worker, w, names, records, ends[w] != NO_STOP)
            self.worker_records.append(ReplayingWorker(w, pulls, words))

    def _part(self, table: Table, server: int) -> Any:
        return next((p for p in self.placement.dense[table.name] if p.server == server), None)

    # The programs.

    def _wait(self, done) -> Iterator[None]:
        while not done():
            yield

    def _work(self, w: int) -> Iterator[None]:
        """One worker: what it pulls goes into what it pushes, so each bit depends on all orders before."""
        rng = np.random.default_rng([w, self._salt, 5])
        record, channels = self.worker_records[w], self.channels[w]
        for clock in range(self._n_clocks):
            for step in range(int(rng.integers(1, 5))):
                self.steps[w] = step
                i = int(rng.integers(len(self.tables)))
                table = self.tables[i]
                if isinstance(table, EmbeddingTable):
                    yield from self._rows_step(w, clock, i, table, rng)
                else:
                    yield from self._dense_step(w, clock, i, table, rng, record)
            own = [c.writer.next_sequence for c in channels]
            for channel in channels:
                yield from self._wait(lambda c=channel, at=clock: c.writer.tick(at))
            record.tick(clock, own)
            if self.cuts and clock + 1 == self.cuts[w]:
                record.note_cut()
                for channel in channels:
                    yield from self._wait(
                        lambda c=channel, at=clock + 1: c.writer.cut(at, 1, at, b"")
                    )
        own = [c.writer.next_sequence for c in channels]
        record.tick(self._n_clocks, own, is_end=True)
        for channel in channels:
            yield from self._wait(lambda c=channel: c.writer.finish(self._n_clocks))

    def _settled(self, channel: ShmChannel, i: int, table: Table, clock: int) -> bool:
        least = max(0, clock - table.consistency.bound) if isinstance(table.consistency, SSP) else 0
        until = bsp_until(table.consistency, 0)
        pushed = channel.writer.pushed_before(i) if clock >= until else 0
        return channel.writer.applied >= pushed and channel.wait_head(
            i, min(clock, until), least, 0.0
        )

    def _dense_step(self, w, clock, i, table, rng, record) -> Iterator[None]:
        parts = self.placement.dense[table.name]
        values = np.empty(table.n_elements, np.float32)
        for part in parts:
            channel = self.channels[w][part.server]
            yield from self._wait(lambda c=channel: self._settled(c, i, table, clock))
        for part in parts:
            out = values[part.start : part.stop]
            yield from self._wait(
                lambda p=part, o=out: record.read_dense(p.server, i, clock, o, 0.0)
            )
        if rng.random() < 0.2:
            return
        update = (np.sin(values + w) + rng.random(len(values))).astype(np.float32)
        has_base = needs_base(table.consistency)
        for part in parts:
            low = slice(part.start, part.stop)
            base = values[low] if has_base else None
            yield from self._push(self.channels[w][part.server], i, clock, update[low], base)
            yield

    def _push(self, channel, i, clock, update, base) -> Iterator[None]:
        done = 0
        while done < update.size:
            done = channel.writer.push_dense(i, clock, update, base, done)
            if done < update.size:
                yield

    def _rows_step(self, w, clock, i, table, rng) -> Iterator[None]:
        keys = np.unique(rng.integers(0, 12, int(rng.integers(1, 9))))
        owner = self.placement.partitioners[table.name].owner
        owners = np.array([owner(int(key)) for key in keys])
        for s in range(self.n_servers):
            mine = np.ascontiguousarray(keys[owners == s])
            if not len(mine):
                continue
            channel, rows = self.channels[w][s], np.zeros((len(mine), table.dim), np.float32)
            done = 0
            while done < len(mine):
                done = channel.writer.pull_rows(i, clock, mine, rows, done)
                yield
            before = channel.writer.next_sequence
            yield from self._wait(
                lambda c=channel, b=before: (
                    c.writer.collect() == 0 or c.writer.collected_before() >= b
                )
            )
            if rng.random() < 0.2:
                continue
            update = (np.cos(rows + w) + rng.random(rows.shape)).astype(np.float32)
            base = rows.copy() if needs_base(table.consistency) else None
            done = 0
            while done < len(mine):
                done = channel.writer.push_rows(i, clock, mine, update, base, done)
                yield

    def _copy(self, server: Server) -> None:
        """Note the values at the cut, which is held at all rings."""
        record = self.server_records[server.index]
        self.at_cut[server.index] = table_digests(server, self.placement, self.tables)
        server.core.release_cut(1)
        record.note_copy()

    def _values(self, server: Server, i: int) -> Any:
        """Return a copy of a server's part of a table: rows by key, or values and states."""
        table = self.tables[i]
        if isinstance(table, EmbeddingTable):
            keys, rows = server.core.embedding_arrays(i)
            return {int(key): row.tobytes() for key, row in zip(keys, rows, strict=True)}
        if self._part(table, server.index) is None:
            return None
        slots = range(1 + len(stored_states(table)))
        return [server.core.dense_array(i, slot).tobytes() for slot in slots]

    def _look(self, server: Server) -> None:
        """Note the values of all tables, and go on from breaks."""
        s = server.index
        if self.orders:
            self.server_records[s].poll()
        while (index := server.core.reached_break()) is not None:
            assert server.drain() == 0, "a server goes on at a break"
            clocks = [server.core.clock(w) for w in range(self.n_workers)]
            values = [self._values(server, i) for i in range(len(self.tables))]
            self.at_breaks[s].append((self._breaks[s].pop(index), clocks, values))
            self.orders[s].remove_break(index)
        for i in range(len(self.tables)) if not self.orders else ():
            at = s, i, server.core.steps(i)
            if at not in self.seen:
                self.seen[at] = self._values(server, i)

    def run(self) -> list[dict[str, str]]:
        """Run the job to its end; returns the digests of each server's tables."""
        programs = dict(enumerate(self._work(w) for w in range(self.n_workers)))
        idle = 0
        while programs:
            if self.stops and all(order.is_over for order in self.orders):
                return [table_digests(s, self.placement, self.tables) for s in self.servers]
            turn = int(self._random.integers(self.n_workers + self.n_servers))
            if turn < self.n_workers:
                if turn in programs and next(programs[turn], self) is self:
                    del programs[turn]
            else:
                server = self.servers[turn - self.n_workers]
                moved = server.drain()
                self._look(server)
                idle = 0 if moved else idle + 1
                if self.cuts and server.core.cut_ready():
                    self._copy(server)
            if idle > 2000:
                raise StallError("no worker and no server goes on")
        for server in self.servers:
            while server.drain():
                self._look(server)
            self._look(server)
            if self.cuts and server.core.cut_ready():
                self._copy(server)
                server.drain()
        digests = [table_digests(s, self.placement, self.tables) for s in self.servers]
        notes = [r.end(d) for r, d in zip(self.server_records, digests, strict=True)]
        notes += [r.end() for r in self.worker_records]
        assert not any(notes), notes
        return digests


def read_files(folder: Path, job: Job) -> tuple[list[RecordContent], list[RecordContent]]:
    """Return the files of a recorded job."""
    servers = [read_record(folder / f"server-{s}.rec") for s in range(job.n_servers)]
    workers = [read_record(folder / f"worker-{w}.rec") for w in range(job.n_workers)]
    return servers, workers


# Records that are written by hand.


def varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def zigzag(value: int) -> bytes:
    return varint(2 * value if value >= 0 else -2 * value - 1)


def content(
    role: Any,
    index: int,
    data: bytes,
    tables: Sequence[RecordedTable],
    n_servers: int = 1,
    n_workers: int = 1,
    end: End | None = End(),  # noqa: B008 (frozen)
) -> RecordContent:
    """Return a file of a record that was not written."""
    head = RecordHead(
        format=FORMAT,
        role=role,
        index=index,
        n_servers=n_servers,
        n_workers=n_workers,
        tables=tuple(tables),
        start="new",
        fingerprint="",
    )
    return RecordContent(Path(f"{role}-{index}.rec"), head, data, end)
