"""Room in a worker's area of a server's region, where a large dense push lies until it is applied.

The server applies an update where it lies, so its bytes belong to the push from the first put until the
record that ends it is consumed. Low addresses are taken first: what was used last is still in a cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mpips import _native

Bytes = NDArray[np.uint8]

_ALIGNMENT = _native.LINE_BYTES
_UNDER_WAY = 2**64  # no record has this number


@dataclass
class _Piece:
    start: int
    stop: int
    until: int = _UNDER_WAY  # the record after whose consumption the bytes are free


class Area:
    """What a worker may use of one server's region beside its mailbox. Offsets and lengths in bytes."""

    def __init__(self, n_bytes: int, writer: _native.RingWriter) -> None:
        """`writer` writes the records of this worker at this server."""
        self.n_bytes = n_bytes
        self._writer = writer
        self._taken: list[_Piece] = []  # by address

    def take(self, n_bytes: int) -> int | None:
        """Offset of free bytes; None until an earlier push is consumed. `keep` must follow."""
        applied = self._writer.applied
        self._taken = [piece for piece in self._taken if piece.until >= applied]
        start = 0
        for index, piece in enumerate([*self._taken, _Piece(self.n_bytes, self.n_bytes)]):
            if start + n_bytes <= piece.start:
                self._taken.insert(index, _Piece(start, start + n_bytes))
                return start
            start = -(-piece.stop // _ALIGNMENT) * _ALIGNMENT
        return None

    def keep(self, offset: int) -> None:
        """Hold what was taken at `offset` until every record written so far is consumed."""
        piece = next(piece for piece in self._taken if piece.start == offset)
        piece.until = self._writer.next_sequence - 1

    def hold_all(self, until: int) -> None:
        """All of it belongs to an earlier launch until a record is consumed."""
        self._taken = [_Piece(0, self.n_bytes, until)]

    @property
    def next_free(self) -> int:
        """Number of the record whose consumption frees bytes first."""
        return min(piece.until for piece in self._taken)


class AreaWay(Protocol):
    """A way to one server with an area. Not thread-safe, not collective; see remote.RemoteChannel.

    Attributes:
        writer: Of this worker's records.
        layout: Of the server's region.
        area: What is free in it.
        piece_bytes: Of one put.
        checksums: Also of what is known to have arrived.
    """

    writer: _native.RingWriter
    layout: _native.Layout
    area: Area
    piece_bytes: int
    checksums: bool

    def put_area(self, offset: int, data: Bytes) -> None:
        """Start putting bytes into the area; `data` must stay unchanged until `complete`."""

    def put_records(self) -> None:
        """Start carrying the records written since the last call, behind what is on its way."""

    def ask(self) -> None:
        """Ask when all records written so far are consumed, unless a question is under way already."""

    def complete(self) -> None:
        """Return when all puts so far have arrived."""
