"""Send a server's records to its partner, and receive the records of servers whose partner this server is.

The messages are two-sided, on a communicator of their own, so that they work with every transport.

A *batch* goes from a server to its partner: one line of 64 bytes with the number of bytes or END, then the
records. Several batches may be under way at once; MPI delivers messages between two ranks on one tag in
order.

An *answer* goes from the partner to the server: for each worker the number of records that have arrived and
the number that the copy has consumed, and one more row that contains END or 0. While an answer is under way
the partner sends no other; it sends the newer numbers afterwards. The numbers only grow. So a late or skipped
answer costs time, and has no other effect.

Only `close` blocks. Every server calls it when no worker writes any more. The server sends its last records,
then END. END arrives after all batches before it; the partner answers it, and its copy consumes what has
arrived before `close` returns there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mpips import _native
from mpips.errors import ProtocolError, StallError
from mpips.process.patience import Patience
from mpips.server.server import Server

if TYPE_CHECKING:
    from mpi4py import MPI

_TAG_BATCH, _TAG_ANSWER = 21, 22
_DEPTH = 4  # batches that may be under way at once
_BATCH_BYTES = 512 << 10  # bytes of records in a batch, unless one record is longer
_HEAD_BYTES = 64  # bytes in front of the records; the first 8 contain their number of bytes, or END
_END = 2**64 - 1


def _batch_bytes(slot_bytes: int) -> int:
    """Return the size of a batch's buffer in bytes; a record of any length fits."""
    return _HEAD_BYTES + max(_BATCH_BYTES, slot_bytes + _native.LINE_BYTES)


class Outgoing:
    """Sends the records of a server to its partner. Not thread-safe."""

    def __init__(self, server: Server, comm: MPI.Intracomm, rank: int) -> None:
        """Start to send records. The partner's copy must be equal to the server now.

        Args:
            server: This server.
            comm: Communicator on which nothing else uses the tags.
            rank: Rank of the partner.
        """
        self._core = server.core
        self._comm, self._rank = comm, rank
        n_bytes = _batch_bytes(server.layout.geometry.slot_bytes)
        self._free = [np.zeros(n_bytes, np.uint8) for _ in range(_DEPTH)]
        self._sent: deque[tuple[MPI.Request, np.ndarray]] = deque()
        self._answer = np.zeros((server.layout.n_workers + 1, 2), np.uint64)
        self._expect()
        self.ended = False
        self._core.begin_partnership()

    def _expect(self) -> None:
        self._open = self._comm.Irecv(self._answer, self._rank, _TAG_ANSWER)

    def poll(self) -> bool:
        """Receive answers and send records; return True if there was anything to do. Not blocking."""
        # Receive answers. They open the gate of the server for records that the partner has.
        moved = False
        while not self.ended and self._open.Test():
            moved = True
            self._core.take_partner_words(self._answer[:-1])
            self.ended = bool(self._answer[-1, 0] == _END)
            if not self.ended:
                self._expect()
        # Reuse the buffers of batches that have been sent, and send what there is.
        while self._sent and self._sent[0][0].Test():
            self._free.append(self._sent.popleft()[1])
        while self._free:
            n_bytes = self._core.outgoing(self._free[-1][_HEAD_BYTES:])
            if n_bytes == 0:
                break
            self._send(n_bytes, n_bytes)
            moved = True
        return moved

    def _send(self, word: int, n_bytes: int) -> None:
        batch = self._free.pop()
        batch[:8].view(np.uint64)[0] = word
        part = batch[: _HEAD_BYTES + n_bytes]
        self._sent.append((self._comm.Isend(part, self._rank, _TAG_BATCH), batch))

    def end(self) -> bool:
        """Send END if a buffer is free; return True if it has been sent."""
        if self._free:
            self._send(_END, 0)
            return True
        return False

    @property
    def closed(self) -> bool:
        """True if the partner has answered END and no batch is under way."""
        return self.ended and not self._sent


