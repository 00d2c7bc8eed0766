"""Messages between two workers: small notes, and values of any size in pieces.

A value is a note, its head, which gives its size, and pieces of at most `PIECE_BYTES`, so that no count
exceeds 2**31. Values of at most `INLINE_BYTES` are in the head. MPI delivers the notes of a sender in the
order in which they were sent, and so its pieces. The receiver takes the pieces of a value before it takes
those of a later one from this sender.

No call blocks. MPI makes progress only within these calls, so `poll` must be called until all sends are done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

NOTE_TAG = 41
PIECE_TAG = 42
PIECE_BYTES = 64 << 20  # bytes, size of all pieces of a value but the last
INLINE_BYTES = 2048  # bytes, largest value within its head
NOTE_BYTES = 4096  # bytes, largest note: every MPI sends it without waiting for the receiver
_CALL_BYTES = 480  # bytes, longest text of a call in a head
_LATE = 4  # late workers in one answer at most
_DOING_BYTES = 240  # bytes, longest text about a late worker

Buffer: TypeAlias = npt.NDArray[np.uint8]


class Head(msgspec.Struct, tag="head", array_like=True):
    """The head of a value.

    Attributes:
        number: Number of the collective operation.
        call: The sender's call, for errors, as in "barrier 'warm'".
        digest: Digest of the whole call; `call` may be cut off.
        n_bytes: Size of the value in bytes.
        value: The value, if it has at most INLINE_BYTES; else b"".
    """

    number: int
    call: str
    digest: bytes
    n_bytes: int
    value: bytes = b""


class LateQuestion(msgspec.Struct, tag="question", array_like=True):
    """A question to a worker: which workers have not come to the operation of this number?"""

    number: int


class LateAnswer(msgspec.Struct, tag="answer", array_like=True):
    """The answer to a question.

    Attributes:
        number: Number of the operation.
        late: Workers that are late as far as the sender knows, each with its activity.
    """

    number: int
    late: list[tuple[int, str]]


Note: TypeAlias = Head | LateQuestion | LateAnswer

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Note).decode


class Pending(Protocol):
    """A request of MPI."""

    def Test(self) -> bool:
        """Return True if the operation is complete, and make progress."""


class PointToPoint(Protocol):
    """The calls of a communicator that are used here."""

    def Isend(self, buf: Any, dest: int, tag: int, /) -> Pending:
        """Start to send."""

    def Irecv(self, buf: Any, source: int, tag: int, /) -> Pending:
        """Start to receive."""

    def Iprobe(self, source: int, tag: int, /) -> bool:
        """Return True if a message can be received."""


class IncomingValue:
    """A value whose pieces are being received.

    Attributes:
        value: The buffer, uint8; complete once `complete` has returned True.
    """

    def __init__(self, value: Buffer, requests: list[Pending]) -> None:
        """Receive into `value` by these requests, one for each piece."""
        self.value = value
        self._requests = requests

    def complete(self) -> bool:
        """Return True if all pieces have arrived."""
        self._requests = [request for request in self._requests if not request.Test()]
        return not self._requests


class OutgoingValue:
    """A note or value that is being sent. It holds its buffers until the sends are complete.

    Attributes:
        worker: The worker that receives it.
    """

    def __init__(self, worker: int, sends: list[tuple[Pending, Buffer]]) -> None:
        """Watch these sends, each with its buffer."""
        self.worker = worker
        self._sends = sends

    def complete(self) -> bool:
        """Return True if all buffers have been sent."""
        self._sends = [send for send in self._sends if not send[0].Test()]
        return not self._sends


class Mail:
    """Sends and receives notes and values on a communicator. Main thread only.

    Nothing else may use NOTE_TAG and PIECE_TAG on this communicator.
    """

    def __init__(
        self,
        comm: PointToPoint,
        rank_of: dict[int, int],
        piece_bytes: int = PIECE_BYTES,
        enter: Callable[[], None] = lambda: None,
    ) -> None:
        """Exchange messages with some workers.

        Args:
            comm: Communicator of the job's ranks.
            rank_of: Rank of each worker with which messages are exchanged.
            piece_bytes: Size of a piece in bytes; equal on all workers.
            enter: Called before MPI; see mpips.transport.gate.
        """
        self._enter = enter
        self._comm = comm
        self._rank_of = rank_of
        self._piece_bytes = piece_bytes
        self._sends: list[OutgoingValue] = []
        self._arriving: dict[int, deque[tuple[Pending, Buffer]]] = {w: deque() for w in rank_of}

    def tell(self, worker: int, note: Note) -> None:
        """Start to send a note; return at once."""
        self._enter()
        self._sends.append(OutgoingValue(worker, [self._send_note(worker, note)]))

    def send(self, worker: int, head: Head, value: Buffer) -> OutgoingValue:
        """Start to send a value; return at once. `value` must not change until the result is complete.

        Args:
            worker: The receiver.
            head: Its `n_bytes` and `value` are set here.
            value: uint8, shape (n,).
        """
        self._enter()
        head = msgspec.structs.replace(head, n_bytes=len(value), value=b"")
        if len(value) <= INLINE_BYTES:
            head.value = value.tobytes()
            return OutgoingValue(worker, [self._send_note(worker, head)])
        sends = [self._send_note(worker, head)]
        for piece in self._pieces(value):
            sends.append((self._comm.Isend(piece, self._rank_of[worker], PIECE_TAG), piece))
        return OutgoingValue(worker, sends)

    def receive(self, worker: int, head: Head) -> IncomingValue:
        """Start to receive the value of a head, into a new buffer. Take the heads of a worker in order."""
        if head.n_bytes <= INLINE_BYTES:
            return IncomingValue(np.frombuffer(head.value, np.uint8), [])
        self._enter()
        value = np.empty(head.n_bytes, np.uint8)
        rank = self._rank_of[worker]
        return IncomingValue(
            value, [self._comm.Irecv(piece, rank, PIECE_TAG) for piece in self._pieces(value)]
        )

    def poll(self) -> list[tuple[int, Note]]:
        """Return all notes that have arrived, each with its sender, in order for each sender."""
        self._enter()
        self._sends = [send for send in self._sends if not send.complete()]
        arrived: list[tuple[int, Note]] = []
        for worker, rank in self._rank_of.items():
            queue = self._arriving[worker]
            while self._comm.Iprobe(rank, NOTE_TAG):
                room = np.zeros(NOTE_BYTES, np.uint8)
                queue.append((self._comm.Irecv(room, rank, NOTE_TAG), room))
            while queue and queue[0][0].Test():
                arrived.append((worker, _unpack(queue.popleft()[1])))
        return arrived

    def _send_note(self, worker: int, note: Note) -> tuple[Pending, Buffer]:
        data = pack(note)
        return self._comm.Isend(data, self._rank_of[worker], NOTE_TAG), data

    def _pieces(self, value: Buffer) -> Iterator[Buffer]:
        for start in range(0, len(value), self._piece_bytes):
            yield value[start : start + self._piece_bytes]


def clip(text: str, n_bytes: int = _CALL_BYTES) -> str:
    """Return a text without what exceeds a number of bytes in UTF-8."""
    return text.encode()[:n_bytes].decode(errors="ignore")


def answer(number: int, late: Iterable[tuple[int, str]]) -> LateAnswer:
    """Return an answer that fits into a note: the first late workers, with short texts."""
    rows = [(worker, clip(doing, _DOING_BYTES)) for worker, doing in late]
    return LateAnswer(number, rows[:_LATE])


def pack(note: Note) -> Buffer:
    """Return a note as bytes: its length in 4 bytes, then the note itself."""
    data = _encode(note)
    if len(data) + 4 > NOTE_BYTES:
        raise ValueError(f"a note of {len(data)} bytes exceeds {NOTE_BYTES - 4} bytes")
    return np.frombuffer(len(data).to_bytes(4, "little") + data, np.uint8)


def _unpack(room: Buffer) -> Note:
    n_bytes = int.from_bytes(room[:4].tobytes(), "little")
    note: Note = _decode(room[4 : 4 + n_bytes].tobytes())
    return note
