"""Proxies for the worker and its tables, which count and time the calls of a task during a rehearsal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from mpips.model.consistency import needs_base
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.worker.paths.direct import BOUNCE_BYTES

if TYPE_CHECKING:
    from mpips.plan.stage import Stage


class SeenWorker:
    """Proxy for the worker: the task of a rehearsal receives it as its worker."""

    def __init__(self, stage: Stage) -> None:
        """Stand for the worker of `stage`."""
        self._stage = stage
        self.index, self.n_workers = 0, 1

    def table(self, name: str) -> Any:
        """Return a proxy for the handle of a table."""
        table = self._stage.tables.get(name)
        if isinstance(table, DenseTable):
            return _SeenDense(self._stage, table)
        if isinstance(table, EmbeddingTable):
            return _SeenRows(self._stage, table)
        return self._stage.worker.table(name)  # raises an error that lists the names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage.worker, name)


class _Seen:
    """The common part of the proxies for handles."""

    def __init__(self, stage: Stage, table: Table) -> None:
        self._stage, self._table = stage, table
        self._handle = stage.worker.table(table.name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


class _SeenDense(_Seen):
    """Proxy for the handle of a dense table."""

    _table: DenseTable

    def pull(self, *args: Any, **named: Any) -> Any:
        """Count and time a pull."""
        self._count(False)
        return self._stage.timed(True, lambda: self._handle.pull(*args, **named))

    def push(self, update: Any, base: Any = None) -> Any:
        """Count and time a push."""
        self._count(True)
        return self._stage.timed(True, lambda: self._handle.push(self._staged(update), base))

    def push_pull(self, update: Any, *args: Any, **named: Any) -> Any:
        """Count and time a push_pull."""
        self._count(True)
        self._count(False)
        return self._stage.timed(
            True, lambda: self._handle.push_pull(self._staged(update), *args, **named)
        )

    def _count(self, push: bool) -> None:
        """Add a push or a pull of the whole table to the tally."""
        tally = self._stage.tally
        calls, n_bytes = (
            (tally.pushes, tally.push_bytes) if push else (tally.pulls, tally.pull_bytes)
        )
        calls[self._table.name] += 1
        for part in self._stage.placement.dense[self._table.name]:
            n_bytes[part.server] += 4 * (part.stop - part.start)
        tally.dense.append((push, 4 * self._table.n_elements))

    def _staged(self, update: Any) -> Any:
        """Return a large update in staging memory, to which a job would copy it; see DenseHandle."""
        connection, n_bytes = self._stage.connection, 4 * self._table.n_elements
        direct = not needs_base(self._table.consistency) and self._table.clip_norm == 0
        if not direct or n_bytes <= BOUNCE_BYTES or connection.staging.memory is None:
            return update
        update = np.ascontiguousarray(update, np.float32)
        if connection.staging.offset_of(update) is not None:
            return update
        buffers = self._stage.bounces
        if self._table.name not in buffers:
            offset = connection.staging.reserve(n_bytes, 0.5)
            buffers[self._table.name] = (
                None
                if offset is None
                else connection.staging.memory.view(offset, n_bytes, True)
                .view(np.float32)
                .reshape(self._table.shape)
            )
        buffer = buffers[self._table.name]
        if buffer is None:
            return update
        buffer[...] = update
        return buffer


class _SeenRows(_Seen):
    """Proxy for the handle of an embedding table."""

    _table: EmbeddingTable

    def pull(self, keys: Any, *args: Any, **named: Any) -> Any:
        """Count and time a pull."""
        self._count(False, keys)
        return self._stage.timed(False, lambda: self._handle.pull(keys, *args, **named))

    def prefetch(self, keys: Any) -> Any:
        """Time a prefetch; the pull that uses it is counted."""
        return self._stage.timed(False, lambda: self._handle.prefetch(keys))

    def push(self, keys: Any, rows: Any, base: Any = None) -> Any:
        """Count and time a push."""
        self._count(True, keys)
        return self._stage.timed(False, lambda: self._handle.push(keys, rows, base))

    def push_pull(self, keys: Any, rows: Any, *args: Any, **named: Any) -> Any:
        """Count and time a push_pull."""
        self._count(True, keys)
        self._count(False, keys)
        return self._stage.timed(False, lambda: self._handle.push_pull(keys, rows, *args, **named))

    def _count(self, push: bool, keys: Any) -> None:
        """Add a push or a pull of rows to the tally, and note the keys of a push."""
        start = time.perf_counter()
        stage, name = self._stage, self._table.name
        unique = np.unique(np.asarray(keys, np.int64))
        stored = np.unique(self._table.stored_keys(unique))
        owners = stage.placement.partitioners[name].owners(stored)
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
            stage.unpushed.setdefault(name, []).append(np.setdiff1d(held, unique))
        # Subtract the time of counting, which is no part of a step.
        tally.counting_s += time.perf_counter() - start
