"""The ring path: records in the server's ring carry the values, in segments where one is too small."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpips.worker.paths.path import Float32

if TYPE_CHECKING:
    from mpips.worker.connection import Connection


class RingPath:
    """Updates of one table to one server, copied into its ring; see DensePath."""

    name = "ring"
    checks = False

    def __init__(self, connection: Connection, index: int, server: int) -> None:
        """`index`: of the table."""
        self.server = server
        self._connection = connection
        self._index = index

    def push(self, update: Float32, base: Float32 | None, check_finite: bool) -> int:
        """See DensePath."""
        connection, writer = self._connection, self._connection.channels[self.server].writer
        done = 0
        while True:
            done = writer.push_dense(self._index, connection.now, update, base, done)
            if done == update.size:
                return writer.next_sequence - 1
            connection.wait_credit(self.server)
