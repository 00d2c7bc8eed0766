"""Arrays that one worker sends another, without waiting inside a call.

A message is a note, its head, with tag, clock, dtype and shape, and the values in pieces. Values of at most
`INLINE_BYTES` are in the head. MPI delivers the notes of a sender in the order in which they were sent, and
so its pieces. The receiver starts to receive the pieces of a message when it takes the head, so the pieces of
two messages cannot be exchanged for each other.

Acknowledgements. The receiver acknowledges a message when its program has received it, or drops it at the end
of its program. So the sender has the number of bytes that others still hold for it (`unreceived_bytes`), and
`is_idle` at the sender means that no message of it is under way: a communicator can then be freed, and
nothing of one job reaches the next one.

Pieces. Within a node a piece is large: MPI copies it from one process to the other, and the sender need not
call MPI meanwhile. (1 MiB: 0.5 ms, as with any other size of pieces.) Between nodes a large piece waits for
calls of its sender, which may compute for long. A small one travels at once by itself, as far as the network
has room for it. (1 MiB over TCP, while the sender computes for 50 ms: 0.5 ms in pieces of 32 KiB, 42 ms in
one piece or in pieces of 64 KiB.)

Late workers. A worker that waits sends its partner a question (`ask`). The partner answers in any of its
waits with its activity. If it waits for a message itself, it also answers with what it has been answered.

No call blocks. MPI makes progress only within these calls, so `poll` must be called until `is_idle`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.errors import ProtocolError
from mpips.mpi.mail import (
    INLINE_BYTES,
    NOTE_BYTES,
    PIECE_BYTES,
    Buffer,
    OutgoingValue,
    Pending,
    PointToPoint,
    clip,
)
from mpips.process import patience

AnyArray: TypeAlias = npt.NDArray[Any]

HEAD_TAG = 60
VALUE_TAG = 61
FAR_PIECE_BYTES = 32 << 10  # bytes, size of a piece between nodes
MOST_DIMENSIONS = 32  # of an array; a head has room for them
# Bytes that a message counts beside its values: its head, and the objects that hold it.
MESSAGE_BYTES = 512
POLL_INTERVAL_S = 0.005  # s, least time between two looks for messages in waits for something else
_ROWS = 4  # workers in one answer at most
_DOING_BYTES = 240  # bytes, longest text about one of them


class ArrayHead(msgspec.Struct, tag="head", array_like=True):
    """The head of a message.

    Attributes:
        sender: Index of the worker that sends it.
        number: Its number among the messages of this sender to this receiver, from 0.
        tag: The tag that the programs have given it.
        clock: Clock of the sender's program.
        dtype: The dtype as NumPy writes it, such as "<f4".
        shape: The shape.
        piece_bytes: Size of all pieces but the last.
        value: The values, if they have at most INLINE_BYTES; else b"".
    """

    sender: int
    number: int
    tag: int
    clock: int
    dtype: str
    shape: list[int]
    piece_bytes: int
    value: bytes = b""

    @property
    def n_bytes(self) -> int:
        """Size of the values in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Acknowledgement(msgspec.Struct, tag="taken", array_like=True):
    """The receiver's answer to a message.

    Attributes:
        sender: Index of the worker that received the message.
        number: Number of the message.
        was_dropped: The worker's program ended without receiving it.
    """

    sender: int
    number: int
    was_dropped: bool


class ActivityQuestion(msgspec.Struct, tag="question", array_like=True):
    """A question to a worker: what does it do? `sender`: the worker that waits for it."""

    sender: int


class ActivityAnswer(msgspec.Struct, tag="answer", array_like=True):
    """The answer to a question.

    Attributes:
        sender: Index of the worker that answers.
        has_ended: Its program has ended: it sends no more messages.
        rows: Its activity, then that of the workers for which it waits, each with the worker's index.
    """

    sender: int
    has_ended: bool
    rows: list[tuple[int, str]]


_Note: TypeAlias = ArrayHead | Acknowledgement | ActivityQuestion | ActivityAnswer
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Note).decode


def any_source() -> int:
    """Return the number by which MPI means any rank."""
    from mpi4py import MPI

    return MPI.ANY_SOURCE


class ArrivedArray:
    """A message whose head has arrived.

    Attributes:
        head: Its head.
        array: The array; complete once `complete` has returned True.
    """

    def __init__(self, head: ArrayHead, array: AnyArray, pieces: list[Pending]) -> None:
        """Receive into `array` by these requests, one for each piece."""
        self.head = head
        self.array = array
        self._pieces = pieces

    def complete(self) -> bool:
        """Return True if all values have arrived."""
        self._pieces = [piece for piece in self._pieces if not piece.Test()]
        return not self._pieces


