"""Rows that look-aheads of one node's workers read from servers elsewhere for each other.

A look-ahead (mpips.worker.ahead.lookahead) that needs a row first looks into memory that the workers of its
node share (native/src/reduction/held_rows.hpp). It copies valid rows from there into its own cache. Rows that
another worker has claimed are left to that worker for now. All others it claims itself, requests from the
servers, and publishes when the reply has arrived.

Why a copied row is as good as one that is read. A row has a stamp.

* BSP: the clock of the worker that has read it, which had not ended it. So the row has exactly the updates of
  the clocks before, and is what any worker would read at that clock. Another worker uses it at that clock
  only, and its own cache knows then what it knows of rows that it has read itself.
* SSP, ASP: the lowest clock of all workers when it was read, or that of its reader if that is lower. It has
  all updates of the clocks before. A worker at clock d uses it under SSP(s) if the stamp is d - s or later,
  and in any case for `depth` clocks from the stamp on. The worker was at the stamp's clock or later when the
  row was read, so it is used no longer than a row that the worker has read itself.

Nobody relies on a claim. A worker waits for rows that others have claimed when it has all others that it
needs, and no longer than it has waited for those, and reads the rest itself. So there is no circle of waits,
and a worker that stops or dies costs the others this time only. Claims by workers that are clocks behind are
not trusted. Neither are those by workers so far before that servers may answer them only after this worker's
clock, nor any claims while the slowest worker is so far behind that what others read would be too old.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips.errors import RegionError
from mpips.transport.region import as_region_error

if TYPE_CHECKING:
    from mpips import _native
    from mpips.worker.row_access import RowAccess

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

_COPIED, _CLAIMED = 1, 2  # states of a key


@dataclass
class HeldRowsPart:
    """The memory of a node's look-aheads, as start-up makes it: without pages until `take_memory`.

    Attributes:
        rows: This worker's end.
        memory: The memory.
        n_bytes: Its size.
        remote: Servers on other nodes.
        has_memory: The pages are reserved; False: there were not enough; None: not tried yet.
    """

    rows: _native.HeldRows
    memory: _native.SharedMemory
    n_bytes: int
    remote: frozenset[int]
    has_memory: bool | None = None

    def take_memory(self, worker: int) -> bool:
        """Reserve all pages at the first call; return False if there are not enough.

        A note on stderr says so at the first call. `worker`: index of this worker, for the note.
        """
        if self.has_memory is None:
            try:
                with as_region_error():
                    self.memory.commit(0, self.n_bytes)
                self.has_memory = True
            except RegionError as error:
                self.has_memory = False
                print(
                    f"mpips: note: worker {worker} shares no rows of its look-aheads with other workers of "
                    f"the node (cluster.lookahead_mib is the size of their memory): {error}",
                    file=sys.stderr,
                    flush=True,
                )
        return self.has_memory


@dataclass(frozen=True)
class Looked:
    """Result of `HeldRows.look`.

    Attributes:
        keys: Keys whose rows are there, int64, shape (n,).
        rows: Their rows, float32, shape (n, dim).
        stamps: Their stamps, int64, shape (n,).
        versions: Version of each row's shard when it was read, int64, shape (n,).
        claimed: Keys of rows that other workers read.
        absent: Keys of all other rows.
    """

    keys: Int64
    rows: Float32
    stamps: Int64
    versions: Int64
    claimed: Int64
    absent: Int64


class HeldRows:
    """One worker's end of the rows of one table. Not thread-safe."""

    def __init__(self, part: HeldRowsPart, access: RowAccess) -> None:
        """Use memory whose pages are reserved."""
        self._rows = part.rows
        self._access = access
        n_servers = len(access.connection.channels)
        self._is_remote = np.array([s in part.remote for s in range(n_servers)])

    def look(
        self, keys: Int64, usable: tuple[int, int], trusts: int, claims: bool = True
    ) -> Looked:
        """Copy rows that are there; claim those that are absent.

        Args:
            keys: int64, shape (n,), each once.
            usable: The first and the last stamp of rows that may be used.
            trusts: The oldest clock whose claims are trusted. The newest one is the last stamp.
            claims: Claim what is absent, since this worker is going to read it.
        """
        remote = self._remote(keys)
        index, now = self._access.index, self._access.connection.now
        states, rows, stamps, versions = self._rows.look(
            index, keys[remote], self._access.table.dim, usable, now, max(0, trusts), claims
        )
        copied = states == _COPIED
        waits = np.zeros(len(keys), bool)
        waits[remote] = states == _CLAIMED
        there = np.zeros(len(keys), bool)
        there[remote] = copied
        return Looked(
            keys[there],
            rows[copied],
            stamps[copied],
            versions[copied],
            keys[waits],
            keys[~there & ~waits],
        )

    def publish(self, keys: Int64, rows: Float32, stamp: int, versions: Int64) -> None:
        """Give rows that this worker has read to the others.

        Args:
            keys: int64, shape (n,), each once.
            rows: float32, shape (n, dim), C-contiguous.
            stamp: Stamp of all of them.
            versions: Version of each row's shard, int64, shape (n,).
        """
        remote = self._remote(keys)
        if not remote.all():
            keys, rows, versions = keys[remote], rows[remote], versions[remote]
        self._rows.publish(self._access.index, stamp, keys, rows, versions)

    def _remote(self, keys: Int64) -> NDArray[np.bool_]:
        """Return which keys have their row on a server of another node."""
        if self._is_remote.all():
            return np.ones(len(keys), bool)
        remote: NDArray[np.bool_] = self._is_remote[self._access.owners(keys)]
        return remote
