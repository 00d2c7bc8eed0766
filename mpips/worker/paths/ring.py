"""The ring path: records in the server's ring carry the values, in segments where one is too small."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mpips import _native
from mpips.worker.paths.path import Float32

if TYPE_CHECKING:
    from mpips.transport.orders import Orders, Writing
    from mpips.worker.connection import Connection


@contextmanager
def closing(writer: _native.RingWriter) -> Iterator[None]:
    """Within the block the last record of each push is marked: the push closes the table."""
    writer.set_closing(True)
    try:
        yield
    finally:
        writer.set_closing(False)


class RingPath:
    """Updates of one table to one server, copied into its ring; see DensePath."""

    name = "ring"

    def __init__(
        self, connection: Connection, index: int, server: int, is_small: bool = False
    ) -> None:
        """Make the path.

        Args:
            connection: Connection of the worker.
            index: Index of the table.
            server: Index of the server.
            is_small: Each update fits into one record and comes without base values; it takes one native
                call then.
        """
        self.server = server
        self.checks = self.checks_staged = is_small
        self._connection = connection
        self._index = index

    def push(self, update: Float32, base: Float32 | None, check_finite: bool) -> int | None:
        """See DensePath."""
        connection, writer = self._connection, self._connection.channels[self.server].writer
        if self.checks:
            while True:
                is_finite = writer.push_whole(self._index, connection.now, update, check_finite)
                if is_finite is not None:
                    return writer.next_sequence - 1 if is_finite else None
                connection.wait_credit(self.server)
        done = 0
        while True:
            done = writer.push_dense(self._index, connection.now, update, base, done)
            if done == update.size:
                return writer.next_sequence - 1
            connection.wait_credit(self.server)

    def in_order(self, update: Float32, orders: Orders, clock: int) -> Writing:
        """Write the records of a push that closes the table, as an order; see mpips.transport.orders.

        Args:
            update: As in `push`. It must stay as it is until the order is sent.
            orders: The orders at the server.
            clock: The clock of the push.
        """
        done = 0
        while True:
            with closing(orders.writer):
                done = orders.writer.push_dense(self._index, clock, update, None, done)
            orders.put_records()
            if done == update.size:
                return
            yield False
