"""What a channel to another node needs of the memory there, and of asking for its state."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class RemoteMemory(Protocol):
    """The region of one server, accessed by messages or RMA. Offsets and lengths are in bytes.

    There are two ways of writing. What `put` wrote is in the region before anything that is sent after
    `flush` has returned. Small writes (`put_asking`) are messages: they arrive in their own order, `flush`
    does not wait for their arrival, and MPI orders nothing between them and puts. Only an answered `fence`
    proves that all writes of both kinds have arrived.

    Attributes:
        name: Name of the transport.
        piece_bytes: Bytes of one put with which a long array is transferred fastest.
    """

    name: str
    piece_bytes: int

    def put(self, offset: int, data: Bytes) -> None:
        """Start a write of any length; `data` must stay unchanged until `flush`."""

    def get(self, offset: int, out: Bytes) -> None:
        """Start a read of any length; `out` is filled when `flush` has returned."""

    def get_beside(self, offset: int, out: Bytes) -> None:
        """Start a read whose bytes travel at the same time as those of `put_beside`; as `get` otherwise."""

    def put_beside(self, offset: int, data: Bytes) -> None:
        """Start a write of any length, which arrives as those of `put_asking` do.

        `data` must stay unchanged until `flush`.
        """

    def put_asking(self, offset: int, data: Bytes, count: int) -> None:
        """Write at most INLINE_BYTES by a message; `data` may be changed at once.

        The message asks for an answer when `count` records are consumed; 0: it asks for none.
        """

    def leave(self) -> None:
        """Block until puts of at most INLINE_BYTES can arrive without further calls of this process."""

    def flush(self) -> None:
        """Complete all puts and gets. Blocks."""

    def fence(self) -> None:
        """Ask the server to confirm that all messages so far have arrived. Does not block."""

    def fenced(self) -> bool:
        """Return whether the server has confirmed the fence. Enters MPI, does not block."""


class Asking(Protocol):
    """The interface of mpips.transport.p2p.Question."""

    def ask(self, count: int) -> None:
        """Ask for an answer when `count` records are consumed. Does not block."""

    def expect(self) -> None:
        """Prepare for the answer to a question that a put carries."""

    def answer(self) -> Bytes | None:
        """Return the answer, or None if it is not there yet."""
