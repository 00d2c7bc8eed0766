"""Servers and a worker in this process, and a tally of what each step of the task does on them.

Worker, rings, servers and tables are those of a job. The difference: one thread has all roles, so the
servers work inside the worker's calls. Their work is timed and subtracted from the time of these calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.config.options import SessionOptions
from mpips.data import Batch
from mpips.model.buffers import BufferShares
from mpips.model.served import served
from mpips.scheduler.own_worker import OwnWorker
from mpips.server.server import Server
from mpips.training.epochs import Inputs
from mpips.transport.channel import LocalChannel
from mpips.transport.region import Regions, new_token
from mpips.worker.connection import Connection
from mpips.worker.image.start import new_residuals
from mpips.worker.replicated.memory import local_part
from mpips.worker.start import MadeParts
from mpips.worker.worker import Worker

Int64 = NDArray[np.int64]
# Bytes of address space for a table; less than in a job, because there may be many servers.
_RESERVE = 1 << 36
_EMPTY_DRAINS = 200  # calls by which the time of a drain without records is measured


@dataclass
class Tally:
    """The counts and times of one step; bytes are those of keys and values.

    Attributes:
        pushes: Number of pushes, by table.
        pulls: Number of pulls, by table.
        push_bytes: Bytes pushed, by server.
        pull_bytes: Bytes pulled, by server.
        server_s: Seconds of work, by server.
        dense_s: Seconds in calls of dense tables, without the servers' work.
        rows_s: Seconds in calls of embedding tables and of the clock, without the servers' work.
        step_s: Seconds of the whole step, without `counting_s`.
        counting_s: Seconds of counting, which only a rehearsal needs.
        dense: For each call of a dense table, True if it was a push, and its bytes.
    """

    pushes: dict[str, int]
    pulls: dict[str, int]
    push_bytes: list[int]
    pull_bytes: list[int]
    server_s: list[float]
    dense_s: float = 0.0
    rows_s: float = 0.0
    step_s: float = 0.0
    counting_s: float = 0.0
    dense: list[tuple[bool, int]] = field(default_factory=list)

    @property
    def compute_s(self) -> float:
        """Seconds of the task itself."""
        return self.step_s - self.dense_s - self.rows_s - sum(self.server_s)


class _Regions(Regions):
    """Private memory, with less address space for a table than in a job."""

    def create(self, part: str, n_bytes: int, reserve: int = 0) -> _native.SharedMemory:
        """Create a part, with at most `_RESERVE` bytes of address space."""
        return super().create(part, n_bytes, min(reserve, _RESERVE))


class Stage:
    """Servers, one worker, and the tally of the current step.

    Attributes:
        tables: Tables by name.
        placement: Placement of the tables on the servers.
        servers: The servers.
        connection: Connection of the worker to the servers.
        worker: The worker.
        tally: Tally of the current step.
        batch: Batch of the current step.
        bounces: Staging memory for large updates, by table; None if there was no room.
        keys: Unique keys of every push, by embedding table.
        strange: Those of them that are not in the batch of the push.
        unpushed: Keys of the batch of every push that the push does not have, by embedding table.
        empty_s: Seconds of a drain that finds no record.
    """

    def __init__(
        self,
        inputs: Inputs,
        options: SessionOptions,
        shares: BufferShares,
        n_servers: int,
        staged: bool,
    ) -> None:
        """Make the tables with their initial values.

        Args:
            inputs: Inputs of one process.
            options: Options of the session.
            shares: Sizes of the buffers.
            n_servers: Number of servers.
            staged: The worker has staging memory.
        """
        tables = served(inputs.tables)
        self.tables = {table.name: table for table in inputs.tables}
        self.placement = shares.place(tables, n_servers, 1)
        regions = _Regions(new_token(), shared=False)
        self.servers = [
            Server(i, tables, self.placement, regions, options.seed, True, None)
            for i in range(n_servers)
        ]
        staging = regions.create_sparse("w0", shares.staging) if staged else None
        channels = [self._channel(i, staging, len(tables), options) for i in range(n_servers)]
        self.connection = Connection(
            0,
            ["worker 0"],
            tables,
            channels,
            OwnWorker(),
            staging,
            options.timeout_s,
            made=MadeParts(
                local_part(tables, self.placement, regions, self.servers, False),
                residuals=new_residuals(tables, self.placement, regions),
            ),
        )
        self.worker = Worker(self.connection, tables, self.placement)
        self.batch: Batch | None = None
        self.bounces: dict[str, Any] = {}
        self.keys: dict[str, list[Int64]] = {}
        self.strange: dict[str, list[Int64]] = {}
        self.unpushed: dict[str, list[Int64]] = {}
        self.empty_s = self._empty_drain()
        self.tally = self.new_tally()

    def _channel(
        self, i: int, staging: _native.SharedMemory | None, n_tables: int, options: SessionOptions
    ) -> LocalChannel:
        """Return the channel to server `i`, which times the work of the server."""
        layout, server = self.placement.layouts[i], self.servers[i]
        writer = _native.RingWriter(
            server.region,
            layout.mailbox_offset(0),
            layout.geometry,
            0,
            0,
            options.checksums,
            n_tables,
        )
        if staging is not None:
            server.core.set_staging(0, staging)

        def drain() -> int:
            start = time.perf_counter()
            consumed = server.drain()
            if consumed:
                # Leave out drains that find no record, and the cost of the call itself.
                self.tally.server_s[i] += max(time.perf_counter() - start - self.empty_s, 0.0)
            return consumed

        return LocalChannel(server.region, layout, writer, 1, drain)

    def _empty_drain(self) -> float:
        """Return the seconds of a drain that finds no record."""
        start = time.perf_counter()
        for _ in range(_EMPTY_DRAINS):
            self.servers[0].drain()
        return (time.perf_counter() - start) / _EMPTY_DRAINS

    def new_tally(self) -> Tally:
        """Return the tally of a step that has done nothing."""
        n = len(self.servers)
        zeros = dict.fromkeys(self.tables, 0)
        return Tally(dict(zeros), dict(zeros), [0] * n, [0] * n, [0.0] * n)

    def timed(self, dense: bool, work: Callable[[], Any]) -> Any:
        """Call `work` and add its seconds, without those of the servers, to the tally; return its value.

        Args:
            dense: Add them to the calls of dense tables, else to those of embedding tables.
            work: A call of the worker.
        """
        served, start = sum(self.tally.server_s), time.perf_counter()
        value = work()
        took = time.perf_counter() - start - (sum(self.tally.server_s) - served)
        if dense:
            self.tally.dense_s += took
        else:
            self.tally.rows_s += took
        return value

    def step(self, inputs: Inputs, batch: Batch, seen: Any) -> Tally:
        """Make one step as `mpips.training.epochs.train_epochs` does; return its tally.

        Args:
            inputs: Inputs of the worker.
            batch: Its batch.
            seen: The worker that the task receives.
        """
        self.tally, self.batch = self.new_tally(), batch
        start = time.perf_counter()
        if batch.n:
            inputs.task.prefetch(seen, batch)
            inputs.task.step(seen, batch)
        self.timed(False, self.worker.clock)
        self.tally.step_s = time.perf_counter() - start - self.tally.counting_s
        return self.tally
