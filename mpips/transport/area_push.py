"""Large dense pushes to a server on another node: straight from the caller's array into its region.

The update is looked at (finite?), put into the worker's area piece by piece and, once all of it is there,
followed by a small record that says where it lies; the server applies it in place
(native/src/server/server_core.hpp). Nothing is copied on the worker, so the array must stay as it is until
the puts are complete: they are when `push` returns.

`push_staged` waits for nothing: it is for the worker's staging memory, which the caller leaves alone until
the push is consumed. There a record may overtake its piece, so each piece has a record with a checksum, and
the server verifies it while later ones travel. To compute and to verify them costs both sides a pass over
memory, more than the round trip of the other way (17 % of a push of 16 MiB over TCP). The option `checksums`
asks for them anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.model.consistency import needs_base
from mpips.model.placement import AREA_FROM_BYTES

if TYPE_CHECKING:
    from mpips.model.placement import ShardRange
    from mpips.model.table import DenseTable
    from mpips.transport.area import AreaWay
    from mpips.transport.channel import Channel

Float32 = NDArray[np.float32]

SEGMENT_FLOATS = 512 << 10  # 2 MiB; the last segments are shorter, since the server waits for them
LAST_FLOATS = 128 << 10
_RECORD_FLOATS = 1 << 31  # of one record at most


class AreaWorker(Protocol):
    """What a push through an area needs of its worker.

    Attributes:
        channels: To the servers, by index.
    """

    channels: list[Channel]

    @property
    def now(self) -> int:
        """The worker's clock."""

    def wait_credit(self, server: int) -> None:
        """Wait until the worker's ring at a server has a free slot. Blocks; raises StallError."""

    def wait_applied(self, server: int, count: int) -> None:
        """Wait until a server has consumed `count` records of the worker. Blocks; raises StallError."""


def area_push(worker: AreaWorker, part: ShardRange, table: DenseTable) -> AreaPush | None:
    """The straight way for a shard, where it is remote, large and fits into the worker's area."""
    way = worker.channels[part.server].area_way()
    n_bytes = 4 * (part.stop - part.start)
    if way is None or needs_base(table.consistency):
        return None
    if not AREA_FROM_BYTES <= n_bytes <= way.area.n_bytes:
        return None
    return AreaPush(worker, way, part.server, table.name)


class AreaPush:
    """Pushes of one table to one server through the worker's area there."""

    def __init__(self, worker: AreaWorker, way: AreaWay, server: int, name: str) -> None:
        """`name` of the table, for errors."""
        self._worker = worker
        self._way = way
        self._server = server
        self._name = name

    def push(self, table: int, update: Float32, check_finite: bool) -> bool:
        """Put an update and write its record; blocks until the update has arrived.

        Args:
            table: Index of the table.
            update: The server's part, float32, C-contiguous, one-dimensional. Free at return.
            check_finite: Look for NaN and infinity.

        Returns:
            False if it is not finite: then there is no record.

        Raises:
            StallError: The server has not taken an earlier push for the job's timeout.
        """
        way = self._way
        if way.checksums:
            if check_finite and not _native.all_finite(update, None):
                return False
            self.push_staged(table, update)
            way.complete()
            return True
        offset = self._room(update.nbytes)
        finite = True
        for start, piece in self._pieces(update):
            finite = not check_finite or _native.all_finite(piece, None)
            if not finite:
                break
            way.put_area(offset + 4 * start, piece.view(np.uint8))
        way.complete()
        for done in range(0, update.size if finite else 0, _RECORD_FLOATS):
            count = min(_RECORD_FLOATS, update.size - done)
            self._write(table, offset, None, done, count, update.size)
        way.area.keep(offset)
        return finite

    def push_staged(self, table: int, update: Float32) -> None:
        """Start putting an update and write its records; blocks only until there is room for it.

        Args:
            table: Index of the table.
            update: As for `push`, but looked at; it stays as it is until the push is consumed.

        Raises:
            StallError: The server has not taken an earlier push for the job's timeout.
        """
        way = self._way
        offset = self._room(update.nbytes)
        most = max(SEGMENT_FLOATS, -(-update.size // max(1, way.layout.geometry.n_slots // 4)))
        done = 0
        while done < update.size:
            left = update.size - done
            count = min(left, most, max(LAST_FLOATS, left // 2), _RECORD_FLOATS)
            checksum = self._put_segment(update[done : done + count], offset + 4 * done)
            self._write(table, offset, checksum, done, count, update.size)
            way.put_records()
            done += count
        way.area.keep(offset)

    def _write(
        self, table: int, offset: int, checksum: int | None, done: int, count: int, n: int
    ) -> None:
        """Write the record of `count` floats from `done` on of a push of `n` that begins at `offset`."""
        worker, writer = self._worker, self._way.writer
        at = offset + 4 * done
        while not writer.push_area(table, worker.now, at, checksum, done, count, n):
            worker.wait_credit(self._server)

    def _room(self, n_bytes: int) -> int:
        area, worker = self._way.area, self._worker
        while (offset := area.take(n_bytes)) is None:
            worker.wait_applied(self._server, area.next_free + 1)
        return offset

    def _pieces(self, values: Float32) -> Iterator[tuple[int, Float32]]:
        """What one put carries, and where it starts."""
        n = self._way.piece_bytes // 4
        return ((start, values[start : start + n]) for start in range(0, values.size, n))

    def _put_segment(self, segment: Float32, offset: int) -> int:
        """Start the puts of a segment; its checksum."""
        checksum = _native.Xxh3()
        for start, piece in self._pieces(segment):
            checksum.update(piece)
            self._way.put_area(offset + 4 * start, piece.view(np.uint8))
        return checksum.digest()
