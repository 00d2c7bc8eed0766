"""One-sided access to the servers' regions through an MPI window.

There is one `Lock_all(NOCHECK)` for the whole run, and only put, get and flush of contiguous bytes are used.
MPI atomics, accumulate, request-based calls and dynamic windows are not used: each of them hangs or corrupts
data in some current MPI over some network. The target must enter MPI for progress; the server's loop does.

Where a network has no RDMA, such as TCP, an MPI library makes a get of messages. Open MPI then sends as many
bytes to the target as come back (measured with 5.0.11). So the job tries at its start whether gets need the
target (`gets_need_target`); if they do, longer reads are requests that the server answers.

Small records are sent as messages. A message leaves at once and needs no answer. A put over TCP is queued
until the origin enters MPI again, and the target answers it before it does anything else. But a flush
completes a message only at this end, and a put may overtake a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from mpips.transport.p2p import EAGER_BYTES, P2pMemory

Bytes = NDArray[np.uint8]
Guard = Callable[[str], Any]

# Windows over TCP transfer a get as a message, which needs no handshake up to the eager limit.
_GET_BYTES = 32 << 10
# Longer reads are requests where gets need the target. A short get takes less time than a request.
_SHORT_BYTES = 16 << 10
_TRIES = 3
_ABSENT_S = 0.01  # in which the target of a try makes no MPI call
_TRY_TAG = 17


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


def gets_need_target(comm: MPI.Intracomm, window: MPI.Win, origin: int, target: int) -> bool:
    """Return True if gets through a window wait until the target makes MPI calls. Collective.

    The target sends a message, and makes no MPI call for some milliseconds. If a get that the origin makes
    meanwhile is complete within this time, the network reads the target's memory by itself. On a busy machine
    the origin may come too late to see that it is not; so several tries must agree.

    Args:
        comm: Communicator of all ranks of the window.
        window: The window.
        origin: Rank that reads.
        target: Rank with memory in the window.
    """
    empty, out, is_late = bytearray(0), np.empty(8, np.uint8), np.zeros(1, np.bool_)
    for _ in range(_TRIES):
        if comm.rank == target:
            comm.Send([empty, MPI.BYTE], origin, _TRY_TAG)
            time.sleep(_ABSENT_S)
        elif comm.rank == origin:
            comm.Recv([empty, MPI.BYTE], target, _TRY_TAG)
            began = time.monotonic()
            window.Get([out, MPI.BYTE], target, target=[0, out.nbytes, MPI.BYTE])
            window.Flush(target)
            is_late[0] = time.monotonic() - began > _ABSENT_S / 2
        comm.Bcast([is_late, MPI.BOOL], root=origin)
        if is_late[0]:
            return True
    return False


class RmaMemory:
    """One server's region through the window; see mpips.transport.remote.RemoteMemory."""

    name = "rma"
    piece_bytes = 512 << 10  # bytes of one put; stays in a cache between its checksum and its put

    def __init__(
        self, window: MPI.Win, messages: P2pMemory, rank: int, guard: Guard, asks: bool
    ) -> None:
        """Access the region of the server on `rank`.

        Args:
            window: Window over the servers' regions.
            messages: Access to the same region by messages.
            rank: Rank of the server.
            guard: `guard(what)` is a context in which a call that never returns ends the process.
            asks: Long reads are requests, since gets need the target.
        """
        self._asks = asks
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
        if self._asks and out.nbytes > _SHORT_BYTES:
            for at in range(0, out.nbytes, EAGER_BYTES):
                self._messages.get(offset + at, out[at : at + EAGER_BYTES])
            return
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
