"""Some steps of a task on servers in this process: what each step sends, what it computes, how long.

Worker, rings, servers and tables are those of a job. What differs: one thread plays all roles, so a
server's work is done while the worker waits; that is measured and taken apart. Large updates go by way
of staging memory, as a job does where worker and server share a node, unless `staged` is False.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from mpips import _native
from mpips.data import Batch, Dataset, DenseData, SparseBatch, SparseData
from mpips.handles.dense import BOUNCE_BYTES
from mpips.local import LocalControl
from mpips.model.consistency import needs_base
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.options import SessionOptions
from mpips.placement import Placement, place
from mpips.server import Server
from mpips.train import Inputs, ready
from mpips.transport.channel import LocalChannel
from mpips.transport.region import Regions, new_token
from mpips.worker import Worker

Int64 = NDArray[np.int64]
_RESERVE = 1 << 36  # address space of a table here; a job takes more, and there may be many servers
_WARM = 3
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


@dataclass(frozen=True)
class Rehearsal:
    """What the steps did together.

    Attributes:
        n_servers: Servers that the tables were split over.
        records: By server, records that the worker wrote in all steps together.
        steps: One tally a step, the first ones, which warm up, included.
        keys: Of each embedding table, the keys that were pushed, sorted.
        from_data: Embedding tables whose keys are those of the samples, but for a few.
        extra: Of these tables, the keys that are not in the samples.
    """

    n_servers: int
    records: list[int]
    steps: list[Tally]
    keys: dict[str, Int64]
    from_data: set[str]
    extra: dict[str, Int64]

    @property
    def measured(self) -> list[Tally]:
        """Those that count for time."""
        return self.steps[_WARM:] or self.steps

    def seconds(self, of: Callable[[Tally], float]) -> float:
        """Mean over the measured steps, without the slowest tenth, which something else made slow."""
        values = sorted(of(step) for step in self.measured)
        return statistics.fmean(values[: max(1, len(values) * 9 // 10)])

    def mean(self, of: Callable[[Tally], float]) -> float:
        """Of counts, over all steps."""
        return statistics.fmean(of(step) for step in self.steps)


class _Regions(Regions):
    """Private memory, with less address space a table than in a job."""

    def create(self, part: str, n_bytes: int, reserve: int = 0) -> _native.SharedMemory:
        """See Regions."""
        return super().create(part, n_bytes, min(reserve, _RESERVE))


class _Stage:
    """Servers, one worker, and who counts what the worker's task does."""

    def __init__(
        self, inputs: Inputs, options: SessionOptions, n_servers: int, staged: bool
    ) -> None:
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
        self.worker = Worker(
            0,
            ["worker 0"],
            inputs.tables,
            self.placement,
            channels,
            LocalControl(),
            staging,
            options.timeout_s,
        )
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

    def step(self, inputs: Inputs, batch: Batch) -> Tally:
        """One step as mpips.train.train_epochs makes it."""
        self.tally, self.batch = self.new_tally(), batch
        seen: Any = _SeenWorker(self)
        start = time.perf_counter()
        if batch.n:
            inputs.task.prefetch(seen, batch)
            inputs.task.step(seen, batch)
        self.timed(False, self.worker.clock)
        self.tally.step_s = time.perf_counter() - start - self.tally.counting_s
        return self.tally


class _SeenWorker:
    """The worker as the task of a rehearsal sees it."""

    def __init__(self, stage: _Stage) -> None:
        self._stage = stage
        self.index, self.n_workers = 0, 1

    def table(self, name: str) -> Any:
        """The handle, with somebody who counts in front of it."""
        table = self._stage.tables.get(name)
        if isinstance(table, DenseTable):
            return _SeenDense(self._stage, table)
        if isinstance(table, EmbeddingTable):
            return _SeenRows(self._stage, table)
        return self._stage.worker.table(name)  # its error lists the names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage.worker, name)


