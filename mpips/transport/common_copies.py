"""A worker's common copies: what it has of the tables whose pulls are differences.

native/src/ring/common_view.hpp describes how a copy follows the server's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.errors import ProtocolError

Float32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]
NO_DIFFERENCE = 2**64 - 1  # in place of the bytes of a difference: the copy must be read whole
# Brings a copy to the newest number, given the present one: returns the new number and the bytes read; None
# if the server's copy kept changing.
Follow = Callable[[int | None, Float32], tuple[int, int] | None]


class CommonCopies:
    """The common copies of one worker's tables at one server. Not thread-safe.

    Attributes:
        tables: Indices of the tables that have one.
    """

    def __init__(self, layout: _native.Layout, writer: _native.RingWriter) -> None:
        """Have no copy yet. `layout`: of the server. `writer`: counts the bytes that are read."""
        self.tables = frozenset(layout.common_tables)
        self._writer = writer
        self._copies: dict[
            int, tuple[int, Float32]
        ] = {}  # number and values, by the index of the table

    def read(self, table: int, out: Float32, follow: Follow) -> bool:
        """Bring the copy of a table to the newest number, and copy it to `out`. Blocks as `follow` does.

        Args:
            table: Index of the table.
            out: float32, shape (n,).
            follow: Reads the server's memory.

        Returns:
            False if the server's copy kept changing.
        """
        # Forget the copy while it changes: an interrupted read leaves it half written.
        number, values = self._copies.pop(table, (None, None))
        values = np.empty_like(out) if values is None else values
        found = follow(number, values)
        if found is None:
            return False
        self._copies[table] = found[0], values
        out[:] = values
        self._writer.count_pulled(found[1])
        return True


def parse_head(line: Bytes) -> tuple[int, int] | None:
    """Return number and bytes of the difference that a head of 64 bytes has; None while it changes."""
    sequence, not_sequence, number, n_bytes = (int(word) for word in line.view(np.uint64)[:4])
    return None if sequence & 1 or sequence ^ not_sequence != 2**64 - 1 else (number, n_bytes)


def follows(head: tuple[int, int], number: int | None) -> bool:
    """Return True if the difference of a head leads from the copy with this number to the head's."""
    return number is not None and head[0] == number + 1 and head[1] != NO_DIFFERENCE


def add(codec: _native.Codec, difference: Bytes, values: Float32) -> None:
    """Add a difference to a copy.

    Raises:
        ProtocolError: It is damaged.
    """
    if not _native.add_difference(codec, difference, values):
        raise ProtocolError(
            f"a server published a difference of {difference.nbytes} bytes that is not one of {values.size} "
            "values; all ranks must run the same mpips (mpips doctor --mpi checks it)"
        )