class Incoming:
    """Receives the records of another server for the copy of it on this rank. Not thread-safe."""

    def __init__(self, copy: Server, comm: MPI.Intracomm, rank: int) -> None:
        """Start to receive records.

        Args:
            copy: The copy, attached to its memory and equal to the server.
            comm: Communicator on which nothing else uses the tags.
            rank: Rank of the server.
        """
        self.copy = copy
        self._core = copy.core
        self._core.become_copy()
        self._comm, self._rank = comm, rank
        n_bytes = _batch_bytes(copy.layout.geometry.slot_bytes)
        self._slots = copy.layout.geometry.n_slots
        self._open: deque[tuple[MPI.Request, np.ndarray]] = deque()
        for _ in range(_DEPTH):
            self._expect(np.empty(n_bytes, np.uint8))
        self._answer = np.zeros((copy.layout.n_workers + 1, 2), np.uint64)
        self._answered = self._now()
        self._answering: MPI.Request | None = None
        self._ending = self._end_answered = False
        # The copy may have records already. While it has not consumed them, its server may have no room to
        # send the next one.
        self._is_new = True

    def _expect(self, batch: np.ndarray) -> None:
        self._open.append((self._comm.Irecv(batch, self._rank, _TAG_BATCH), batch))

    def _now(self) -> np.ndarray:
        words = np.zeros((self.copy.layout.n_workers, 2), np.uint64)
        self._core.partner_words(words)
        return words

    def poll(self) -> bool:
        """Receive batches, answer them, and let the copy consume. Not blocking; True if anything moved."""
        # Put the records of all batches that have arrived into the rings of the copy.
        moved = False
        while not self._ending and self._open[0][0].Test():
            moved = True
            batch = self._open.popleft()[1]
            n_bytes = int(batch[:8].view(np.uint64)[0])
            if n_bytes == _END:
                self._ending = True
                break
            self._core.accept(batch[_HEAD_BYTES:], n_bytes)
            self._expect(batch)
        if moved:
            # Report the arrival before the copy consumes: arrival alone opens the server's gate.
            self._reply(self._now())
        if moved or self._is_new:
            self._is_new = False
            self.copy.drain()
        now = self._now()
        if self._needs_reply(now):
            self._reply(now)
        return moved

    def _needs_reply(self, now: np.ndarray) -> bool:
        """Return True if records have arrived, the server may be short of slots, or END has arrived."""
        if self._ending and not self._end_answered:
            return True
        if now.tobytes() == self._answered.tobytes():
            return False
        arrived, consumed = now[:, 0] != self._answered[:, 0], now[:, 1] != self._answered[:, 1]
        short = now[:, 0] - self._answered[:, 1] > self._slots // 2
        # Several times as fast as `any` for few workers; this runs in each poll of a server.
        return bool(np.count_nonzero(arrived) or np.count_nonzero(consumed & short))

    def _reply(self, now: np.ndarray) -> None:
        """Send an answer, unless one is under way; then a later `poll` sends it."""
        if self._end_answered or (self._answering is not None and not self._answering.Test()):
            return
        self._answer[:-1] = self._answered = now
        self._end_answered = self._ending
        self._answer[-1, 0] = _END if self._ending else 0
        self._answering = self._comm.Isend(self._answer, self._rank, _TAG_ANSWER)

    @property
    def closed(self) -> bool:
        """True if END has arrived from the server, and the answer to it has been sent."""
        if not self._end_answered:
            return False
        return self._answering is None or bool(self._answering.Test())

    def free(self) -> None:
        """Cancel the receives of batches that the server does not send any more. Call it once closed."""
        while self._open:
            request, _ = self._open.popleft()
            request.Cancel()
            request.Wait()


class Mirror:
    """The records that one process sends to its partner and receives as a partner. Not thread-safe."""

    def __init__(
        self, outgoing: Outgoing | None, incoming: list[Incoming], server: Server, partner: int
    ) -> None:
        """Make the mirror of one server.

        Args:
            outgoing: Sends this server's records; None: it has no partner.
            incoming: Receives records for each copy on this rank.
            server: This server.
            partner: Index of its partner; -1: none.
        """
        self._outgoing = outgoing
        self._incoming = incoming
        self._server = server
        self._partner = partner

    def poll(self) -> bool:
        """Send and receive what is due; return True if there was anything to do. Not blocking.

        Raises:
            ProtocolError: A partner sent a message that no correct partner sends.
            RegionError: A table of a copy cannot grow.
        """
        try:
            return self._poll()
        except _native.ProtocolViolation as error:
            raise ProtocolError(f"server {self._server.index}: {error}") from None

    def _poll(self) -> bool:
        moved = self._outgoing is not None and self._outgoing.poll()
        for incoming in self._incoming:
            moved = incoming.poll() or moved
        return moved

    def close(self, timeout_s: float, between: Callable[[], object]) -> None:
        """Send and receive everything that is left. Blocking.

        All servers call this when no worker writes any more.

        Args:
            timeout_s: Time limit, seconds.
            between: Called between two polls; must not block.

        Raises:
            StallError: A partner has not finished in time.
        """
        wait = Patience(timeout_s)
        ended = self._outgoing is None
        while True:
            moved = self.poll()
            if not ended and not moved and self._outgoing is not None:
                ended = self._outgoing.end()
            ours = self._outgoing is None or self._outgoing.closed
            if ours and all(incoming.closed for incoming in self._incoming):
                break
            between()
            if wait.is_over:
                raise StallError(
                    f"server {self._server.index} and its partners have not come to an end within "
                    f"{timeout_s:g} s (its own is server {self._partner}); look at the ranks of these servers"
                )
            if not moved:
                time.sleep(100e-6)
        for incoming in self._incoming:
            incoming.free()

    def statistics(self) -> dict[str, Any]:
        """Return the index of the partner, and records and bytes that were sent to it, by name."""
        if self._outgoing is None:
            return {}
        return {"partner": {"server": self._partner, **self._server.core.partner_counters()}}
