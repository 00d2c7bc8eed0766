"""Access to a server's region by messages, for MPIs that cannot make a window between nodes.

Request: a message with a 32-byte head (operation, offset, length, question) on TAG_HEAD. The bytes of a small
put follow the head in the same message, those of a large put on TAG_DATA. The bytes of a get come back on
TAG_REPLY. MPI does not let messages of one pair, tag and communicator overtake each other, and the server
serves requests in order. The server checks every range: a worker can write only its own mailbox and
rendezvous buffer.

Question: a number of records of this worker. When the server has consumed so many, it sends acknowledgement
and results of the mailbox on TAG_ANSWER. A question travels in a head of its own or in that of a small put.
It is used with every remote transport.

Fetch: a number of records and a range of bytes. When the server has consumed so many, it sends
acknowledgement and results, and then these bytes, on TAG_FETCH, in messages of at most EAGER_BYTES. It
answers the fetches of a worker in their order.

Await: a version, a range of bytes and the place of a table's head. When the table has this version, the
server sends the bytes; see mpips.transport.awaited.

Fence: a head without bytes, which the server answers by an empty message on TAG_FENCE. The server serves it
after everything that was sent before it, so the answer proves that all of that is in the region.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from mpips.errors import StallError
from mpips.process.patience import Patience
from mpips.transport.awaited import IncomingValues, ValueRequests

Bytes = NDArray[np.uint8]
_Requests = deque[tuple[MPI.Request, object]]

TAG_HEAD, TAG_DATA, TAG_REPLY, TAG_ANSWER, TAG_FENCE, TAG_FETCH = 11, 12, 13, 14, 15, 16
# A put of up to so many bytes is one message: a record of 16 KiB of values with its header and stamp.
INLINE_BYTES = (16 << 10) + 192
# Bytes of one message that leaves without a handshake; over TCP, Open MPI's limit is 64 KiB with its head.
EAGER_BYTES = 56 << 10
SAME_VERSION = "all ranks must run the same mpips (mpips doctor --mpi checks it)"
HEAD = struct.Struct("<QQQQ")
PUT, GET, ASK, FENCE, FETCH, AWAIT = 1, 2, 3, 4, 5, 6
_MAX_PENDING = 256  # sends that may be open, and receives


class P2pMemory:
    """One server's region through messages; see mpips.transport.remote.RemoteMemory."""

    name = "p2p"
    piece_bytes = 4 << 20  # bytes of one put; long, because each message needs a handshake

    def __init__(
        self, comm: MPI.Intracomm, rank: int, timeout_s: float, idle: Callable[[], object]
    ) -> None:
        """Access the region of the server on `rank` of `comm`.

        Args:
            comm: Communicator whose tags only this module uses.
            rank: Rank of the server.
            timeout_s: Seconds until a server that takes no message counts as stalled.
            idle: Called while this object waits.
        """
        self._comm = comm
        self._rank = rank
        self._timeout_s = timeout_s
        self._idle = idle
        # Messages under way, in order, with their buffers.
        self._sends: _Requests = deque()
        self._gets: _Requests = deque()
        self._fence: MPI.Request | None = None

    @property
    def is_under_way(self) -> bool:
        """True if some message is not known to be complete."""
        return bool(self._sends or self._gets)

    @property
    def n_sends(self) -> int:
        """Number of messages to the server that are not known to have left."""
        return len(self._sends)

    def put(self, offset: int, data: Bytes) -> None:
        """Start a write of any length."""
        if data.nbytes <= INLINE_BYTES:
            return self.put_asking(offset, data, 0)
        self._send_head(PUT, offset, data.nbytes)
        self._start(self._sends, self._comm.Isend([data, MPI.BYTE], self._rank, TAG_DATA), data)

    def put_asking(self, offset: int, data: Bytes, count: int) -> None:
        """Write a few bytes by a message, which may carry a question."""
        message = HEAD.pack(PUT, offset, data.nbytes, count) + data.tobytes()
        self._start(
            self._sends, self._comm.Isend([message, MPI.BYTE], self._rank, TAG_HEAD), message
        )

    def put_copied(self, offset: int, data: Bytes) -> None:
        """Start a write of any length by messages that hold copies."""
        for at in range(0, data.nbytes, EAGER_BYTES):
            self.put_asking(offset + at, data[at : at + EAGER_BYTES], 0)

    def get(self, offset: int, out: Bytes) -> None:
        """Start a read of any length."""
        self._start(self._gets, self._comm.Irecv([out, MPI.BYTE], self._rank, TAG_REPLY), out)
        self._send_head(GET, offset, out.nbytes)

    def leave(self) -> None:
        """Block until small puts can arrive without further calls of this process.

        Waits, because a longer message leaves only when the server receives it.
        """
        self._complete(self._sends, 0)

    def test(self) -> bool:
        """Advance messages without waiting; return True if any was completed."""
        n = len(self._sends) + len(self._gets)
        for requests in (self._sends, self._gets):
            while requests and requests[0][0].Test():
                requests.popleft()
        return len(self._sends) + len(self._gets) < n

    def flush(self) -> None:
        """Complete all puts and gets.

        The server serves everything sent before this call before anything sent later.
        """
        self._complete(self._sends, 0)
        self._complete(self._gets, 0)

    def fence(self) -> None:
        """Ask the server to confirm that all messages so far have arrived."""
        assert self._fence is None
        self._fence = self._comm.Irecv([bytearray(0), MPI.BYTE], self._rank, TAG_FENCE)
        self._send_head(FENCE, 0, 0)

    def fenced(self) -> bool:
        """Return whether the server has confirmed the fence."""
        if self._fence is not None and self._fence.Test():
            self._fence = None
        return self._fence is None

    def _send_head(self, operation: int, offset: int, n_bytes: int) -> None:
        head = HEAD.pack(operation, offset, n_bytes, 0)
        self._start(self._sends, self._comm.Isend([head, MPI.BYTE], self._rank, TAG_HEAD), head)

    def _start(self, requests: _Requests, request: MPI.Request, buffer: object) -> None:
        """Note a request and keep its buffer alive; wait if too many are open."""
        requests.append((request, buffer))
        if len(requests) > _MAX_PENDING:
            self._complete(requests, _MAX_PENDING // 2)

    def _complete(self, requests: _Requests, leave: int) -> None:
        """Wait until at most `leave` requests are open."""
        wait = Patience(self._timeout_s)
        while len(requests) > leave:
            if requests[0][0].Test():
                requests.popleft()
                continue
            self._idle()
            if wait.is_over:
                raise StallError(
                    f"the server on rank {self._rank} has not taken a message for "
                    f"{self._timeout_s:g} s: it is stopped, overloaded or gone; look at that rank"
                )


class Question:
    """A worker's question to one server, answered when `count` of the worker's records are consumed.

    It takes one message in each direction, however long the server needs: the worker does not poll. At most
    one question is open at a time, and MOST_FETCHES fetches.
    """

    def __init__(self, comm: MPI.Intracomm, rank: int, answer_bytes: int) -> None:
        """Prepare questions to the server on `rank` of `comm`; an answer has `answer_bytes` bytes."""
        self._comm = comm
        self._rank = rank
        self._answer = np.empty(answer_bytes, np.uint8)
        self._open: MPI.Request | None = None
        self._sent: tuple[MPI.Request, bytes] | None = None
        self._fetches: deque[tuple[Bytes, deque[MPI.Request], bytes]] = deque()
        self._values = ValueRequests(
            lambda out, tag: comm.Irecv([out, MPI.BYTE], rank, tag),
            lambda offset, n_bytes, version, where: comm.Isend(
                [HEAD.pack(AWAIT, offset, n_bytes, version) + where, MPI.BYTE], rank, TAG_HEAD
            ),
        )

    def await_values(
        self, head_at: int, version: int, offset: int, out: Bytes, taken: Callable[[], None]
    ) -> IncomingValues:
        """Ask for bytes of the region when a table has a version; see ValueRequests.ask."""
        return self._values.ask(head_at, version, offset, out, taken)

    def expect(self) -> None:
        """Prepare for the answer to a question that was sent; it may be there already."""
        self._open = self._comm.Irecv([self._answer, MPI.BYTE], self._rank, TAG_ANSWER)

    def ask(self, count: int) -> None:
        """Send the question. Does not block."""
        head = HEAD.pack(ASK, 0, 0, count)
        self._sent = (self._comm.Isend([head, MPI.BYTE], self._rank, TAG_HEAD), head)
        self.expect()

    def fetch(self, count: int, offset: int, out: Bytes) -> None:
        """Send a fetch; see mpips.transport.replies. Does not block."""
        answer = np.empty_like(self._answer)
        parts = [answer, *(out[at : at + EAGER_BYTES] for at in range(0, out.nbytes, EAGER_BYTES))]
        requests = deque(self._comm.Irecv([p, MPI.BYTE], self._rank, TAG_FETCH) for p in parts)
        head = HEAD.pack(FETCH, offset, out.nbytes, count)
        requests.append(self._comm.Isend([head, MPI.BYTE], self._rank, TAG_HEAD))
        self._fetches.append((answer, requests, head))

    def fetched(self) -> Bytes | None:
        """Return the acknowledgement of the oldest fetch if all its bytes are there, else None."""
        if not self._fetches:
            return None
        answer, requests, _ = self._fetches[0]
        while requests and requests[0].Test():
            requests.popleft()
        if requests:
            return None
        self._fetches.popleft()
        return answer

    def answer(self) -> Bytes | None:
        """Return the answer (the start of the mailbox), or None if it is not there yet.

        Enters MPI, does not block. The next question overwrites the returned array.
        """
        if self._open is None:  # an exception came between the question and `expect`
            self.expect()
        assert self._open is not None
        # A test that finds nothing lets MPI take what has arrived, which only the next test finds.
        if not self._open.Test() and not self._open.Test():
            return None
        if self._sent is not None:
            self._sent[0].Wait()
        self._open = self._sent = None
        return self._answer
