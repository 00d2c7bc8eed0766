"""One-sided access by an MPI window over the servers' regions.

One `Lock_all(NOCHECK)` for the run; only contiguous bytes, put, get and flush. No MPI atomics, no
accumulate, no request-based calls, no dynamic windows: each of these hangs or corrupts on some current
MPI over some network. The target must enter MPI for progress; the server's loop does.

Small records go as messages: a message leaves at once and needs no answer, where a put over TCP is queued
until the origin enters MPI again and is answered by the target before anything else happens there. But a
flush completes a message at this end only, and a message may be overtaken by a put.
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

# Windows over TCP move a get as a message; one that fits the eager limit needs no handshake.
_GET_BYTES = 32 << 10


def make_window(comm: MPI.Intracomm, memory: Bytes | None) -> MPI.Win | None:
    """Create the window of a job. Collective over `comm`.

    Args:
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
    piece_bytes = 512 << 10  # stays in a cache between a look at it and its put

    def __init__(self, window: MPI.Win, messages: P2pMemory, rank: int, guard: Guard) -> None:
        """`messages` reaches the same region; `guard(what)` is a context in which a call that never
        returns ends the process.
        """
        self._window = window
        self._messages = messages
        self._rank = rank
        self._guard = guard

    def put(self, offset: int, data: Bytes) -> None:
        """See RemoteMemory. Never by a message, however short: a flush does not wait for its arrival, and
        what lies in an area has no other proof of it.
        """
        self._window.Put([data, MPI.BYTE], self._rank, target=[offset, data.nbytes, MPI.BYTE])

    def get(self, offset: int, out: Bytes) -> None:
        """See RemoteMemory."""
        for at in range(0, out.nbytes, _GET_BYTES):
            part = out[at : at + _GET_BYTES]
            target = [offset + at, part.nbytes, MPI.BYTE]
            self._window.Get([part, MPI.BYTE], self._rank, target=target)

    def put_asking(self, offset: int, data: Bytes, count: int) -> None:
        """See RemoteMemory."""
        self._messages.put_asking(offset, data, count)

    def leave(self) -> None:
        """See RemoteMemory."""
        self._messages.leave()

    def flush(self) -> None:
        """See RemoteMemory. Does not return if the target is gone; the guard then does."""
        with self._guard(f"a flush to rank {self._rank}"):
            self._window.Flush(self._rank)
        self._messages.flush()

    def fence(self) -> None:
        """See RemoteMemory."""
        self._messages.fence()

    def fenced(self) -> bool:
        """See RemoteMemory."""
        return self._messages.fenced()
