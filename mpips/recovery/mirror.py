"""Carries a server's records to its partner and takes in those of the servers whose partner this is.

Two-sided messages on a communicator of its own, so that it works with every transport. A *batch* goes from
server to partner: one line (number of bytes, or END), then records. Several may be under way; MPI keeps their
order. An *answer* comes back: for each worker the numbers of records that have arrived and that the copy has
consumed, and a last row that says END. Numbers only grow, so that a lost beat costs time and nothing else:
an answer that is under way is followed by a newer one.

Nothing blocks but `close`, which every server calls when no worker is left: the last records go out,
then END, and the partner answers END when it has consumed them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mpips import _native
from mpips.errors import ProtocolError, StallError
from mpips.server.server import Server

if TYPE_CHECKING:
    from mpi4py import MPI

_TAG_BATCH, _TAG_ANSWER = 21, 22
_DEPTH = 4  # batches under way
_BATCH_BYTES = 512 << 10
_HEAD_BYTES = 64
_END = 2**64 - 1


def _batch_bytes(slot_bytes: int) -> int:
    """Of a buffer: a record fits, whatever its length."""
    return _HEAD_BYTES + max(_BATCH_BYTES, slot_bytes + _native.LINE_BYTES)


class Outgoing:
    """The server's side. Not thread-safe."""

    def __init__(self, server: Server, comm: MPI.Intracomm, rank: int, bound: int) -> None:
        """The copy on `rank` of `comm` has what the server has; `bound`: see server_replica.cpp."""
        self._core = server.core
        self._comm, self._rank = comm, rank
        n_bytes = _batch_bytes(server.layout.geometry.slot_bytes)
        self._free = [np.zeros(n_bytes, np.uint8) for _ in range(_DEPTH)]
        self._sent: deque[tuple[MPI.Request, np.ndarray]] = deque()
        self._answer = np.zeros((server.layout.n_workers + 1, 2), np.uint64)
        self._expect()
        self.ended = False
        self._core.begin_partnership(bound)

    def _expect(self) -> None:
        self._open = self._comm.Irecv(self._answer, self._rank, _TAG_ANSWER)

    def poll(self) -> bool:
        """Take answers, hand out records; True if there was anything. Not blocking."""
        moved = False
        while not self.ended and self._open.Test():
            moved = True
            self._core.take_partner_words(self._answer[:-1])
            self.ended = bool(self._answer[-1, 0] == _END)
            if not self.ended:
                self._expect()
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
        """Say that nothing follows, once there is a buffer for it; True if it has been said."""
        if self._free:
            self._send(_END, 0)
            return True
        return False

    @property
    def closed(self) -> bool:
        """The partner has everything, and no message is under way."""
        return self.ended and not self._sent


class Incoming:
    """The partner's side: a copy and the batches for it. Not thread-safe."""

    def __init__(self, copy: Server, comm: MPI.Intracomm, rank: int) -> None:
        """`copy` has been attached and is of the server on `rank` of `comm`."""
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

    def _expect(self, batch: np.ndarray) -> None:
        self._open.append((self._comm.Irecv(batch, self._rank, _TAG_BATCH), batch))

    def _now(self) -> np.ndarray:
        words = np.zeros((self.copy.layout.n_workers, 2), np.uint64)
        self._core.partner_words(words)
        return words

    def poll(self) -> bool:
        """Take batches in, answer, let the copy consume; True if there was anything. Not blocking."""
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
            # Arrival is what opens the server's gate: it hears of it before the copy goes to work.
            self._say(self._now())
            self.copy.drain()
        now = self._now()
        if self._is_news(now):
            self._say(now)
        return moved

    def _is_news(self, now: np.ndarray) -> bool:
        """Something has arrived, or the server may be short of slots, or this is the end."""
        if self._ending and not self._end_answered:
            return True
        arrived, consumed = now[:, 0] != self._answered[:, 0], now[:, 1] != self._answered[:, 1]
        short = now[:, 0] - self._answered[:, 1] > self._slots // 2
        return bool(arrived.any() or (consumed & short).any())

    def _say(self, now: np.ndarray) -> None:
        """Answer, unless an answer is under way; then a later `poll` does."""
        if self._end_answered or (self._answering is not None and not self._answering.Test()):
            return
        self._answer[:-1] = self._answered = now
        self._end_answered = self._ending
        self._answer[-1, 0] = _END if self._ending else 0
        self._answering = self._comm.Isend(self._answer, self._rank, _TAG_ANSWER)

    @property
    def closed(self) -> bool:
        """The server has sent its last, and knows that it is here."""
        if not self._end_answered:
            return False
        return self._answering is None or bool(self._answering.Test())

    def free(self) -> None:
        """Give up what was prepared for batches that never come."""
        while self._open:
            request, _ = self._open.popleft()
            request.Cancel()
            request.Wait()


class Mirror:
    """Both sides of one process. Not thread-safe."""

    def __init__(
        self, outgoing: Outgoing | None, incoming: list[Incoming], server: Server, partner: int
    ) -> None:
        """`partner`: index of this server's partner, -1 for none."""
        self._outgoing = outgoing
        self._incoming = incoming
        self._server = server
        self._partner = partner

    def poll(self) -> bool:
        """Do what there is to do; True if there was anything. Not blocking.

        Raises:
            ProtocolError: A partner sent what no correct partner sends.
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
        """Bring everything to an end; all servers do it, when no worker writes any more. Blocks.

        Raises:
            StallError: A partner does not come to the end as well.
        """
        deadline = time.monotonic() + timeout_s
        ended = self._outgoing is None
        while True:
            moved = self.poll()
            if not ended and not moved and self._outgoing is not None:
                ended = self._outgoing.end()
            ours = self._outgoing is None or self._outgoing.closed
            if ours and all(incoming.closed for incoming in self._incoming):
                break
            between()
            if time.monotonic() > deadline:
                raise StallError(
                    f"server {self._server.index} and its partners have not come to an end within "
                    f"{timeout_s:g} s (its own is server {self._partner})"
                )
            if not moved:
                time.sleep(100e-6)
        for incoming in self._incoming:
            incoming.free()

    def statistics(self) -> dict[str, Any]:
        """What was mirrored, by name; lags in records of one worker."""
        if self._outgoing is None:
            return {}
        return {"partner": {"server": self._partner, **self._server.core.partner_counters()}}
