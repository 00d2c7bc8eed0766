"""Rows that the workers of one node read from servers elsewhere for each other.

A worker that needs rows first searches memory that the workers of its node share
(native/src/reduction/node_rows.hpp). It copies valid rows from there. Rows that another worker has claimed
are left to that worker for now. All others it claims itself, requests from the servers, and publishes when
the reply has arrived. Look-aheads do so (mpips.worker.ahead.lookahead), and pulls under BSP by workers in
groups (mpips.worker.groups.row_group).

Why a copied row is as good as one that is read. A row has a stamp.

* BSP: the clock of the worker that has read it, which had not ended it. So the row has exactly the updates of
  the clocks before, and is what any worker would read at that clock. Another worker uses it at that clock
  only; a look-ahead's cache then has the same information about it as about rows that it has read itself.
* SSP, ASP: the lowest clock of all workers when it was read, or that of its reader if that is lower. It has
  all updates of the clocks before. A worker at clock d uses it under SSP(s) if the stamp is d - s or later,
  and in any case for `depth` clocks from the stamp on. The worker was at the stamp's clock or later when the
  row was read, so it is used no longer than a row that the worker has read itself.

Nobody relies on a claim. A worker waits for rows that others have claimed when it has all others that it
needs, and for a bounded time, and reads the rest itself. So there is no circle of waits, and a worker that
stops, dies or gives its pull up costs the others this time only. Claims by workers that are clocks behind are
not trusted. Neither are those by workers so far before that servers may answer them only after this worker's
clock, nor any claims while the slowest worker is so far behind that what others read would be too old.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpips import _native
    from mpips.worker.node_rows.part import NodeRowsPart
    from mpips.worker.row_access import RowAccess

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
Flags = NDArray[np.bool_]

_COPIED, _CLAIMED = 1, 2  # states of a key


@dataclass(frozen=True)
class Looked:
    """Result of `NodeRows.look` for n keys, of which k have their row there.

    Attributes:
        copied: Which keys have their row there, shape (n,).
        claimed: Which keys have a row that other workers read, shape (n,).
        rows: The rows that are there, float32, shape (k, dim).
        stamps: Their stamps, int64, shape (k,).
        versions: Version of each one's shard when it was read, int64, shape (k,).
    """

    copied: Flags
    claimed: Flags
    rows: Float32
    stamps: Int64
    versions: Int64


class NodeRows:
    """One worker's end of the rows of one table. Not thread-safe."""

    def __init__(self, part: NodeRowsPart, access: RowAccess) -> None:
        """Use memory whose pages are reserved."""
        self._rows = part.rows
        self._access = access
        n_servers = len(access.connection.channels)
        self._is_remote = np.array([s in part.remote for s in range(n_servers)])

    def look(
        self,
        keys: Int64,
        usable: tuple[int, int],
        trusts: int,
        claims: bool = True,
        remote: Flags | None = None,
    ) -> Looked:
        """Copy rows that are there; claim those that are absent.

        Args:
            keys: int64, shape (n,), each once.
            usable: The first and the last stamp of rows that may be used.
            trusts: The oldest clock whose claims are trusted. The newest one is the last stamp.
            claims: Claim what is absent, since this worker is going to read it.
            remote: Which keys have their row on a server of another node, shape (n,); None: find it out.
        """
        remote = self._remote(keys) if remote is None else remote
        index, now = self._access.index, self._access.connection.now
        states, rows, stamps, versions = self._rows.look(
            index, keys[remote], self._access.table.dim, usable, now, max(0, trusts), claims
        )
        found = states == _COPIED
        copied, claimed = np.zeros(len(keys), bool), np.zeros(len(keys), bool)
        copied[remote], claimed[remote] = found, states == _CLAIMED
        return Looked(copied, claimed, rows[found], stamps[found], versions[found])

    def publish(
        self,
        keys: Int64,
        rows: Float32,
        stamp: int,
        versions: Int64,
        remote: Flags | None = None,
    ) -> None:
        """Give rows that this worker has read to the others.

        Args:
            keys: int64, shape (n,), each once.
            rows: float32, shape (n, dim), C-contiguous.
            stamp: Stamp of all of them.
            versions: Version of each row's shard, int64, shape (n,).
            remote: As for `look`.
        """
        remote = self._remote(keys) if remote is None else remote
        if not remote.all():
            keys, rows, versions = keys[remote], rows[remote], versions[remote]
        self._rows.publish(self._access.index, stamp, keys, rows, versions)

    def remote(self, plan: _native.KeyPlan) -> Flags:
        """Return which unique keys of a plan have their row on a server of another node."""
        sizes: Int64 = np.diff(plan.group_starts.astype(np.int64)).astype(np.int64)
        remote: Flags = np.repeat(self._is_remote, sizes)
        return remote

    def _remote(self, keys: Int64) -> Flags:
        """Return which keys have their row on a server of another node."""
        if self._is_remote.all():
            return np.ones(len(keys), bool)
        remote: Flags = self._is_remote[self._access.owners(keys)]
        return remote
