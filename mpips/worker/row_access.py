"""A look-ahead's access to an embedding table's handle: pulls into its cache, and the room of the rings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.model.table import EmbeddingTable
from mpips.worker.ahead.planned_rows import PlannedRows
from mpips.worker.requests import Request

if TYPE_CHECKING:
    from mpips.worker.connection import Connection

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
# Called with rows, the lowest clock of all workers, and the version of each row's shard.
Taken = Callable[[Float32, int, Int64], None]

_HEADER_BYTES = 64  # of a record, and of a reply


class RowAccess:
    """Access to the rows of one table. Not thread-safe.

    Attributes:
        connection: The worker's connection.
        index: Number of the table.
        table: The table.
        planned: Returns a plan of keys.
        free: Takes back a plan that is not used any more.
        start_pull: Requests the rows of a plan.
    """

    def __init__(
        self,
        connection: Connection,
        index: int,
        table: EmbeddingTable,
        rows: PlannedRows,
    ) -> None:
        """`rows`: pulls of the table, by plan."""
        self.connection = connection
        self.table = table
        self.index = index
        self.planned = rows.planned
        self.free = rows.plans.append
        self.start_pull = rows.start_pull

    def owners(self, keys: Int64) -> Int64:
        """Return the server of each key; `keys`: int64, shape (n,), each once."""
        plan = self.planned(keys)
        found = _owners(plan)
        self.free(plan)
        return found

    def unique(self, keys: Int64) -> Int64:
        """Return each key once."""
        plan = self.planned(keys)
        unique = plan.unique_keys.copy()
        self.free(plan)
        return unique

    def fetch(self, keys: Int64, taken: Taken, since: int | None = None) -> Request[Float32]:
        """Request rows of unique keys, or which of them have changed; `taken` gets them in the keys' order.

        Blocks only while a ring is full.

        Args:
            keys: int64, shape (n,), each once.
            taken: Called when the request is complete.
            since: None: rows. A version: for each key a float, not 0 if its row may have changed after it.
        """

        def arrived(plan: _native.KeyPlan, rows: Float32, starts: Mapping[int, int]) -> None:
            writers = {s: self.connection.channels[s].writer for s in starts}
            least = [writers[s].pulled_clock(q) or 0 for s, q in starts.items()]
            by_server = np.zeros(plan.n_servers, np.int64)
            for server, sequence in starts.items():
                by_server[server] = writers[server].pulled_version(sequence) or 0
            taken(rows, min(least, default=0), by_server[_owners(plan)])

        return self.start_pull(self.planned(keys), None, arrived, since)

    def oldest(self, plan: _native.KeyPlan, versions: Int64) -> dict[int, int]:
        """Return the lowest version of the rows of each server; `versions`: by unique key of the plan."""
        starts = plan.group_starts.astype(np.int64)
        groups = enumerate(itertools.pairwise(starts.tolist()))
        return {s: int(versions[a:b].min()) for s, (a, b) in groups if b > a}

    def room(self) -> int:
        """Return how many rows can be requested so that half of each ring remains for pushes."""
        codec = self.table.pull_compression
        row_bytes = 4 * self.table.dim if codec is None else 8  # at least so many
        rows = []
        for channel in self.connection.channels:
            ring = channel.layout.geometry
            per_record = (ring.slot_bytes - _HEADER_BYTES) // max(8, row_bytes)
            free = min(channel.writer.credits, ring.n_slots // 2)
            rows.append(free * max(1, per_record))
        return min(rows) * len(rows)


def _owners(plan: _native.KeyPlan) -> Int64:
    """Return the server of each key of a plan."""
    sizes: Int64 = np.diff(plan.group_starts.astype(np.int64)).astype(np.int64)
    owners: Int64 = np.repeat(np.arange(plan.n_servers), sizes)[plan.inverse]
    return owners
