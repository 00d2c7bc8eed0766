"""The rendezvous path: large updates go straight from the caller's array into a remote server's region.

The worker puts the update into its rendezvous buffer there, piece by piece. When all pieces have arrived it
writes a small record that gives their place, and the server applies the update in place
(native/src/server/server_core.hpp). The worker copies nothing, so the array must stay as it is until the puts
are complete. They are complete when `push` returns.

An update in the worker's staging memory stays as it is until the push is consumed, so its puts are not
waited for. A record may then overtake its piece. Therefore each piece has a record with a checksum, which the
server verifies while later pieces travel. Computing and verifying checksums costs both sides a pass over
memory, more than the round trip of the other way (17 % of a push of 16 MiB over TCP). The option `checksums`
asks for them anyway.

While a worker repeats pushes that memory of an earlier launch holds already (`RingWriter.replays`), updates
take the ring path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from mpips import _native
from mpips.worker.paths.path import Float32
from mpips.worker.paths.ring import RingPath, closing

if TYPE_CHECKING:
    from mpips.transport.area import AreaWay
    from mpips.transport.orders import Orders, Writing
    from mpips.worker.connection import Connection

SEGMENT_FLOATS = 512 << 10  # 2 MiB
LAST_FLOATS = 128 << 10  # the last segments are shorter, since the server waits for them
_RECORD_FLOATS = 1 << 31  # at most in one record


class RendezvousPath:
    """Large updates of one table to one remote server; see DensePath."""

    name = "rendezvous"
    checks = True
    checks_staged = False

    def __init__(self, connection: Connection, index: int, server: int, way: AreaWay) -> None:
        """`index`: of the table; `way`: to the rendezvous buffer at the server."""
        self.server = server
        self._connection = connection
        self._index = index
        self._way = way
        self._ring = RingPath(connection, index, server)

    def push(self, update: Float32, base: Float32 | None, check_finite: bool) -> int | None:
        """See DensePath."""
        writer = self._way.writer
        if writer.replays or self._way.checksums:
            if check_finite and not _native.all_finite(update, None):
                return None
            if writer.replays:
                return self._ring.push(update, base, False)
        if self._connection.staging.offset_of(update) is not None:
            self._put_segments(update)
        elif self._way.checksums:
            self._put_segments(update)
            self._way.complete()
        elif not self._put_whole(update, check_finite):
            return None
        return writer.next_sequence - 1

    def in_order(self, update: Float32, orders: Orders, clock: int) -> Writing:
        """Put an update as an order; see RingPath.in_order.

        Each segment is followed by its record, which arrives behind it: so it needs no checksum.
        """
        while (offset := orders.area.take(update.nbytes)) is None:
            yield False
        for done in range(0, update.size, SEGMENT_FLOATS):
            count, at = min(SEGMENT_FLOATS, update.size - done), offset + 4 * done
            segment = update[done : done + count]
            checksum = _native.Xxh3() if self._way.checksums else None
            if checksum is not None:
                checksum.update(segment)
            digest = checksum.digest() if checksum is not None else None
            orders.put_area(at, segment.view(np.uint8))
            while True:
                with closing(orders.writer):
                    is_written = orders.writer.push_area(
                        self._index, clock, at, digest, done, count, update.size
                    )
                if is_written:
                    break
                yield False
            orders.put_records()
            yield True
        orders.area.keep(offset)

    def _put_whole(self, update: Float32, check_finite: bool) -> bool:
        """Put an update, wait until it has arrived, and write its record; False if it is not finite."""
        way = self._way
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
            self._write(offset, None, done, count, update.size)
        way.area.keep(offset)
        return finite

    def _put_segments(self, update: Float32) -> None:
        """Start putting an update in segments, each followed by a record with its checksum."""
        way = self._way
        offset = self._room(update.nbytes)
        most = max(SEGMENT_FLOATS, -(-update.size // max(1, way.layout.geometry.n_slots // 4)))
        done = 0
        while done < update.size:
            left = update.size - done
            count = min(left, most, max(LAST_FLOATS, left // 2), _RECORD_FLOATS)
            checksum = self._put_segment(update[done : done + count], offset + 4 * done)
            self._write(offset, checksum, done, count, update.size)
            way.put_records()
            done += count
        way.area.keep(offset)

    def _write(self, offset: int, checksum: int | None, done: int, count: int, n: int) -> None:
        """Write the record of `count` floats from `done` on, of a push of `n` that begins at `offset`."""
        connection, writer = self._connection, self._way.writer
        at = offset + 4 * done
        while not writer.push_area(self._index, connection.now, at, checksum, done, count, n):
            connection.wait_credit(self.server)

    def _room(self, n_bytes: int) -> int:
        """Return the offset of free bytes of the rendezvous buffer; waits for earlier pushes."""
        area, connection = self._way.area, self._connection
        while (offset := area.take(n_bytes)) is None:
            connection.wait_applied(self.server, area.next_free + 1)
        return offset

    def _pieces(self, values: Float32) -> Iterator[tuple[int, Float32]]:
        """Yield the first index and the values of each put."""
        n = self._way.piece_bytes // 4
        return ((start, values[start : start + n]) for start in range(0, values.size, n))

    def _put_segment(self, segment: Float32, offset: int) -> int:
        """Start the puts of a segment; returns its checksum."""
        checksum = _native.Xxh3()
        for start, piece in self._pieces(segment):
            checksum.update(piece)
            self._way.put_area(offset + 4 * start, piece.view(np.uint8))
        return checksum.digest()
