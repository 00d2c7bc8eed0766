"""One-sided access to the servers' regions through an MPI window.

There is one `Lock_all(NOCHECK)` for the whole run, and only put, get and flush of contiguous bytes are used.
MPI atomics, accumulate, request-based calls and dynamic windows are not used: each of them hangs or corrupts
data in some current MPI over some network. The target must enter MPI for progress; the server's loop does.

Small records are sent as messages. A message leaves at once and needs no answer. A put over TCP is queued
until the origin enters MPI again, and the target answers it before it does anything else. But a flush
completes a message only at this end, and a put may overtake a message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from mpips.transport.p2p import P2pMemory

Bytes = NDArray[np.uint8]
Guard = Callable[[str], Any]

# Windows over TCP transfer a get as a message, which needs no handshake up to the eager limit.
_GET_BYTES = 32 << 10


def make_window(comm: MPI.Intracomm, memory: Bytes | None) -> MPI.Win | None:
    """Create the window of a job. Collective over `comm`; blocks.

    Args:
        comm: Communicator of all ranks of the job.
        memory: A server's region; None on ranks that expose nothing.

    Returns:
        The locked window, or None on every rank if any rank could not make it.
    """
    window: MPI.Win | None = None
    try:
        window = MPI.Win.Create(memory, disp_unit=1, comm=comm)
        window.Set_errhandler(MPI.ERRORS_RETURN)
        made = window.Get_attr(MPI.WIN_MODEL) == MPI.WIN_UNIFIED
    except MPI.Exception:
        made = False
    everywhere = np.zeros(1, np.int32)
    comm.Allreduce(np.array([made], np.int32), everywhere, op=MPI.MIN)
    if not everywhere[0]:
        return None
    assert window is not None
    window.Lock_all(MPI.MODE_NOCHECK)
    return window


class RmaMemory:
    """One server's region through the window; see mpips.transport.remote.RemoteMemory."""

    name = "rma"
    piece_bytes = 512 << 10  # bytes of one put; stays in a cache between its checksum and its put

    def __init__(self, window: MPI.Win, messages: P2pMemory, rank: int, guard: Guard) -> None:
        """Access the region of the server on `rank`.

        Args:
            window: Window over the servers' regions.
            messages: Access to the same region by messages.
            rank: Rank of the server.
            guard: `guard(what)` is a context in which a call that never returns ends the process.
        """
        self._window = window
        self._messages = messages
        self._rank = rank
        self._guard = guard

    def put(self, offset: int, data: Bytes) -> None:
        """Start a write of any length.

        Never uses a message, however short the data is.

        A flush does not wait for the arrival of messages, and for bytes in a rendezvous buffer the flush may
        be the only proof of their arrival.
        """
        self._window.Put([data, MPI.BYTE], self._rank, target=[offset, data.nbytes, MPI.BYTE])

    def get(self, offset: int, out: Bytes) -> None:
        """Start a read of any length."""
        for at in range(0, out.nbytes, _GET_BYTES):
            part = out[at : at + _GET_BYTES]
            target = [offset + at, part.nbytes, MPI.BYTE]
            self._window.Get([part, MPI.BYTE], self._rank, target=target)

    def put_asking(self, offset: int, data: Bytes, count: int) -> None:
        """Write a few bytes by a message, which may carry a question."""
        self._messages.put_asking(offset, data, count)

    def put_copied(self, offset: int, data: Bytes) -> None:
        """Start a write of any length by messages that hold copies."""
        self._messages.put_copied(offset, data)

    def leave(self) -> None:
        """Block until all puts by messages can arrive without further calls of this process."""
        self._messages.leave()

    def test(self) -> bool:
        """Advance messages without waiting; return True if any was completed."""
        return self._messages.test()

    @property
    def is_under_way(self) -> bool:
        """True if some message is not known to be complete."""
        return self._messages.is_under_way

    @property
    def n_sends(self) -> int:
        """Number of messages to the server that are not known to have left."""
        return self._messages.n_sends

    def flush(self) -> None:
        """Complete all puts and gets.

        Never returns if the target is gone; the guard then ends the process.
        """
        with self._guard(f"a flush to rank {self._rank}"):
            self._window.Flush(self._rank)
        self._messages.flush()

    def fence(self) -> None:
        """Ask the server to confirm that all messages so far have arrived."""
        self._messages.fence()

    def fenced(self) -> bool:
        """Return whether the server has confirmed the fence."""
        return self._messages.fenced()
