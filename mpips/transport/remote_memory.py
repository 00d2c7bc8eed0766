"""The operations that a channel to another node needs: on the memory there, and to ask for its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class RemoteMemory(Protocol):
    """The region of one server, accessed by messages or RMA. Offsets and lengths are in bytes.

    There are two ways of writing. Bytes that `put` wrote are in the region before anything that is sent after
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

    def put_asking(self, offset: int, data: Bytes, count: int) -> None:
        """Write at most INLINE_BYTES by a message; `data` may be changed at once.

        The message requests an answer when `count` records are consumed; 0: it requests none.
        """

    def put_copied(self, offset: int, data: Bytes) -> None:
        """Start a write of any length by messages that hold copies; `data` may be changed at once.

        They arrive in the order of these calls and of `put_asking`. None needs an answer of the server before
        it leaves, so the operating system transfers what fits into its buffers without a call of this
        process.
        """

    def leave(self) -> None:
        """Block until all puts by messages can arrive without further calls of this process."""

    def test(self) -> bool:
        """Advance messages without waiting; return True if any was completed. Enters MPI if any is open."""

    @property
    def is_under_way(self) -> bool:
        """True if `test` has found some message incomplete. Makes no MPI call."""

    @property
    def n_sends(self) -> int:
        """Number of messages that are not known to have left. Makes no MPI call."""

    def flush(self) -> None:
        """Complete all puts and gets. Blocks."""

    def fence(self) -> None:
        """Ask the server to confirm that all messages so far have arrived. Does not block."""

    def fenced(self) -> bool:
        """Return whether the server has confirmed the fence. Enters MPI, does not block."""


class Awaited(Protocol):
    """The interface of mpips.transport.awaited.IncomingValues."""

    def is_there(self) -> bool:
        """Return True if all values have arrived. Enters MPI, does not block."""


class Asking(Protocol):
    """The interface of mpips.transport.p2p.Question."""

    def ask(self, count: int) -> None:
        """Ask for an answer when `count` records are consumed. Does not block."""

    def expect(self) -> None:
        """Prepare for the answer to a question that a put has carried. Does not block."""

    def answer(self) -> Bytes | None:
        """Return the answer, or None if it is not there yet."""

    def fetch(self, count: int, offset: int, out: Bytes) -> None:
        """Ask for the answer, and for bytes of the region, when `count` records are consumed.

        Does not block. `out` receives the bytes from `offset` on, until `fetched` has returned.
        """

    def fetched(self) -> Bytes | None:
        """Return the answer to the oldest open `fetch` if all its bytes are there, else None.

        Enters MPI, does not block.
        """

    def await_values(
        self, head_at: int, version: int, offset: int, out: Bytes, taken: Callable[[], None]
    ) -> Awaited:
        """Ask for bytes of the region, to be sent when a table has a version. Does not block.

        Args:
            head_at: Offset of the table's head in the region.
            version: The version.
            offset: Offset of the bytes.
            out: Receives them; it belongs to the request until all have arrived.
            taken: Called when all have arrived.
        """
