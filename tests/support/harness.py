"""A server and its workers in one process, without MPI: what the tests of rings and servers share."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from mpips import _native
from mpips.model.consistency import ASP
from mpips.model.optimizer import SGD
from mpips.model.placement import place
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.scheduler.own_worker import OwnWorker
from mpips.server.server import Server
from mpips.transport.channel import LocalChannel, ShmChannel
from mpips.transport.region import Regions, attach, new_token
from mpips.worker.connection import Connection
from mpips.worker.connection_options import ConnectionOptions
from mpips.worker.start import MadeParts
from mpips.worker.worker import Worker

TIMEOUT_S = 60.0
SUM = SGD(lr=1.0)  # a push of u changes the values by exactly -u


def dense(n=8, name="w", **options) -> DenseTable:
    return DenseTable(name, (n,), **{"optimizer": SUM, "consistency": ASP(), **options})


def rows(dim=4, name="e", **options) -> EmbeddingTable:
    return EmbeddingTable(name, dim, **{"optimizer": SUM, "consistency": ASP(), **options})


def floats(n, seed=0, low=-8, high=9):
    """Whole numbers held in float32: sums of them are exact."""
    return np.random.default_rng(seed).integers(low, high, n).astype(np.float32)


def make_writer(memory, layout, worker, n_tables, generation=0, checksums=True):
    return _native.RingWriter(
        memory,
        layout.mailbox_offset(worker),
        layout.geometry,
        worker,
        generation,
        checksums,
        n_tables,
    )


class Rig:
    """Server 0 of a job of `n_workers` workers, and a ring writer for each.

    `workers` have channels of the shm kind, so somebody must drain (`serving`), or of the local kind:
    then whoever waits drains.
    """

    def __init__(
        self,
        *tables: Table,
        n_workers: int = 1,
        n_slots: int = 4,
        slot_bytes: int = 1024,
        shared: bool = False,
        checksums: bool = True,
        staging_bytes: int = 1 << 20,
        remote: Sequence[int] = (),
        remote_staging_bytes: int = 0,
    ) -> None:
        """`remote`: workers that get an area for large pushes."""
        self.tables = list(tables)
        self.n_workers = n_workers
        near = [[w for w in range(n_workers) if w not in remote]]
        self._has_local = False
        self.placement = place(
            self.tables, 1, n_workers, n_slots, slot_bytes, near, remote_staging_bytes
        )
        self.layout = self.placement.layouts[0]
        self.regions = Regions(new_token(), shared=shared)
        self.server = Server(0, self.tables, self.placement, self.regions, 0, True, None)
        self.core = self.server.core
        self.region = self.server.region
        self.staging = [
            self.regions.create_sparse(f"w{w}", staging_bytes) for w in range(n_workers)
        ]
        for w, memory in enumerate(self.staging):
            self.core.set_staging(w, memory)
        self.writers = [
            make_writer(self.region, self.layout, w, len(tables), checksums=checksums)
            for w in range(n_workers)
        ]

    def drain(self) -> int:
        return self.core.drain(0.0, 200)

    def channel(self, w: int, local: bool):
        if local:
            self._has_local = True
            return LocalChannel(
                self.region, self.layout, self.writers[w], self.n_workers, self.server.drain
            )
        return ShmChannel(self.region, self.layout, self.writers[w], self.n_workers, True)

    def worker(
        self,
        w: int = 0,
        *,
        local=True,
        timeout_s=TIMEOUT_S,
        channel=None,
        residuals=None,
        groups=(),
        node_rows=None,
    ) -> Worker:
        connection = Connection(
            w,
            [f"worker {i}" for i in range(self.n_workers)],
            self.tables,
            [channel or self.channel(w, local)],
            OwnWorker(),
            self.staging[w],
            timeout_s,
            ConnectionOptions(groups=groups),
            made=MadeParts(residuals=residuals, node_rows=node_rows),
        )
        return Worker(connection, self.tables, self.placement)

    def values(self, table: int = 0):
        return self.core.dense_values(table)

    def table_rows(self, table: int = 0) -> dict[int, list[float]]:
        keys, values = self.core.embedding_rows(table)
        return {int(k): v.tolist() for k, v in zip(keys, values, strict=True)}

    @contextmanager
    def serving(self) -> Iterator[None]:
        """A thread that drains until the block ends; its error, if any, is raised here."""
        assert not self._has_local, "one thread alone drains: a worker of the local kind does it"
        stop, errors = threading.Event(), []

        def serve() -> None:
            try:
                while not stop.is_set():
                    self.core.drain(0.002, 200)
                self.drain()
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if errors:
            raise errors[0]


def in_threads(functions: Sequence) -> list:
    """Run all at once; returns their values or raises the first error."""
    results: list = [None] * len(functions)
    errors: list[BaseException] = []

    def call(i, function) -> None:
        try:
            results[i] = function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=pair) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def attached_writer(token, tables, n_workers, n_slots, slot_bytes, worker):
    """In another process: the region of server 0 and this worker's ring in it."""
    layout = place(tables, 1, n_workers, n_slots, slot_bytes).layouts[0]
    memory = attach(token, "s0", layout.tables_offset)
    return memory, make_writer(memory, layout, worker, len(tables))


def push_all(writer, table, update, drain, base=None, clock=0) -> int:
    """Push a dense update of any size, draining whenever the ring is full."""
    done = 0
    while done < update.size:
        done = writer.push_dense(table, clock, update, base, done)
        if done < update.size:
            drain()
    return writer.next_sequence - 1


def python(code: str, *args: str, wrapper: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    command = [*wrapper, sys.executable, "-c", textwrap.dedent(code), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def clock_of(rig, worker, clock, values, *, table=0, tick=True):
    """Write a worker's whole clock into its ring; returns the sequence number of each push."""
    writer, pushes = rig.writers[worker], []
    for value in values:
        update = np.full(rig.tables[table].n_elements, value, np.float32)
        assert writer.push_dense(table, clock, update, None, 0) == update.size
        pushes.append(writer.next_sequence - 1)
    if tick:
        assert writer.tick(clock)
    return pushes
