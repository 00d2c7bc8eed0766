"""Two-sided fallback: put and get as messages, for MPIs that cannot make a window between nodes.

A request is a 24-byte head (operation, offset, length) on one tag; the bytes of a put follow on a
second tag, the bytes of a get come back on a third. MPI does not let messages of one pair, tag and
communicator overtake each other and the server serves them in order, so the stamp of a record is written
after the record. The server checks every range: a worker writes its own mailbox and nothing else.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from mpips.errors import ProtocolError, StallError

Bytes = NDArray[np.uint8]

TAG_HEAD, TAG_DATA, TAG_REPLY = 11, 12, 13
_HEAD = struct.Struct("<QQQ")
_PUT, _GET = 1, 2
_MAX_PENDING = 64


class P2pMemory:
    """One server's region through messages; see mpips.transport.remote.RemoteMemory."""

    name = "p2p"

    def __init__(
        self, comm: MPI.Intracomm, rank: int, timeout_s: float, idle: Callable[[], None]
    ) -> None:
        """`rank` of the server in `comm`; `idle` is called while this waits."""
        self._comm = comm
        self._rank = rank
        self._timeout_s = timeout_s
        self._idle = idle
        self._open: deque[tuple[MPI.Request, object]] = deque()

    def put(self, offset: int, data: Bytes) -> None:
        """See RemoteMemory."""
        self._send_head(_PUT, offset, data.nbytes)
        self._start(self._comm.Isend([data, MPI.BYTE], self._rank, TAG_DATA), data)

    def get(self, offset: int, out: Bytes) -> None:
        """See RemoteMemory."""
        self._start(self._comm.Irecv([out, MPI.BYTE], self._rank, TAG_REPLY), out)
        self._send_head(_GET, offset, out.nbytes)

    def flush(self) -> None:
        """See RemoteMemory. What was sent before is served before what is sent later."""
        self._complete(0)

    def _send_head(self, operation: int, offset: int, n_bytes: int) -> None:
        head = bytearray(_HEAD.pack(operation, offset, n_bytes))
        self._start(self._comm.Isend([head, MPI.BYTE], self._rank, TAG_HEAD), head)

    def _start(self, request: MPI.Request, buffer: object) -> None:
        self._open.append((request, buffer))
        if len(self._open) > _MAX_PENDING:
            self._complete(_MAX_PENDING // 2)

    def _complete(self, leave: int) -> None:
        deadline = time.monotonic() + self._timeout_s
        while len(self._open) > leave:
            if self._open[0][0].Test():
                self._open.popleft()
                continue
            self._idle()
            if time.monotonic() > deadline:
                raise StallError(
                    f"the server on rank {self._rank} has not taken a message for "
                    f"{self._timeout_s:g} s"
                )


class P2pService:
    """The server's side: serves the workers' puts and gets on its region."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        region: Bytes,
        mailboxes: dict[int, tuple[int, int]],
        guard: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        """`mailboxes`: (start, stop) of the bytes that each rank may write; `guard(what)` is a context
        in which a call that never returns ends the process."""
        self._comm = comm
        self._region = region
        self._mailboxes = mailboxes
        self._guard = guard
        self._status = MPI.Status()
        self._replies: deque[tuple[MPI.Request, Bytes]] = deque()
        self._head = bytearray(_HEAD.size)

    def poll(self) -> int:
        """Serve all waiting requests; returns how many. Blocks only while a put's bytes arrive."""
        served = 0
        while self._comm.Iprobe(MPI.ANY_SOURCE, TAG_HEAD, self._status):
            source = self._status.Get_source()
            self._comm.Recv([self._head, MPI.BYTE], source, TAG_HEAD)
            self._serve(source, *_HEAD.unpack(self._head))
            served += 1
        while self._replies and self._replies[0][0].Test():
            self._replies.popleft()
        return served

    def _serve(self, source: int, operation: int, offset: int, n_bytes: int) -> None:
        start, stop = (
            self._mailboxes.get(source, (0, 0))
            if operation == _PUT
            else (
                0,
                len(self._region),
            )
        )
        if operation not in (_PUT, _GET) or not start <= offset <= offset + n_bytes <= stop:
            raise ProtocolError(
                f"rank {source} asked for bytes {offset} to {offset + n_bytes} of a region, "
                f"of which it may use {start} to {stop}"
            )
        part = self._region[offset : offset + n_bytes]
        if operation == _PUT:
            # The head may be all that a worker sent before it was stopped.
            with self._guard(f"receiving a message from rank {source}"):
                self._comm.Recv([part, MPI.BYTE], source, TAG_DATA)
        else:
            copy = part.copy()
            self._replies.append((self._comm.Isend([copy, MPI.BYTE], source, TAG_REPLY), copy))
