"""The memory into which the workers of a group write the rows that they push, two areas for each worker.

A worker writes its pushes of clock c into its area number c % 2, one after another:

    stamp (c + 1), bytes in use, worker | table, number of rows, keys, rows | table, ... | ...

The bytes of the worker's pushes of this clock alone determine whether a push fits, so a worker that repeats a
clock finds the same.

Workers of a subgroup have one place in the level of their group, since the leader of the subgroup alone
contributes there in a clock. The head names that worker.

Writers, readers, and their order. The worker alone writes its areas in a clock in which it contributes. Where
the group spans nodes, the worker of this node that receives its messages writes them, as it writes its words.
The leader of clock c reads the areas of c, once all workers have ended c or had finished: each has stored
that it has ended c with release after its rows, and the leader has read it with acquire
(native/src/reduction/reduction.hpp).

Why nothing is overwritten while it is read. The area of clock c is written again in clock c + 2. A worker is
in c + 2 when its end of c + 1 has returned, so one of two things holds.

* All workers of the group have ended c + 1, or had finished before. The leader of c is among them, and it
  has pushed the sum of c before it ends c + 1 or finishes.
* The ticks of c + 1 of that clock's leader are in the memory of all servers. If this launch has sent them,
  the case above holds for that leader, and it has waited for the leader of c. Otherwise this launch began
  behind them: the ticks of c of its leader were at all servers, and no worker sums rows of c in this launch.

The worker that receives messages of other nodes writes rows of c + 2 when all workers of its node have ended
c + 1 (`room_for`). A sender's own area is free again when its sends are complete, for which it waits in the
end of its clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpips import _native

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

_AREA_HEAD_BYTES = 8 * 3  # stamp, bytes in use, worker
_HEAD_BYTES = 8 * 2  # of a push: table, number of rows
_PER_WORKER = 2  # areas


def areas_bytes(n_places: int, area_bytes: int) -> int:
    """Return the bytes of all areas of a group with so many places, two areas for each."""
    return n_places * _PER_WORKER * area_bytes


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // 8) * 8


@dataclass(frozen=True)
class RowAreas:
    """The areas of all workers of a group in this node's memory. Workers are numbered within the group.

    Attributes:
        memory: The memory.
        start: Offset of the first area, in bytes; a multiple of 8.
        area_bytes: Size of an area, a multiple of 8 and at least 24.
        places: Number of the place of each worker's areas.
    """

    memory: _native.SharedMemory
    start: int
    area_bytes: int
    places: tuple[int, ...]

    def area(self, worker: int, clock: int) -> NDArray[np.uint8]:
        """Return the area of a worker for its pushes of a clock."""
        number = self.places[worker] * _PER_WORKER + clock % _PER_WORKER
        return self.memory.view(self.start + number * self.area_bytes, self.area_bytes, True)

    def used(self, worker: int, clock: int) -> NDArray[np.uint8]:
        """Return the part of an area that a worker uses in a clock; empty without a push that fits."""
        area = self.area(worker, clock)
        stamp, n_bytes, writer = area[:_AREA_HEAD_BYTES].view(np.int64).tolist()
        return area[: n_bytes if (stamp, writer) == (clock + 1, worker) else 0]

    def append(self, worker: int, clock: int, table: int, keys: Int64, rows: Float32) -> bool:
        """Write a push into the worker's own area; return False, with nothing changed, if it does not fit.

        Args:
            worker: This worker.
            clock: Its clock.
            table: Index of the table in the job.
            keys: int64, shape (n,), each once.
            rows: float32, shape (n, dim), C-contiguous.
        """
        before = max(_AREA_HEAD_BYTES, len(self.used(worker, clock)))
        rows_at = before + _HEAD_BYTES + keys.nbytes
        after = _padded(rows_at + rows.nbytes)
        if after > self.area_bytes:
            return False
        area = self.area(worker, clock)
        area[before : before + _HEAD_BYTES].view(np.int64)[:] = table, len(keys)
        area[before + _HEAD_BYTES : rows_at].view(np.int64)[:] = keys
        area[rows_at : rows_at + rows.nbytes].view(np.float32)[:] = rows.reshape(-1)
        area[:_AREA_HEAD_BYTES].view(np.int64)[:] = clock + 1, after, worker
        return True

    def pushes(
        self, worker: int, clock: int, dims: dict[int, int]
    ) -> Iterator[tuple[int, Int64, Float32]]:
        """Yield table, keys and rows of each push of a worker in a clock that has fitted, in their order.

        Args:
            worker: A worker of the group.
            clock: The clock, which all workers of the group have ended.
            dims: Length of a row of each table.
        """
        used, at = self.used(worker, clock), _AREA_HEAD_BYTES
        while at < len(used):
            table, n = used[at : at + _HEAD_BYTES].view(np.int64).tolist()
            keys_at = at + _HEAD_BYTES
            rows_at = keys_at + 8 * n
            end = rows_at + 4 * n * dims[table]
            keys: Int64 = used[keys_at:rows_at].view(np.int64)
            rows: Float32 = used[rows_at:end].view(np.float32).reshape(n, dims[table])
            yield table, keys, rows
            at = _padded(end)
