"""Values of dense tables that a server sends as soon as they are there, in the order of their use.

A worker requests the values of a table before it pushes the updates that lead to them. The request names a
version. When the head of the table has this version, the server sends the values. So the request is not
behind the updates on the link, and the values need no further message of the worker.

If the values of several requests are there, the server serves the first of these requests first. At most
MOST_UNDER_WAY messages of values to a worker are under way, so values that come to be there later wait only
for these.

The values do not change between the version and their arrival. The server applies no update of a table under
BSP without this worker: the worker sends its next last push of a clock to the table, or the next end of a
clock, only after it has taken the values (`PullsByUse.finish`). The server's one thread serves requests
and applies updates by turns, so it never sends values while it writes them.

Each request has a tag of its own for its values, since they may come in another order than the requests.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

MOST_UNDER_WAY = 16  # messages of values to one worker
VALUE_BYTES = 56 << 10  # of one message; see p2p.EAGER_BYTES
MOST_REQUESTS = 1 << 14  # that one worker may have at one server
WHERE = struct.Struct("<QQ")  # behind the head of a request: offset of the table's head, and number
_FIRST_TAG = 64
_NO_VERSION = np.uint64(2**64 - 1)


class UnderWay(Protocol):
    """A message under way: a request of MPI, which keeps the message's memory alive."""

    def Test(self) -> bool:
        """Return True if the message has left or arrived. Enters MPI, does not block."""


class IncomingValues:
    """The values of one request. They are complete when `is_there` has returned True."""

    def __init__(
        self, requests: deque[UnderWay], sent: UnderWay, taken: Callable[[], None]
    ) -> None:
        """Take the receives, the request's own message, and what is called once when all is there."""
        self._requests = requests
        self._sent: UnderWay | None = sent
        self._taken = taken
        self._is_taken = False

    def is_there(self) -> bool:
        """Return True if all values have arrived. Enters MPI, does not block."""
        if self._is_taken:
            return True
        if self._sent is not None and self._sent.Test():
            self._sent = None
        while self._requests and self._requests[0].Test():
            self._requests.popleft()
        if self._requests or self._sent is not None:
            return False
        self._is_taken = True
        self._taken()
        return True


class ValueRequests:
    """A worker's requests to one server."""

    def __init__(
        self,
        receive: Callable[[Bytes, int], UnderWay],
        send: Callable[[int, int, int, bytes], UnderWay],
    ) -> None:
        """Ask for nothing yet.

        Args:
            receive: `receive(out, tag)` starts to receive a message of the server.
            send: `send(offset, n_bytes, version, where)` starts to send a request; see WHERE.
        """
        self._receive = receive
        self._send = send
        self._n_asked = 0

    def ask(
        self, head_at: int, version: int, offset: int, out: Bytes, taken: Callable[[], None]
    ) -> IncomingValues:
        """Ask for values; see Asking.await_values in remote_memory.py. Does not block."""
        number = self._n_asked % MOST_REQUESTS
        self._n_asked += 1
        requests = deque(
            self._receive(out[at : at + VALUE_BYTES], _FIRST_TAG + number)
            for at in range(0, out.nbytes, VALUE_BYTES)
        )
        sent = self._send(offset, out.nbytes, version, WHERE.pack(head_at, number))
        return IncomingValues(requests, sent, taken)


class _Request:
    """One request at the server."""

    def __init__(self, head: int, version: int, values: Bytes, number: int) -> None:
        """`head`: place of the table's head, in words of 8 bytes."""
        self.head, self.version = head, version
        self.values, self.number = values, number
        self.done = 0  # bytes sent


class _Open:
    """The open requests of one worker. A model may have 1000 of them, so all are checked at once."""

    def __init__(self) -> None:
        """Start without requests."""
        self._by_number: dict[int, _Request] = {}  # in the order of their arrival
        self._heads: NDArray[np.intp] | None = None  # of all; None: not made since the last change
        self._versions: NDArray[np.uint64] = np.empty(0, np.uint64)

    def __len__(self) -> int:
        return len(self._by_number)

    def __contains__(self, number: int) -> bool:
        return number in self._by_number

    def add(self, request: _Request) -> None:
        """Add a request behind the others."""
        self._by_number[request.number] = request
        self._heads = None

    def remove(self, request: _Request) -> None:
        """Remove a request."""
        del self._by_number[request.number]
        self._heads = None

    def due(self, words: NDArray[np.uint64]) -> list[_Request]:
        """Return those whose table has the version, in their order. A head is version and complement."""
        requests = list(self._by_number.values())
        if self._heads is None:
            self._heads = np.array([request.head for request in requests], np.intp)
            self._versions = np.array([request.version for request in requests], np.uint64)
        versions = words[self._heads]
        is_whole = versions ^ words[self._heads + 1] == _NO_VERSION
        return [requests[i] for i in np.flatnonzero(is_whole & (versions >= self._versions))]


class ValueService:
    """The server's part: the open requests of all workers, and their values that are under way."""

    def __init__(self, send: Callable[[Bytes, int, int], UnderWay], region: Bytes) -> None:
        """Serve a region. `send(values, rank, tag)` starts to send a message, whose memory is its own."""
        self._start = send
        self._region = region
        self._words = region[: len(region) // 8 * 8].view(np.uint64)
        self._open: dict[int, _Open] = {}
        self._sends: dict[int, deque[UnderWay]] = {}

    def take(self, rank: int, where: bytes, offset: int, n_bytes: int, version: int) -> bool:
        """Take a request; return False for one that no worker sends."""
        head_at, number = WHERE.unpack(where)
        requests = self._open.setdefault(rank, _Open())
        if head_at % 8 or head_at + 16 > len(self._region) or number >= MOST_REQUESTS:
            return False
        if n_bytes == 0 or number in requests:
            return False
        values = self._region[offset : offset + n_bytes]
        requests.add(_Request(head_at // 8, version, values, number))
        return True

    def advance(self) -> int:
        """Send values that are there; return the number of messages that are under way. Does not block."""
        if not self._open and not self._sends:
            return 0
        n_under_way = 0
        for rank, requests in list(self._open.items()):
            sends = self._sends.setdefault(rank, deque())
            if len(sends) < MOST_UNDER_WAY:
                for request in requests.due(self._words):
                    if len(sends) >= MOST_UNDER_WAY:
                        break
                    self._send(rank, request, sends)
                    if request.done == len(request.values):
                        requests.remove(request)
            if not len(requests):
                del self._open[rank]
        for rank, sends in list(self._sends.items()):
            while sends and sends[0].Test():
                sends.popleft()
            n_under_way += len(sends)
            if not sends and rank not in self._open:
                del self._sends[rank]
        return n_under_way

    def _send(self, rank: int, request: _Request, sends: deque[UnderWay]) -> None:
        """Send messages of one request, as far as they may be under way."""
        while request.done < len(request.values) and len(sends) < MOST_UNDER_WAY:
            part = request.values[request.done : request.done + VALUE_BYTES].copy()
            sends.append(self._start(part, rank, _FIRST_TAG + request.number))
            request.done += len(part)
