"""Servers and a worker in this process, and what each step of the task does on them.

Worker, rings, servers and tables are those of a job. What differs: one thread plays all roles, so a
server's work is done while the worker waits; that is measured and taken apart.
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
from mpips.model.placement import Placement, place
from mpips.server.server import Server
from mpips.session.local import LocalControl
from mpips.training.epochs import Inputs
from mpips.transport.channel import LocalChannel
from mpips.transport.region import Regions, new_token
from mpips.worker.connection import Connection
from mpips.worker.worker import Worker

Int64 = NDArray[np.int64]
_RESERVE = 1 << 36  # address space of a table here; a job takes more, and there may be many servers
_EMPTY_DRAINS = 200


@dataclass
class Tally:
    """What one step did; bytes are those of keys and values.

    Attributes:
        pushes, pulls: Calls by table.
        push_bytes, pull_bytes: By server.
        dense_s: Seconds in calls of dense tables, servers' work left out.
        rows_s: The same of embedding tables and of the clock.
        server_s: By server, seconds of its work.
        step_s: All of it, but for `counting_s`, which only a rehearsal takes.
        dense: Of each call of a dense table: whether it was a push, and its bytes.
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
        """Seconds that the task itself took."""
        return self.step_s - self.dense_s - self.rows_s - sum(self.server_s)


class _Regions(Regions):
    """Private memory, with less address space a table than in a job."""

    def create(self, part: str, n_bytes: int, reserve: int = 0) -> _native.SharedMemory:
        """See Regions."""
        return super().create(part, n_bytes, min(reserve, _RESERVE))


class Stage:
    """Servers, one worker, and the tally of the step that is being made.

    Attributes:
        tables: By name.
        placement: Of the tables on the servers.
        worker: The only one.
        tally: Of the current step.
        batch: Of the current step.
        bounces: Staging memory for large updates, by table; None where there was no room.
        keys: Of each embedding table, the keys of every push.
        strange: Of these, those that are not in the push's batch.
    """

    def __init__(
        self, inputs: Inputs, options: SessionOptions, n_servers: int, staged: bool
    ) -> None:
        """Make tables with their initial values; with `staged` the worker has staging memory."""
        self.tables = {table.name: table for table in inputs.tables}
        self.placement: Placement = place(
            inputs.tables, n_servers, 1, options.ring_slots, options.slot_kib * 1024
        )
        regions = _Regions(new_token(), shared=False)
        self.servers = [
            Server(i, inputs.tables, self.placement, regions, options.seed, True, None)
            for i in range(n_servers)
        ]
        staging = regions.create_sparse("w0", options.staging_mib << 20) if staged else None
        channels = [
            self._channel(i, staging, len(inputs.tables), options) for i in range(n_servers)
        ]
        self.connection = Connection(
            0,
            ["worker 0"],
            inputs.tables,
            channels,
            LocalControl(),
            staging,
            options.timeout_s,
        )
        self.worker = Worker(self.connection, inputs.tables, self.placement)
        self.batch: Batch | None = None
        self.bounces: dict[str, Any] = {}
        self.keys: dict[str, list[Int64]] = {}
        self.strange: dict[str, list[Int64]] = {}
        self.empty_s = self._empty_drain()
        self.tally = self.new_tally()

    def _channel(
        self, i: int, staging: _native.SharedMemory | None, n_tables: int, options: SessionOptions
    ) -> LocalChannel:
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
                # Asking in vain is not the server's work, nor is the call itself.
                self.tally.server_s[i] += max(time.perf_counter() - start - self.empty_s, 0.0)
            return consumed

        return LocalChannel(server.region, layout, writer, 1, drain)

    def _empty_drain(self) -> float:
        """Seconds of a call that finds nothing."""
        start = time.perf_counter()
        for _ in range(_EMPTY_DRAINS):
            self.servers[0].drain()
        return (time.perf_counter() - start) / _EMPTY_DRAINS

    def new_tally(self) -> Tally:
        """One of a step that has done nothing."""
        n = len(self.servers)
        zeros = dict.fromkeys(self.tables, 0)
        return Tally(dict(zeros), dict(zeros), [0] * n, [0] * n, [0.0] * n)

    def timed(self, dense: bool, work: Callable[[], Any]) -> Any:
        """Do it; its seconds, less those of the servers, are the client's."""
        served, start = sum(self.tally.server_s), time.perf_counter()
        value = work()
        took = time.perf_counter() - start - (sum(self.tally.server_s) - served)
        if dense:
            self.tally.dense_s += took
        else:
            self.tally.rows_s += took
        return value

    def step(self, inputs: Inputs, batch: Batch, seen: Any) -> Tally:
        """One step as mpips.training.epochs.train_epochs makes it; the task sees `seen` as its worker."""
        self.tally, self.batch = self.new_tally(), batch
        start = time.perf_counter()
        if batch.n:
            inputs.task.prefetch(seen, batch)
            inputs.task.step(seen, batch)
        self.timed(False, self.worker.clock)
        self.tally.step_s = time.perf_counter() - start - self.tally.counting_s
        return self.tally
