"""The part of a dense table's handle for updates and values that travel by first use.

See mpips.worker.by_use, which uses it, and mpips.transport.orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips.model.arrays import as_float32, check_out
from mpips.model.consistency import BSP
from mpips.worker.base import Handle
from mpips.worker.paths.encoded import CodecPath, EncodedPath
from mpips.worker.paths.rendezvous import RendezvousPath
from mpips.worker.paths.ring import RingPath, closing
from mpips.worker.paths.shared import SharedPath
from mpips.worker.shard_reader import ShardReader

if TYPE_CHECKING:
    from mpips.model.placement import ShardRange
    from mpips.model.table import DenseTable
    from mpips.transport.remote_memory import Awaited
    from mpips.worker.connection import Connection
    from mpips.worker.groups.tables import GroupedTables
    from mpips.worker.paths.path import DensePath

Float32 = NDArray[np.float32]


class OrderedAccess(Handle):
    """The part of a DenseHandle for pushes and pulls by first use; see there for attributes."""

    def __init__(
        self, connection: Connection, index: int, table: DenseTable, shards: Sequence[ShardRange]
    ) -> None:
        """Have no paths yet. `shards`: the servers' ranges of the flattened tensor."""
        super().__init__(connection, index, table, [part.server for part in shards])
        self.shape = table.shape
        self._shards = shards
        self._reader = ShardReader(connection, index, table, shards)
        # One for each shard, in one of the two lists
        self._paths: list[DensePath] = []
        self._encoded_paths: list[CodecPath] = []
        self._grouped: GroupedTables | None = None

    @property
    def is_apart(self) -> bool:
        """True if a server of the table is on another node, and the table is under BSP without backup."""
        bsp, channels = self._table.consistency, self._connection.channels
        is_bsp = isinstance(bsp, BSP) and bsp.backup == 0 and self._grouped is None
        return is_bsp and any(channels[server].orders is not None for server in self._servers)

    def empty(self) -> Float32:
        """Return an array for values, not filled."""
        return np.empty(self.shape, np.float32)

    def expect(self, out: Float32, clock: int) -> dict[int, Awaited]:
        """Ask servers on other nodes for the values of a clock, this one or the next. Does not block.

        Args:
            out: As in `pull`. It belongs to the result until that is there, and then to `fill`.
            clock: The clock.

        Returns:
            By server, what will arrive. Empty under other models than BSP without backup workers.
        """
        check_out(out, self.shape, True)
        found = {}
        if self.is_apart:
            for part in self._shards:
                channel, flat = self._connection.channels[part.server], out.reshape(-1)
                values = flat[part.start : part.stop]
                coming = channel.expect_dense(self._index, clock, values)
                if coming is not None:
                    found[part.server] = coming
        return found

    def fill(self, out: Float32, without: Sequence[int]) -> None:
        """Read the values of all servers but those in `without` into `out`. Blocks like `pull`."""
        parts = [part for part in self._shards if part.server not in without]
        if parts:
            self._reader.read_parts(out.reshape(-1), parts)

    def order(self, update: Float32, place: int) -> bool:
        """Push an update as the last one of this clock, by the urgency of its values. Does not block.

        Args:
            update: As in `push`. An array from `Worker.allocate` must stay as it is until the order is sent,
                others are copied.
            place: Place in the order of use.

        Returns:
            False if the table must be pushed by `push`.
        """
        checked = self.check_order(update)
        if checked is not None:
            self.order_checked(checked, place)
        return checked is not None

    def check_order(self, update: Float32) -> Float32 | None:
        """Return an update as `order_checked` takes it, flat; None if the table must be pushed by `push`.

        Sends nothing. Raises as `push`.
        """
        if not isinstance(self._table.consistency, BSP) or not self._can_order():
            return None
        self._check_open("a push to")
        update = self._checked(as_float32("the update", update, self.shape), None)
        is_staged = self._connection.staging.offset_of(update) is not None
        return update.reshape(-1) if is_staged else update.flatten()

    def order_checked(self, update: Float32, place: int) -> None:
        """Push what `check_order` has returned, as `order` does.

        The part of a server on another node becomes an order (mpips.transport.orders); others are pushed.
        """
        connection, clock = self._connection, self._connection.now
        if connection.coming is not None:
            # The push closes the table: servers may apply the clock while they still send its values.
            connection.coming.finish()
        key = self._random_key() if self._encoded_paths else 0
        before = self._pushed()
        try:
            for part, path in zip(self._shards, self._any_paths, strict=True):
                channel, own = connection.channels[part.server], update[part.start : part.stop]
                orders = channel.orders
                if orders is None:
                    with closing(channel.writer):
                        if isinstance(path, EncodedPath):
                            path.push(update, key)
                        elif isinstance(path, SharedPath):
                            path.push(own, None, False)
                    channel.send()
                    continue
                if orders.is_empty:
                    channel.begin_orders()
                if isinstance(path, EncodedPath):
                    orders.add((clock, place), path.in_order(update, key, orders, clock))
                elif isinstance(path, RingPath | RendezvousPath):
                    orders.add((clock, place), path.in_order(own, orders, clock))
                channel.advance_orders(0.0)
            connection.note_push()
            self._closed_at = clock
        except BaseException as error:
            self._cut_off(error, before)
            raise

    @property
    def _any_paths(self) -> Sequence[object]:
        return self._paths or self._encoded_paths

    def _can_order(self) -> bool:
        """Return whether an update may be an order: a server is on another node, and all paths allow it."""
        kinds, channels = (
            (RingPath, RendezvousPath, SharedPath, EncodedPath),
            self._connection.channels,
        )
        paths = [path for path in self._any_paths if isinstance(path, kinds)]
        is_apart = any(channels[path.server].orders is not None for path in paths)
        return is_apart and self._connection.may_order and len(paths) == len(self._any_paths)
