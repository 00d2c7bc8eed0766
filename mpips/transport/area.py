"""Allocation in a worker's rendezvous buffer, where a large dense update lies until it is applied.

The rendezvous buffer (the area) is the part of a server's region that belongs to one worker on another node.
The server applies an update where it lies. So the bytes belong to the push from its first put until the
record that ends it is consumed. Low addresses are allocated first, because they were used last and are
likely still in a cache.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips import _native

Bytes = NDArray[np.uint8]

_ALIGNMENT = _native.LINE_BYTES
_UNDER_WAY = 2**64  # above the sequence of every record


class _Piece(msgspec.Struct):
    start: int
    stop: int
    until: int = _UNDER_WAY  # sequence of the record whose consumption frees the bytes


class Area:
    """The rendezvous buffer of one worker at one server. Offsets and lengths are in bytes."""

    def __init__(self, n_bytes: int, writer: _native.RingWriter) -> None:
        """`writer` writes the records of this worker at this server."""
        self.n_bytes = n_bytes
        self._writer = writer
        self._taken: list[_Piece] = []  # by address

    def take(self, n_bytes: int) -> int | None:
        """Allocate bytes and return their offset; None if an earlier push must be consumed first.

        `keep` must follow once the record of the push is written. Offsets are multiples of a cache line.
        """
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
        """Free the bytes taken at `offset` when every record written so far is consumed."""
        piece = next(piece for piece in self._taken if piece.start == offset)
        piece.until = self._writer.next_sequence - 1

    def hold_all(self, until: int) -> None:
        """Free the whole buffer, which an earlier launch used, when record `until` is consumed."""
        self._taken = [_Piece(0, self.n_bytes, until)]

    @property
    def next_free(self) -> int:
        """The sequence of the record whose consumption frees bytes first."""
        return min(piece.until for piece in self._taken)


class AreaWay(Protocol):
    """The part of a remote channel that writes to a rendezvous buffer; see remote.RemoteChannel.

    Not thread-safe, not collective.

    Attributes:
        layout: Layout of the server's region.
        piece_bytes: Bytes of one put.
        checksums: True if a segment gets a checksum even if it is known to have arrived.
    """

    layout: _native.Layout
    piece_bytes: int
    checksums: bool

    @property
    def writer(self) -> _native.RingWriter:
        """The writer of this worker's records."""

    @property
    def area(self) -> Area:
        """The allocation in the rendezvous buffer."""

    def put_area(self, offset: int, data: Bytes) -> None:
        """Start putting bytes into the rendezvous buffer; `data` must stay unchanged until `complete`."""

    def put_records(self) -> None:
        """Start sending the records written since the last call, after the puts already started."""

    def ask(self) -> None:
        """Ask the server to answer when all records so far are consumed, unless a question is open."""

    def complete(self) -> None:
        """Block until all puts so far have arrived."""
