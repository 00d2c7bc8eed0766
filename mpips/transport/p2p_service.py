"""The server's part of access by messages: it serves the requests that mpips.transport.p2p describes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
from mpi4py import MPI

from mpips import _native
from mpips.errors import ProtocolError
from mpips.transport.awaited import WHERE, ValueService
from mpips.transport.p2p import (
    AWAIT,
    EAGER_BYTES,
    FENCE,
    FETCH,
    GET,
    HEAD,
    PUT,
    SAME_VERSION,
    TAG_ANSWER,
    TAG_DATA,
    TAG_FENCE,
    TAG_FETCH,
    TAG_HEAD,
    TAG_REPLY,
    Bytes,
)
from mpips.transport.replies import MOST_FETCHES

_MOST_AT_ONCE = 64  # requests served per poll, so that a busy server also does its other work


class P2pService:
    """The server's part: serves the requests of workers to its region."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        region: Bytes,
        mailboxes: dict[int, tuple[int, int]],
        answer_bytes: int,
        guard: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        """Serve a region.

        Args:
            comm: Communicator whose tags only this module uses.
            region: The whole region, uint8.
            mailboxes: By rank: (start, stop) of the bytes that it may write.
            answer_bytes: Bytes of an answer, from the start of a mailbox.
            guard: `guard(what)` is a context in which a call that never returns ends the process.
        """
        self._comm = comm
        self._region = region
        self._mailboxes = mailboxes
        self._guard = guard
        self._status = MPI.Status()
        self._ended_early = False  # whether the last look left something to the next one
        self._replies: deque[tuple[MPI.Request, Bytes]] = deque()
        self._answer_bytes = answer_bytes
        self._questions: dict[int, int] = {}  # rank -> records to be consumed
        # rank -> records to be consumed, offset and number of bytes of each open fetch
        self._fetches: dict[int, deque[tuple[int, int, int]]] = {}
        self._values = ValueService(
            lambda values, rank, tag: comm.Isend([values, MPI.BYTE], rank, tag), region
        )
        self._message = np.empty(HEAD.size + EAGER_BYTES, np.uint8)
        self._applied = {
            rank: region[start : start + 8].view(np.uint64)
            for rank, (start, _) in mailboxes.items()
        }

    def poll(self) -> int:
        """Serve waiting requests and return their number. Blocks only while the bytes of a put arrive.

        Requests may come as fast as they are served, so the number is limited. While the number is above 0,
        the caller calls again at once, and consumes records before. A worker that has sent a question waits
        for that, so a call ends behind a question, but not two calls in succession: if many workers wait,
        every call may find a question.
        """
        served, asked = self._answer(), False
        for _ in range(_MOST_AT_ONCE):
            if not self._is_there():
                break
            source = self._status.Get_source()
            n_bytes = self._status.Get_count(MPI.BYTE)
            if not HEAD.size <= n_bytes <= len(self._message):
                raise ProtocolError(
                    f"rank {source} sent a request of {n_bytes} bytes; {SAME_VERSION}"
                )
            with self._guard(f"receiving a message from rank {source}"):
                self._comm.Recv([self._message, n_bytes, MPI.BYTE], source, TAG_HEAD)
            served += 1
            if self._take(source, n_bytes):
                if not self._ended_early:
                    self._ended_early = True
                    return served
                asked = True
        self._ended_early = False
        served += self._values.advance()
        if not asked:
            served += self._answer()
        while self._replies and self._replies[0][0].Test():
            self._replies.popleft()
        return served

    def _is_there(self) -> bool:
        """Return whether a request is there; its source and length are in `_status`.

        A probe that finds nothing lets MPI take what has arrived, which only the next probe finds.
        """
        comm, status = self._comm, self._status
        return comm.Iprobe(MPI.ANY_SOURCE, TAG_HEAD, status) or comm.Iprobe(
            MPI.ANY_SOURCE, TAG_HEAD, status
        )

    def _answer(self) -> int:
        """Answer questions and fetches whose records are consumed. Results are written before `applied`."""
        if not self._questions and not self._fetches:
            return 0
        ready = [rank for rank, count in self._questions.items() if self._applied[rank][0] >= count]
        for rank in ready:
            del self._questions[rank]
            self._reply(rank, self._mailboxes[rank][0], self._answer_bytes, TAG_ANSWER)
        n_served = len(ready)
        for rank, fetches in list(self._fetches.items()):
            while fetches and self._applied[rank][0] >= fetches[0][0]:
                _, offset, n_bytes = fetches.popleft()
                self._reply(rank, self._mailboxes[rank][0], self._answer_bytes, TAG_FETCH)
                for at in range(offset, offset + n_bytes, EAGER_BYTES):
                    self._reply(rank, at, min(EAGER_BYTES, offset + n_bytes - at), TAG_FETCH)
                n_served += 1
            if not fetches:
                del self._fetches[rank]
        return n_served

    def _take(self, source: int, n_bytes: int) -> bool:
        """Serve the request in `_message`, which has `n_bytes`; return True if it contains a question.

        Raises:
            ProtocolError: A request that no worker sends.
        """
        start, stop = self._mailboxes.get(source, (0, 0))
        count = _native.take_put(self._message, n_bytes, self._region, PUT, start, stop)
        if count < 0:
            count = self._serve(source, n_bytes - HEAD.size)
        if count == 0:
            return False
        if source in self._questions or source not in self._mailboxes:
            raise ProtocolError(
                f"rank {source} asked a question that no worker asks; {SAME_VERSION}"
            )
        self._questions[source] = count
        return True

    def _serve(self, source: int, inline: int) -> int:
        """Serve the request in `_message`, which has `inline` bytes behind its head and is not a small put.

        Returns:
            The number of records that its question is about; 0: it contains no question.

        Raises:
            ProtocolError: A request that no worker sends.
        """
        operation, offset, n_bytes, count = HEAD.unpack(self._message.data[: HEAD.size])
        start, stop = self._mailboxes.get(source, (0, 0))
        known = PUT <= operation <= FETCH and not inline
        known = known or (operation == AWAIT and inline == WHERE.size)
        if operation in (GET, FETCH, AWAIT):
            start, stop = 0, len(self._region)
        is_range = operation in (PUT, GET, FETCH, AWAIT)
        if (is_range and not start <= offset <= offset + n_bytes <= stop) or not known:
            raise ProtocolError(
                f"rank {source} asked for bytes {offset} to {offset + n_bytes} of a region, "
                f"of which it may use {start} to {stop}; {SAME_VERSION}"
            )
        if operation == FETCH:
            self._take_fetch(source, (count, offset, n_bytes))
        elif operation == AWAIT:
            where = self._message[HEAD.size :][:inline].tobytes()
            if source not in self._mailboxes or not self._values.take(
                source, where, offset, n_bytes, count
            ):
                raise ProtocolError(
                    f"rank {source} asked for values as no worker does; {SAME_VERSION}"
                )
        elif operation == FENCE:
            empty = np.empty(0, np.uint8)
            self._replies.append((self._comm.Isend([empty, MPI.BYTE], source, TAG_FENCE), empty))
        elif operation == GET:
            self._reply(source, offset, n_bytes, TAG_REPLY)
        elif operation == PUT:
            # Guard the receive: a worker that was stopped may have sent only the head.
            with self._guard(f"receiving a message from rank {source}"):
                part = self._region[offset : offset + n_bytes]
                self._comm.Recv([part, MPI.BYTE], source, TAG_DATA)
        return 0 if operation in (FETCH, AWAIT) else count

    def _take_fetch(self, source: int, fetch: tuple[int, int, int]) -> None:
        fetches = self._fetches.setdefault(source, deque())
        if len(fetches) == MOST_FETCHES or source not in self._mailboxes:
            raise ProtocolError(f"rank {source} sent a fetch that no worker sends; {SAME_VERSION}")
        fetches.append(fetch)

    def _reply(self, rank: int, offset: int, n_bytes: int, tag: int) -> None:
        # Send a copy: the server goes on changing its region.
        copy = self._region[offset : offset + n_bytes].copy()
        self._replies.append((self._comm.Isend([copy, MPI.BYTE], rank, tag), copy))
