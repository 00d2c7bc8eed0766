"""Distributed sort of the rows of all servers by key, block by block.

This is a sample sort with exact splitters instead of samples:

1. Every server sorts its own keys.
2. All servers together find, for each block of the plan, the key with which the block begins. They bisect the
   range of all keys for all blocks at once. This takes a sum over the servers for each bit of the range, at
   most 64, and is exact, so blocks have exactly their planned size.
3. Round by round, every server sends each other server the rows that belong to that server's next block.

A server holds in memory its own rows, an index of them, and one block. A key that two servers hold is
detected here and raises an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips.checkpoint.manifest import DTYPES
from mpips.checkpoint.plan import TablePlan
from mpips.checkpoint.row_columns import RowColumn
from mpips.checkpoint.shards import EmbeddingShardData, Keys
from mpips.checkpoint.steps import Counts, Peers, Steps, in_background
from mpips.errors import CheckpointError

_SIGN = np.uint64(1 << 63)


class RowExchange:
    """The exchange of the rows of one table; call `prepare` first, then `move` for each round."""

    def __init__(
        self,
        peers: Peers,
        plan: TablePlan,
        shard: EmbeddingShardData | None,
        places: NDArray[np.intp] | None = None,
    ) -> None:
        """Make the exchange. Local.

        Args:
            peers: All servers.
            plan: Plan of the table.
            shard: Rows of this server, or None.
            places: Indices of the rows of `shard` that are written; None: all rows.
        """
        self._places = places
        self._peers = peers
        self._plan = plan
        self._shard = shard
        self._order = np.empty(0, np.int64)
        # Block j of the table contains the sorted local rows [cuts[j], cuts[j + 1]).
        self._cuts = np.zeros(1, np.int64)
        self._first = np.zeros(peers.size, np.int64)
        # incoming[r, t]: number of rows that server r sends to this server in round t.
        self._incoming = np.zeros((peers.size, 0), np.int64)

    def prepare(self) -> Steps[None]:
        """Sort the keys and find the blocks. Collective."""
        keys = np.empty(0, np.int64) if self._shard is None else self._shard.keys
        self._order = yield from in_background(lambda: self._sorted(keys))
        ordered: Keys = yield from in_background(lambda: keys[self._order])
        blocks = [block for mine in self._plan.blocks for block in mine]
        positions = np.array([start for start, _ in blocks[1:]], np.int64)
        begins = yield from find_keys(self._peers, ordered, positions)
        inner = np.searchsorted(ordered, begins)
        self._cuts = np.concatenate(([0], inner, [len(ordered)]) if blocks else ([0],)).astype(
            np.int64
        )
        counts = np.array([len(mine) for mine in self._plan.blocks], np.int64)
        self._first = np.cumsum(counts) - counts
        # Send each server the number of rows that it receives from this server in each round.
        mine = np.full(self._peers.size, counts[self._peers.rank], np.int64)
        incoming = yield from self._peers.redistribute(np.diff(self._cuts), counts, mine)
        self._incoming = incoming.reshape(self._peers.size, -1)

    def _sorted(self, keys: Keys) -> NDArray[np.intp]:
        """Return the indices of the rows that are written, ascending by key."""
        if self._places is None:
            return np.argsort(keys)
        chosen: NDArray[np.intp] = self._places[np.argsort(keys[self._places])]
        return chosen

    def outgoing(self, number: int) -> tuple[NDArray[np.int64], Counts]:
        """Return the indices of local rows to send in a round, sorted by receiver, and their numbers."""
        parts, counts = [], np.zeros(self._peers.size, np.int64)
        for server in range(self._peers.size):
            if self._plan.block(server, number) is None:
                continue
            j = int(self._first[server]) + number
            parts.append(self._order[self._cuts[j] : self._cuts[j + 1]])
            counts[server] = len(parts[-1])
        return (np.concatenate(parts) if parts else np.empty(0, np.int64)), counts

    def move(self, number: int) -> Steps[dict[str, NDArray[Any]]]:
        """Return this server's block of round `number`. Collective; call it for rounds 0, 1, ... in order.

        Returns:
            All columns by role, rows ascending by key; empty if this server has no block in the round.

        Raises:
            CheckpointError: A key occurs twice, or rows cannot be read; raised after the exchange, on this
                server only.
        """
        rows, sent = self.outgoing(number)
        received = np.zeros(self._peers.size, np.int64)
        if number < self._incoming.shape[1]:
            received = self._incoming[:, number].copy()
        block: dict[str, NDArray[Any]] = {}
        perm: NDArray[np.intp] | None = None
        unread: CheckpointError | None = None
        for role, column in self._columns().items():
            try:
                data = take_rows(column, rows)
            except CheckpointError as error:
                # The other servers exchange the block, so this one takes part.
                unread = error
                data = np.zeros((len(rows), *column.shape[1:]), column.dtype)
            yield True
            data = yield from self._peers.redistribute(data, sent, received)
            if self._peers.size > 1:
                perm = np.argsort(data) if perm is None else perm
                data = take_rows(data, perm)
            block[role] = data
            yield True
        if unread is not None:
            raise unread
        self._check(number, block["keys"])
        return block

    def _columns(self) -> dict[str, NDArray[Any] | RowColumn]:
        shard = self._shard
        columns: dict[str, NDArray[Any] | RowColumn] = {}
        # Keys come first: their order is that of all other columns.
        for entry in self._plan.entry.datasets:
            if shard is None:
                dtype = np.dtype(DTYPES[entry.dtype]).newbyteorder("=")
                columns[entry.role] = np.empty((0, *entry.shape[1:]), dtype)
            elif entry.role in ("keys", "values", "steps", "uses"):
                columns[entry.role] = getattr(shard, entry.role)
            else:
                columns[entry.role] = shard.state[entry.role.removeprefix("state/")]
        return columns

    def _check(self, number: int, keys: Keys) -> None:
        expected = self._plan.block(self._peers.rank, number) or (0, 0)
        twice = keys[1:][keys[1:] == keys[:-1]]
        if len(twice) or len(keys) != expected[1] - expected[0]:
            which = f"key {int(twice[0])}" if len(twice) else "a key"
            raise CheckpointError(f"table {self._plan.entry.name!r}: {which} occurs twice")


def take_rows(column: NDArray[Any] | RowColumn, rows: NDArray[np.intp]) -> NDArray[Any]:
    """Return `column[rows]` as a contiguous array; fast also for strided arrays with contiguous rows.

    Raises:
        CheckpointError: The rows cannot be read.
    """
    if isinstance(column, RowColumn):
        return column[rows]
    if column.flags.c_contiguous:
        return np.take(column, rows, axis=0)
    if column.ndim == 2 and column.strides[1] == column.itemsize:
        # View rows as single items: np.take would first copy the whole strided array.
        items = column.view(f"V{column.itemsize * column.shape[1]}")[:, 0]
        return items[rows].view(column.dtype).reshape(len(rows), column.shape[1])
    return np.ascontiguousarray(column[rows])


def find_keys(peers: Peers, ordered: Keys, positions: Counts) -> Steps[Keys]:
    """Find the keys at given positions in the sorted sequence of all servers' keys. Collective.

    Args:
        peers: All servers.
        ordered: Keys of this server, int64, ascending.
        positions: Ascending, equal on all servers, below the total number of keys.

    Returns:
        int64, (len(positions),). If keys occur several times, the one at the position.
    """
    if len(positions) == 0:
        return np.empty(0, np.int64)
    # Bisect in uint64, where differences do not overflow; flipping the sign bit preserves the order.
    unsigned = ordered.view(np.uint64) ^ _SIGN
    # Begin with the first and the last key of all servers. Their range is often much smaller than int64's.
    mine = [int(unsigned[0]), int(unsigned[-1])] if len(unsigned) else []
    everyone = yield from peers.exchange(mine)
    ends = [end for pair in everyone for end in pair]
    low = np.full(len(positions), min(ends), np.uint64)
    high = np.full(len(positions), max(ends), np.uint64)
    while (low < high).any():
        middle = low + (high - low) // np.uint64(2)
        below = np.searchsorted(unsigned, middle, side="right").astype(np.int64)
        yield True
        enough = (yield from peers.total(below)) > positions
        high = np.where(enough, middle, high)
        low = np.where(enough, low, middle + np.uint64(1))
    return (low ^ _SIGN).view(np.int64)
