"""Large dense pushes to a server on another node: straight from the caller's array into its region.

Segment by segment the update is looked at (finite? checksum), put into the worker's area and followed by a
small record that names place and checksum. The server verifies a segment while later ones travel and
applies the whole where it lies, once the last record is there (native/src/server/server_core.hpp). Nothing
is copied on the worker, so the array must stay as it is until the puts are complete: they are when `push`
returns, unless it is the worker's staging memory, which the caller leaves alone until `wait` anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.model.consistency import needs_base
from mpips.placement import AREA_FROM_BYTES

if TYPE_CHECKING:
    from mpips.model.table import DenseTable
    from mpips.placement import ShardRange
    from mpips.transport.area import AreaWay
    from mpips.worker import Worker

Float32 = NDArray[np.float32]

SEGMENT_FLOATS = 512 << 10  # 2 MiB; the last segments are shorter, since the server waits for them
LAST_FLOATS = 128 << 10
PUT_FLOATS = 64 << 10  # 256 KiB, which the look before leaves in the core's cache


def area_push(worker: Worker, part: ShardRange, table: DenseTable) -> AreaPush | None:
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

    def __init__(self, worker: Worker, way: AreaWay, server: int, name: str) -> None:
        """`name` of the table, for errors."""
        self._worker = worker
        self._way = way
        self._server = server
        self._name = name

    def push(self, table: int, update: Float32, check_finite: bool, stays: bool) -> bool:
        """Put an update and write its records; blocks until the area has room for it.

        Args:
            table: Index of the table.
            update: The server's part, float32, C-contiguous, one-dimensional.
            check_finite: Look for NaN and infinity.
            stays: The caller leaves `update` alone until the push is consumed; else this returns when
                the puts are complete.

        Returns:
            False if it is not finite: the server then drops what it has got, and all puts are complete.

        Raises:
            StallError: The server has not taken an earlier push for the job's timeout.
        """
        way = self._way
        offset = self._room(update.nbytes)
        finite = self._put_all(table, update, offset, check_finite)
        way.area.keep(offset)
        if not (finite and stays):
            way.ask()
            way.complete()
        return finite

    def _room(self, n_bytes: int) -> int:
        area, worker = self._way.area, self._worker
        while (offset := area.take(n_bytes)) is None:
            worker.wait_applied(self._server, area.next_free + 1)
        return offset

    def _put_all(self, table: int, update: Float32, offset: int, check_finite: bool) -> bool:
        worker, way = self._worker, self._way
        most = max(SEGMENT_FLOATS, -(-update.size // max(1, way.layout.geometry.n_slots // 4)))
        done = 0
        while done < update.size:
            left = update.size - done
            count = min(left, most, max(LAST_FLOATS, left // 2))
            segment = update[done : done + count]
            checksum = self._put_segment(segment, offset + 4 * done, check_finite)
            if checksum is None:
                return False
            while not way.writer.push_area(
                table, worker.now, offset + 4 * done, checksum, done, count, update.size
            ):
                worker.wait_credit(self._server)
            way.put_records()
            done += count
        return True

    def _put_segment(self, segment: Float32, offset: int, check_finite: bool) -> int | None:
        """Start the puts of a segment; its checksum, or None if it is not finite."""
        checksum = _native.Xxh3()
        for start in range(0, segment.size, PUT_FLOATS):
            piece = segment[start : start + PUT_FLOATS]
            if not check_finite:
                checksum.update(piece)
            elif not checksum.update_finite(piece):
                return None
            self._way.put_area(offset + 4 * start, piece.view(np.uint8))
        return checksum.digest()
