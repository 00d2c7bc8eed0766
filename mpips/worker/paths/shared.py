"""The shared path: a server of this node reads staging memory in place; other arrays go through its ring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpips.worker.paths.path import ONE_RECORD, Float32
from mpips.worker.paths.ring import RingPath

if TYPE_CHECKING:
    from mpips.worker.connection import Connection


class SharedPath:
    """Updates of one table to one server of this node or process; see DensePath."""

    name = "shared"
    checks = False
    checks_staged = False

    def __init__(self, connection: Connection, index: int, server: int) -> None:
        """`index`: of the table."""
        self.server = server
        self._connection = connection
        self._index = index
        self._ring = RingPath(connection, index, server)

    def push(self, update: Float32, base: Float32 | None, check_finite: bool) -> int | None:
        """See DensePath."""
        connection, index = self._connection, self._index
        at = connection.staging.offset_of(update) if update.size <= ONE_RECORD else None
        base_at = connection.staging.offset_of(base) if base is not None else None
        if at is None or (base is not None and base_at is None):
            return self._ring.push(update, base, check_finite)
        writer = connection.channels[self.server].writer
        connection.write(
            self.server,
            lambda: writer.push_staged(index, connection.now, at, base_at, update.size),
        )
        return writer.next_sequence - 1
