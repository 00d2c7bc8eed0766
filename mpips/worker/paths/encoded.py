"""The encoded path: records in the server's ring carry values that a codec has encoded.

It serves servers of this node and of others alike, so that the update that arrives does not depend on where a
server is. The worker encodes straight into the slots of the ring; see native/src/ring/codec.hpp.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from mpips import _native
from mpips.worker.paths.path import Float32
from mpips.worker.paths.ring import closing

if TYPE_CHECKING:
    from mpips.model.placement import ShardRange
    from mpips.transport.orders import Orders, Writing
    from mpips.worker.connection import Connection


class CodecPath(ABC):
    """Updates of one dense table to one server, in records that a codec has encoded."""

    name: str

    def __init__(self, connection: Connection, index: int, part: ShardRange) -> None:
        """Take the way to a server.

        Args:
            connection: Connection of the worker.
            index: Index of the table.
            part: The server and its part of the flattened tensor.
        """
        self.server = part.server
        self._connection = connection
        self._index = index
        self._part = part

    def push(self, update: Float32, random_key: int) -> int:
        """Write the records of an update. Blocks while there is no room for them.

        Args:
            update: The whole flattened tensor, float32, C-contiguous, finite: a block may begin in front of
                this server's part, and its scale is that of all its values. Free at return.
            random_key: Key of the push's random numbers.

        Returns:
            Sequence number of the last record.

        Raises:
            StallError: The server has taken no record for the job's timeout.
        """
        writer, done = self._connection.channels[self.server].writer, 0
        while True:
            done = self._write(writer, update, random_key, done)
            if done == self._part.stop - self._part.start:
                return writer.next_sequence - 1
            self._connection.wait_credit(self.server)

    @abstractmethod
    def _write(
        self, writer: _native.RingWriter, update: Float32, random_key: int, done: int
    ) -> int:
        """Write records from element `done` of the part on; return the element reached without room."""


class EncodedPath(CodecPath):
    """Updates in the encoding of a table's codec, without a residual."""

    name = "encoded"

    def __init__(
        self, connection: Connection, index: int, part: ShardRange, codec: _native.Codec
    ) -> None:
        """As CodecPath. `codec`: of the table."""
        super().__init__(connection, index, part)
        self._codec = codec

    def _write(
        self, writer: _native.RingWriter, update: Float32, random_key: int, done: int
    ) -> int:
        part, now = self._part, self._connection.now
        return writer.push_encoded(
            self._index, now, self._codec, update, part.start, part.stop, random_key, done
        )

    def in_order(self, update: Float32, random_key: int, orders: Orders, clock: int) -> Writing:
        """Write the records of a push that closes the table, as an order; see RingPath.in_order.

        Args:
            update: As in `push`. It must stay as it is until the order is sent.
            random_key: Key of the push's random numbers.
            orders: The orders at the server.
            clock: The clock of the push.
        """
        part, done = self._part, 0
        while True:
            with closing(orders.writer):
                done = orders.writer.push_encoded(
                    self._index, clock, self._codec, update, part.start, part.stop, random_key, done
                )
            orders.put_records()
            if done == part.stop - part.start:
                return
            yield False