class _Seen:
    """What both kinds of handles share."""

    def __init__(self, stage: _Stage, table: Table) -> None:
        self._stage, self._table = stage, table
        self._handle = stage.worker.table(table.name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


class _SeenDense(_Seen):
    """A dense table's handle."""

    _table: DenseTable

    def pull(self, *args: Any) -> Any:
        self._count(False)
        return self._stage.timed(True, lambda: self._handle.pull(*args))

    def push(self, update: Any, base: Any = None) -> Any:
        self._count(True)
        return self._stage.timed(True, lambda: self._handle.push(self._staged(update), base))

    def push_pull(self, update: Any, *args: Any) -> Any:
        self._count(True)
        self._count(False)
        return self._stage.timed(True, lambda: self._handle.push_pull(self._staged(update), *args))

    def _count(self, push: bool) -> None:
        tally = self._stage.tally
        calls, n_bytes = (
            (tally.pushes, tally.push_bytes) if push else (tally.pulls, tally.pull_bytes)
        )
        calls[self._table.name] += 1
        for part in self._stage.placement.dense[self._table.name]:
            n_bytes[part.server] += 4 * (part.stop - part.start)
        tally.dense.append((push, 4 * self._table.n_elements))

    def _staged(self, update: Any) -> Any:
        """A large update in staging memory, where a job would copy it to; see DenseHandle."""
        worker, n_bytes = self._stage.worker, 4 * self._table.n_elements
        direct = not needs_base(self._table.consistency) and self._table.clip_norm == 0
        if not direct or n_bytes <= BOUNCE_BYTES or worker.staging is None:
            return update
        buffers = self._stage.bounces
        if self._table.name not in buffers:
            offset = worker.reserve_staging(n_bytes, 0.5)
            buffers[self._table.name] = (
                None
                if offset is None
                else worker.staging.view(offset, n_bytes, True)
                .view(np.float32)
                .reshape(self._table.shape)
            )
        buffer = buffers[self._table.name]
        if buffer is None:
            return update
        buffer[...] = update
        return buffer


class _SeenRows(_Seen):
    """An embedding table's handle."""

    _table: EmbeddingTable

    def pull(self, keys: Any, *args: Any) -> Any:
        self._count(False, keys)
        return self._stage.timed(False, lambda: self._handle.pull(keys, *args))

    def prefetch(self, keys: Any) -> Any:
        return self._stage.timed(False, lambda: self._handle.prefetch(keys))

    def push(self, keys: Any, rows: Any, base: Any = None) -> Any:
        self._count(True, keys)
        return self._stage.timed(False, lambda: self._handle.push(keys, rows, base))

    def push_pull(self, keys: Any, rows: Any, *args: Any) -> Any:
        self._count(True, keys)
        self._count(False, keys)
        return self._stage.timed(False, lambda: self._handle.push_pull(keys, rows, *args))

    def _count(self, push: bool, keys: Any) -> None:
        start = time.perf_counter()
        stage, name = self._stage, self._table.name
        unique = np.unique(np.asarray(keys, np.int64))
        owners = stage.placement.partitioners[name].owners(unique)
        per_server = np.bincount(owners, minlength=len(stage.servers))
        tally, row = stage.tally, 8 + 4 * self._table.dim
        calls, n_bytes = (
            (tally.pushes, tally.push_bytes) if push else (tally.pulls, tally.pull_bytes)
        )
        calls[name] += 1
        for server, n in enumerate(per_server.tolist()):
            n_bytes[server] += n * row
        if push:
            stage.keys.setdefault(name, []).append(unique)
            held = getattr(stage.batch, "keys", np.empty(0, np.int64))
            stage.strange.setdefault(name, []).append(np.setdiff1d(unique, held))
        # Counting is no part of a step.
        tally.counting_s += time.perf_counter() - start


def _share(inputs: Inputs, n_workers: int) -> Inputs:
    """The same with the samples of worker 0 of so many, as if there were no others."""
    data = inputs.train
    assert data is not None
    part = data.take(np.arange(0, data.n, n_workers))
    own: Dataset
    if isinstance(part, SparseBatch):
        own = SparseData(part.indptr, part.keys, part.values, part.labels, inputs.info.n_features)
    else:
        own = DenseData(part.x, part.labels)
    info = replace(inputs.info, n_samples_total=own.n, n_local=own.n)
    return replace(inputs, train=own, info=info)


def rehearse(
    inputs: Inputs,
    options: SessionOptions,
    n_servers: int,
    n_steps: int,
    *,
    n_workers: int = 1,
    max_s: float = 10.0,
    staged: bool = True,
    threads: int = 1,
) -> Rehearsal:
    """Let the task make up to `n_steps` steps on `n_servers` servers in this process. Blocks.

    The tables are made anew, with their initial values; nothing outlives the call.

    Args:
        inputs: As `mpips.train.prepare` makes them for one process, with all data.
        options: Of the session; ring and staging are made by them.
        n_servers: As in the job.
        n_steps: At least one.
        n_workers: Of the job: the steps are those of its worker 0, on that one's share of the data.
        max_s: After so many seconds no further step is begun.
        staged: Whether large updates go by staging memory.
        threads: For NumPy's linear algebra, as a rank would have.
    """
    inputs = _share(inputs, n_workers)
    stage = _Stage(inputs, options, n_servers, staged)
    loader = ready(stage.worker, inputs, options.seed)
    before = [channel.writer.next_sequence for channel in stage.worker.channels]
    steps: list[Tally] = []
    deadline = time.monotonic() + max_s
    with threadpool_limits(threads):
        for _, batch in loader:
            steps.append(stage.step(inputs, batch))
            if len(steps) >= n_steps or time.monotonic() > deadline:
                break
    records = [
        channel.writer.next_sequence - first
        for channel, first in zip(stage.worker.channels, before, strict=True)
    ]
    keys = {name: np.unique(np.concatenate(parts)) for name, parts in stage.keys.items()}
    extra = {name: np.unique(np.concatenate(parts)) for name, parts in stage.strange.items()}
    # A bias, say, is a row that no sample holds; a table of other keys would have many of them.
    from_data = {name for name in keys if len(extra[name]) <= 0.01 * len(keys[name]) + 1}
    return Rehearsal(n_servers, records, steps, keys, from_data, extra)
