"""The handle of an embedding table."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.handles.base import Handle, as_float32
from mpips.model.consistency import BSP, needs_base
from mpips.model.table import EmbeddingTable
from mpips.requests import PolledRequest, PushResult, Request

if TYPE_CHECKING:
    from mpips.worker import Worker

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]


class EmbeddingHandle(Handle):
    """An embedding table as a worker sees it."""

    def __init__(
        self, worker: Worker, index: int, table: EmbeddingTable, partitioner: _native.Partitioner
    ) -> None:
        """`partitioner` says which server owns a key."""
        super().__init__(worker, index, table)
        self.dim = table.dim
        self._partitioner = partitioner
        self._plan = _native.KeyPlan()
        self._prefetched: tuple[Int64, int, Request[Float32]] | None = None

    def pull(self, keys: Int64, out: Float32 | None = None) -> Float32:
        """Fetch rows. Not collective; blocks until they satisfy the consistency model.

        Args:
            keys: int64, shape (n,); any order, duplicates allowed.
            out: float32, shape (n, dim); made if None. Row i receives the row of keys[i].

        Returns:
            `out`.

        Raises:
            KeyError: A key lies outside the partition.
            StallError: Who is late did not come within the job's timeout.
        """
        keys = self._as_keys(keys)
        rows = (self._take_prefetched(keys) or self._start_pull(keys)).wait()
        if out is None:
            return rows
        if out.dtype != np.float32 or out.shape != rows.shape:
            raise ValueError(f"out must be a float32 array of shape {rows.shape}")
        out[...] = rows
        return out

    def prefetch(self, keys: Int64) -> Request[Float32]:
        """Start a pull; `wait` returns the rows, float32 (n, dim). Blocks only while a ring is full.

        A `pull` of the same keys at the same clock, with no push to this table in between, takes the
        newest prefetch instead of asking again; so a task may call this early and pull later.
        """
        keys = self._as_keys(keys)
        request = self._start_pull(keys)
        self._prefetched = (keys.copy(), self._worker.now, request)
        return request

    def _take_prefetched(self, keys: Int64) -> Request[Float32] | None:
        held, self._prefetched = self._prefetched, None
        if held is None or held[1] != self._worker.now or not np.array_equal(held[0], keys):
            return None
        return held[2]

    def _start_pull(self, keys: Int64) -> Request[Float32]:
        worker = self._worker
        worker.control.state = f"pulling {self.name!r}"
        plan = _native.KeyPlan()
        plan.build(keys, self._partitioner)
        rows = np.empty((plan.n_unique, self.dim), np.float32)
        unique = plan.unique_keys
        ends: dict[int, int] = {}
        for server, group in self._groups(plan):
            done, count = 0, group.stop - group.start
            channel = worker.channels[server]
            while True:
                done = channel.writer.pull_rows(
                    self._index, worker.now, unique[group], rows[group], done
                )
                ends[server] = channel.writer.next_sequence
                worker.keep(server, ends[server], rows)
                if done == count:
                    break
                worker.wait_credit(server)
        worker.send(ends)
        worker.control.state = "computing"
        missing = dict(ends)

        def advance(max_s: float) -> bool:
            for server, before in list(missing.items()):
                if not worker.channels[server].wait_collected(before, max_s):
                    return False
                del missing[server]
            return True

        def finish() -> Float32:
            if plan.n_unique == len(keys) and len(ends) <= 1:
                return rows
            out = np.empty((len(keys), self.dim), np.float32)
            plan.scatter_rows(rows, out)
            return out

        def late() -> str:
            server = next(iter(missing))
            return f"server {server} has not answered a pull of table {self.name!r}" + worker.blame(
                server
            )

        return PolledRequest(advance, finish, late, worker.timeout_s, worker.control.poll)

    def push(self, keys: Int64, rows: Float32, base: Float32 | None = None) -> Request[PushResult]:
        """Send updates (gradients) of rows. Not collective; blocks only while a ring is full.

        Args:
            keys: int64, shape (n,); any order; updates of equal keys are summed.
            rows: float32, shape (n, dim). Free again at return.
            base: The values they were computed on, shape (n, dim); for delay compensation only.

        Raises:
            ValueError: Wrong shape, NaN or infinity.
            KeyError: A key lies outside the partition.
            StallError: A server has not taken records for the job's timeout.
        """
        keys = self._as_keys(keys)
        shape = (len(keys), self.dim)
        rows = as_float32("rows", rows, shape)
        base = as_float32("base", base, shape) if base is not None else None
        if not needs_base(self._table.consistency):
            base = None
        rows = self._checked(rows, base)
        plan, worker = self._plan, self._worker
        self._prefetched = None
        plan.build(keys, self._partitioner)
        summed = plan.sum_rows(rows)
        unique = plan.unique_keys
        low = self._unique_base(plan, base, summed) if base is not None else None
        worker.control.state = f"pushing {self.name!r}"
        ends = {}
        for server, group in self._groups(plan):
            part = low[group] if low is not None else None
            ends[server] = self._push_group(server, unique[group], summed[group], part)
        worker.control.state = "computing"
        return self._request(ends)

    def push_pull(self, keys: Int64, rows: Float32) -> Float32:
        """Push, end the clock under BSP, and pull the new rows of the same keys."""
        self.push(keys, rows)
        if isinstance(self._table.consistency, BSP):
            self._worker.clock()
        return self.pull(keys)

    def _push_group(self, server: int, keys: Int64, rows: Float32, base: Float32 | None) -> int:
        channel = self._worker.channels[server]
        done = 0
        while True:
            done = channel.writer.push_rows(self._index, self._worker.now, keys, rows, base, done)
            if done == len(keys):
                return channel.writer.next_sequence - 1
            self._worker.wait_credit(server)

    @staticmethod
    def _unique_base(plan: _native.KeyPlan, base: Float32, like: Float32) -> Float32:
        # Equal keys have equal values, so any of them will do.
        unique = np.empty_like(like)
        unique[plan.inverse] = base
        return unique

    @staticmethod
    def _groups(plan: _native.KeyPlan) -> list[tuple[int, slice]]:
        starts = [int(s) for s in plan.group_starts]
        pairs = itertools.pairwise(starts)
        return [(s, slice(a, b)) for s, (a, b) in enumerate(pairs) if b > a]

    @staticmethod
    def _as_keys(keys: Any) -> Int64:
        array = np.asarray(keys)
        if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
            raise ValueError(
                f"keys must be whole numbers in one dimension, not {array.dtype} of shape {array.shape}"
            )
        if array.dtype == np.uint64 and array.size and int(array.max()) >= 2**63:
            raise ValueError("keys above 2^63-1 do not fit into int64")
        return np.ascontiguousarray(array, dtype=np.int64)