class _Partner:
    """The messages between this worker and another one."""

    def __init__(self) -> None:
        self.n_sent = self.n_heads = 0  # messages sent to it, heads received from it
        self.unreceived: dict[int, int] = {}  # bytes of messages that it has not acknowledged
        self.arrived: deque[ArrivedArray] = deque()
        self.asked: float | None = None  # running s of a question that is not answered
        self.answer: ActivityAnswer | None = None


class ArrayMail:
    """The messages of one worker to and from others. Main thread only.

    Nothing else may use HEAD_TAG and VALUE_TAG on its communicator.

    Attributes:
        awaited: Index of the worker for whose message this one waits; None: it waits for none.
        n_dropped: Messages of this worker that others have not received before their programs ended.
        dropped_by: Index of the worker that dropped the last one of them; None: nothing was dropped.
    """

    def __init__(
        self,
        comm: PointToPoint,
        index: int,
        rank_of: Sequence[int],
        is_far: Callable[[int], bool],
        doing: Callable[[], str],
        any_source: int,
        enter: Callable[[], None] = lambda: None,
    ) -> None:
        """Exchange messages with all workers.

        Args:
            comm: Communicator of the job's ranks.
            index: Index of this worker.
            rank_of: Rank of each worker.
            is_far: `is_far(worker)` returns True if a worker is on another node.
            doing: Returns this worker's activity, for the errors of others.
            any_source: See the function of this name.
            enter: Called before MPI; see mpips.transport.gate.
        """
        self._comm = comm
        self._index = index
        self._rank_of = list(rank_of)
        self._is_far = is_far
        self._doing = doing
        self._any = any_source
        self._enter = enter
        self._partners: dict[int, _Partner] = {}
        self._sends: list[OutgoingValue] = []
        self._arriving: deque[tuple[Pending, Buffer]] = deque()
        self._next_poll = 0.0
        self._has_ended = False
        self.awaited: int | None = None
        self.n_dropped = 0
        self.dropped_by: int | None = None

    def send(self, worker: int, tag: int, clock: int, array: AnyArray) -> None:
        """Start to send a copy of an array; return at once.

        Args:
            worker: The receiver, another worker.
            tag: The message's tag, 0 or more, in 63 bits.
            clock: Clock of this worker's program.
            array: Numbers, at most MOST_DIMENSIONS dimensions, any strides.
        """
        partner = self._partner(worker)
        copy = np.array(array, order="C", copy=True)
        values: Buffer = copy.reshape(-1).view(np.uint8)
        head = ArrayHead(
            self._index, partner.n_sent, tag, clock, array.dtype.str, list(array.shape), PIECE_BYTES
        )
        if self._is_far(worker):
            head.piece_bytes = FAR_PIECE_BYTES
        self._enter()
        if len(values) <= INLINE_BYTES:
            head.value = values.tobytes()
            sends = [self._send_note(worker, head)]
        else:
            sends = [self._send_note(worker, head)]
            for piece in _pieces(values, head.piece_bytes):
                sends.append((self._comm.Isend(piece, self._rank_of[worker], VALUE_TAG), piece))
        self._sends.append(OutgoingValue(worker, sends))
        partner.unreceived[partner.n_sent] = len(values) + MESSAGE_BYTES
        partner.n_sent += 1

    def unreceived_bytes(self, worker: int) -> int:
        """Return the bytes of this worker's messages that another one's program has not received."""
        return sum(self._partner(worker).unreceived.values())

    def find(self, worker: int, tag: int) -> ArrivedArray | None:
        """Return the first message of a worker with a tag whose head has arrived; None: no such head."""
        return next((m for m in self._partner(worker).arrived if m.head.tag == tag), None)

    def tags_of(self, worker: int) -> list[int]:
        """Return the tags of the messages of a worker whose heads have arrived, in their order."""
        return [message.head.tag for message in self._partner(worker).arrived]

    def take(self, message: ArrivedArray) -> None:
        """Remove a complete message, and acknowledge it."""
        self._remove(message, was_dropped=False)

    def ask(self, worker: int) -> None:
        """Send a worker a question, unless one is still without answer; return at once."""
        partner = self._partner(worker)
        if partner.asked is None:
            partner.asked = patience.running_s()
            self._tell(worker, ActivityQuestion(self._index))

    def answer_of(self, worker: int) -> ActivityAnswer | None:
        """Return the last answer of a worker; None: it has not answered."""
        return self._partner(worker).answer

    def silent_s(self, worker: int) -> float:
        """Return the running seconds for which a question to a worker has been without answer; 0: none is."""
        asked = self._partner(worker).asked
        return 0.0 if asked is None else patience.waited_s(asked)

    def forget_answer(self, worker: int) -> None:
        """Forget the last answer of a worker, which belongs to an earlier wait."""
        self._partner(worker).answer = None

    def glance(self) -> None:
        """Do the same as `poll` if the last time is long enough ago. Cheap; call it in every other wait."""
        if patience.running_s() >= self._next_poll:
            self.poll()

    def poll(self) -> None:
        """Take all notes that have arrived, and advance all messages. Does not block."""
        self._enter()
        self._sends = [send for send in self._sends if not send.complete()]
        while self._comm.Iprobe(self._any, HEAD_TAG):
            room = np.zeros(NOTE_BYTES, np.uint8)
            self._arriving.append((self._comm.Irecv(room, self._any, HEAD_TAG), room))
        while self._arriving and self._arriving[0][0].Test():
            self._take(_unpack(self._arriving.popleft()[1]))
        if self._has_ended:
            self._drop()
        self._next_poll = patience.running_s() + POLL_INTERVAL_S

    def end(self) -> None:
        """Note that this worker's program has ended; messages to it are dropped from here on."""
        self._has_ended = True
        self.poll()

    @property
    def is_idle(self) -> bool:
        """True if no message and no question of this worker is under way, nor a message to it."""
        if self._sends or self._arriving:
            return False
        partners = self._partners.values()
        return not any(p.unreceived or p.arrived or p.asked is not None for p in partners)

    @property
    def is_moving(self) -> bool:
        """True if notes or values travel between this worker and others, which looks at both ends advance."""
        if self._sends or self._arriving:
            return True
        return any(not m.complete() for p in self._partners.values() for m in p.arrived)

    def late(self) -> list[int]:
        """Return the workers that have not received messages of this one, or not answered it."""
        found = self._partners.items()
        return [worker for worker, p in found if p.unreceived or p.asked is not None]

    def _partner(self, worker: int) -> _Partner:
        return self._partners.setdefault(worker, _Partner())

    def _take(self, note: _Note) -> None:
        partner = self._partner(note.sender)
        if isinstance(note, ArrayHead):
            self._begin(partner, note)
        elif isinstance(note, Acknowledgement):
            partner.unreceived.pop(note.number)
            if note.was_dropped:
                self.n_dropped += 1
                self.dropped_by = note.sender
        elif isinstance(note, ActivityQuestion):
            self._tell(
                note.sender, ActivityAnswer(self._index, self._has_ended, self._rows(note.sender))
            )
        else:
            partner.asked, partner.answer = None, note

    def _begin(self, partner: _Partner, head: ArrayHead) -> None:
        """Start to receive the values of a head."""
        if head.number != partner.n_heads:
            raise ProtocolError(
                f"worker {self._index} has received message {head.number} of worker {head.sender}, and "
                f"{partner.n_heads} was expected"
            )
        partner.n_heads += 1
        pieces: list[Pending] = []
        if (n_bytes := head.n_bytes) <= INLINE_BYTES:
            values = np.frombuffer(bytearray(head.value), np.uint8)
        else:
            values, rank = np.empty(n_bytes, np.uint8), self._rank_of[head.sender]
            pieces = [
                self._comm.Irecv(piece, rank, VALUE_TAG)
                for piece in _pieces(values, head.piece_bytes)
            ]
        array = values.view(np.dtype(head.dtype)).reshape(head.shape)
        partner.arrived.append(ArrivedArray(head, array, pieces))

    def _drop(self) -> None:
        """Drop all messages that have arrived."""
        for partner in self._partners.values():
            for message in [m for m in partner.arrived if m.complete()]:
                self._remove(message, was_dropped=True)

    def _remove(self, message: ArrivedArray, was_dropped: bool) -> None:
        head = message.head
        self._partner(head.sender).arrived.remove(message)
        self._tell(head.sender, Acknowledgement(self._index, head.number, was_dropped))

    def _rows(self, asker: int) -> list[tuple[int, str]]:
        """Return what this worker answers a question: its activity, and what it has been answered."""
        rows = [(self._index, clip(self._doing(), _DOING_BYTES))]
        if self._has_ended:
            rows = [(self._index, "its program has ended")]
        answer = self._partner(self.awaited).answer if self.awaited is not None else None
        for worker, doing in answer.rows if answer is not None else ():
            if worker not in (self._index, asker):
                rows.append((worker, doing))
        return rows[:_ROWS]

    def _tell(self, worker: int, note: _Note) -> None:
        self._enter()
        self._sends.append(OutgoingValue(worker, [self._send_note(worker, note)]))

    def _send_note(self, worker: int, note: _Note) -> tuple[Pending, Buffer]:
        data = _encode(note)
        packed = np.frombuffer(len(data).to_bytes(4, "little") + data, np.uint8)
        return self._comm.Isend(packed, self._rank_of[worker], HEAD_TAG), packed


def _pieces(values: Buffer, piece_bytes: int) -> list[Buffer]:
    return [values[at : at + piece_bytes] for at in range(0, len(values), piece_bytes)]


def _unpack(room: Buffer) -> _Note:
    n_bytes = int.from_bytes(room[:4].tobytes(), "little")
    note: _Note = _decode(room[4 : 4 + n_bytes].tobytes())
    return note
