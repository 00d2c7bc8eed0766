"""Small dense tables of a server on another node, read together.

A read over RMA takes four round trips, whatever its size, and a model has hundreds of small tensors. So the
first pull of a clock also reads those tables that were pulled after it in the clock before, and the pulls
that follow take what is there.

This is right for tables under BSP without backup workers. Their values at a worker's clock do not change
before the worker ends the clock: servers apply the sums of a clock when all workers have ended it, or have
closed the table, which the worker then does not pull before its next clock. So it does not matter when
within the clock the values are read. Whatever is kept is of one clock, and none of it is used at another.
A worker that repeats a clock after a restart may read later values, as by any pull; its pushes of that clock
are at the servers already.

One thread uses this, the program's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
# Reads tables whose version is this one at least; returns the versions of those that it has read.
ReadTogether = Callable[[Mapping[int, Float32], int], dict[int, int]]

TABLE_BYTES = 64 << 10  # of a table's part on one server that is read with others, float32
BATCH_BYTES = 1 << 20  # of the tables that are read at a time


class BatchedReads:
    """The small tables of one server that a worker pulls. Not thread-safe."""

    def __init__(self, read: ReadTogether) -> None:
        """Read nothing yet. `read`: see RemoteReads.dense_together."""
        self._read = read
        self._clock = -1
        self._used: dict[
            int, int
        ] = {}  # table -> values of its part, in the order of this clock's pulls
        self._expected: dict[int, int] = {}  # those of the clock before that had pulls
        self._values: dict[int, Float32] = {}  # of this clock
        self._versions: dict[int, int] = {}

    def take(self, table: int, clock: int, out: Float32) -> int | None:
        """Copy values that are there into `out`; return their version, or None if they are not there.

        Args:
            table: Index of the table.
            clock: The worker's clock.
            out: float32, of the length of the table's part on the server.
        """
        self._begin(clock)
        self._used[table] = out.size
        values = self._values.get(table)
        if values is None:
            return None
        out[...] = values
        return self._versions[table]

    def fetch(self, table: int, clock: int, out: Float32) -> int | None:
        """Read a table, and with it those that are expected next; arguments and result are those of `take`.

        Blocks for three round trips. Returns None if the table was being written or is not at `clock` yet.
        """
        self._begin(clock)
        wanted = {table: np.empty(out.size, np.float32)}
        n_bytes = out.nbytes
        for other, n in self._after(table):
            n_bytes += 4 * n
            if n_bytes > BATCH_BYTES:
                break
            wanted[other] = np.empty(n, np.float32)
        versions = self._read(wanted, clock)
        self._versions.update(versions)
        self._values.update({found: wanted[found] for found in versions})
        return self.take(table, clock, out)

    def _begin(self, clock: int) -> None:
        """Forget the values of another clock."""
        if clock != self._clock:
            self._clock = clock
            self._expected, self._used = self._used, {}
            self._values, self._versions = {}, {}

    def _after(self, table: int) -> list[tuple[int, int]]:
        """Return the tables that are expected after this one and are not there, with their lengths."""
        names = list(self._expected)
        first = names.index(table) + 1 if table in self._expected else len(names)
        return [(t, self._expected[t]) for t in names[first:] if t not in self._values]
