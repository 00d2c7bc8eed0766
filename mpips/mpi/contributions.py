"""Updates of replicated tables that travel between nodes.

Every worker sends each of its pushes, closes and clocks to one worker of each other node. The receiver writes
them into the memory of its node, as if the sender were there (native/src/reduction/reduction.hpp). So every
node has the pushes of all workers and applies their sum by itself, in the order of the workers.

A message is a head of 48 bytes, followed for a push by the values in pieces. MPI delivers the heads of a
sender in order, and so its pieces; the receiver takes the pieces of a push before the next head.

Flow. The receiver takes the values of a push of clock c + 1 only when its node has applied the update of
clock c, since they lie where those of clock c lay; until then heads behind it wait. That cannot deadlock: a
head of clock c + 1 stands behind everything that its sender sends in clock c, so what all nodes need for
clock c is never behind such a head. The sender writes its next push over its own memory only when its sends
are complete (`is_idle`).

Memory that outlives a launch (mpips.recovery.node_tables). The receiver answers every head of a tick when it
has taken it, and so all messages of that clock before it; the sender waits for the answers of all receivers
(`is_received`) before a server gets its tick. Each answer belongs to one tick, so none is left at the end.
Two further messages report that a worker's ticks are at all servers, and that it has changed hyperparameters.

Comparison. At the clocks of `Replicated(check_every=N)` a worker sends a digest of its node's values and
state along the same way. The receiver compares it with its own digest of that clock, whichever comes first.

No call blocks. MPI makes progress only within these calls. Main thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mpips.errors import DivergenceError
from mpips.mpi.mail import PIECE_BYTES, Pending, PointToPoint

TAGS = (43, 44, 50)  # of heads, values and answers
_WORDS = 6  # of a head: kind, table, clock, number of the push, hash of the rule or digest, bytes

Buffer = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]


class _Kind(IntEnum):
    PUSH = 1
    CLOSE = 2
    TICK = 3
    FINISH = 4
    DIGEST = 5
    SENT = 6
    RULE = 7


class Notes(Protocol):
    """The native reduction, as far as contributions of other nodes need it."""

    def room_for(self, table: int, clock: int) -> bool:
        """Return True if a push to (table, clock) may be written."""

    def note_push(self, worker: int, table: int, clock: int, pushes: int, rule: int) -> None:
        """Note a complete push."""

    def note_close(self, worker: int, table: int, clock: int) -> None:
        """Note a closed table."""

    def note_tick(self, worker: int, clock: int) -> None:
        """Note the end of a clock."""

    def note_finish(self, worker: int, clock: int) -> None:
        """Note that a worker has finished."""

    def note_sent(self, worker: int, clocks: int) -> None:
        """Note that the ticks of a worker's first `clocks` clocks are at all servers."""

    def note_rule(self, worker: int, table: int, clock: int, raw: Buffer) -> None:
        """Note a change of hyperparameters."""


# Return the memory for push `number` (from 0) of a worker to a table.
Room = Callable[[int, int, int], Buffer]


class _Sender:
    """The messages of one worker of another node."""

    def __init__(
        self, comm: PointToPoint, worker: int, rank: int, tags: tuple[int, int, int]
    ) -> None:
        self.worker = worker
        self._head_tag, self._values_tag, _ = tags
        self._comm = comm
        self._rank = rank
        self._head = np.zeros(_WORDS, np.uint64)
        self._arrival: Pending | None = None
        self._has_begun = False
        self._pieces: list[Pending] | None = None
        self.rule = np.zeros(0, np.uint8)  # hyperparameters under way
        self.has_finished = False

    def head(self) -> Words | None:
        """Return the head that has arrived; None if it has not arrived yet."""
        if self.has_finished:
            return None
        if not self._has_begun:
            self._has_begun = True
            self.next()
        if self._arrival is not None:
            if not self._arrival.Test():
                return None
            self._arrival = None
        return self._head

    def next(self) -> None:
        """Receive the next head."""
        self._arrival = self._comm.Irecv(self._head, self._rank, self._head_tag)

    def receive(self, room: Callable[[], Buffer], piece_bytes: int) -> bool:
        """Receive the values of the push at the head into `room()`; True when they are there."""
        if self._pieces is None:
            parts = _pieces(room(), piece_bytes)
            self._pieces = [self._comm.Irecv(part, self._rank, self._values_tag) for part in parts]
        self._pieces = [piece for piece in self._pieces if not piece.Test()]
        if self._pieces:
            return False
        self._pieces = None
        return True


class Contributions:
    """One worker's messages about replicated tables to and from workers of other nodes."""

    def __init__(
        self,
        comm: PointToPoint,
        rank_of: Mapping[int, int],
        receivers: Sequence[int],
        senders: Sequence[int],
        notes: Notes,
        room: Room,
        names: tuple[Sequence[str], Sequence[str]],
        piece_bytes: int = PIECE_BYTES,
        answers: bool = False,
        tags: tuple[int, int, int] = TAGS,
        enter: Callable[[], None] = lambda: None,
    ) -> None:
        """Send and receive nothing yet; the first `poll` begins to receive.

        Args:
            comm: Communicator of the workers; nothing else may use `tags` on it.
            rank_of: Rank of each worker.
            receivers: One worker of each other node, which receives from this one.
            senders: Workers of other nodes from which this one receives.
            notes: Takes what arrives.
            room: Memory for pushes that arrive.
            names: Names of workers and of tables, for errors.
            piece_bytes: Size of a piece in bytes; equal on all workers.
            answers: Receivers answer ticks; equal on all workers.
            tags: Tags of heads, values and answers.
            enter: Called before MPI; see mpips.transport.gate.
        """
        self._enter = enter
        self._comm = comm
        self._rank_of = rank_of
        self._receivers = list(receivers)
        self._senders = [_Sender(comm, w, rank_of[w], tags) for w in senders]
        self._head_tag, self._values_tag, self._answer_tag = tags
        self._notes = notes
        self._room = room
        self._workers, self._tables = names
        self._piece_bytes = piece_bytes
        # (receiver, request, its buffer) of sends under way, in order.
        self._sends: deque[tuple[int, Pending, object]] = deque()
        self._answers: deque[tuple[int, Pending]] | None = deque() if answers else None  # awaited
        self._own: dict[tuple[int, int], int] = {}  # digests by table and clock
        self._others: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (worker, digest)

    def push(self, table: int, clock: int, pushes: int, rule: int, values: Buffer) -> None:
        """Send push number `pushes` (from 1). `values` must not change until `is_idle`."""
        self._send(_Kind.PUSH, table, clock, pushes, rule, values)

    def close(self, table: int, clock: int) -> None:
        """Send that this worker has closed a table."""
        self._send(_Kind.CLOSE, table, clock)

    def tick(self, clock: int) -> None:
        """Send that this worker has ended a clock."""
        self._send(_Kind.TICK, 0, clock)
        if self._answers is None:
            return
        for worker in self._receivers:
            answer = np.zeros(1, np.uint64)
            request = self._comm.Irecv(answer, self._rank_of[worker], self._answer_tag)
            self._answers.append((worker, request))

    def sent(self, clocks: int) -> None:
        """Send that the ticks of this worker's first `clocks` clocks are at all servers."""
        self._send(_Kind.SENT, 0, clocks)

    def rule(self, table: int, clock: int, raw: Buffer) -> None:
        """Send new hyperparameters. `raw` must not change until `is_idle`."""
        self._send(_Kind.RULE, table, clock, 0, 0, raw)

    @property
    def is_received(self) -> bool:
        """True if all receivers have taken everything up to this worker's last tick."""
        self._enter()
        while self._answers and self._answers[0][1].Test():
            self._answers.popleft()
        return not self._answers

    def finish(self, clock: int) -> None:
        """Send that this worker ends no more clocks: it has ended `clock` of them."""
        self._send(_Kind.FINISH, 0, clock)

    def compare(self, table: int, clock: int, digest: int) -> None:
        """Send the digest of this node's values and state at a clock, and compare those of other nodes.

        Raises:
            DivergenceError: Another node has other values.
        """
        # The node of a slower worker may compare them much later; keep those of one check.
        self._own = {key: d for key, d in self._own.items() if key[0] != table or key[1] >= clock}
        self._own[table, clock] = digest
        self._send(_Kind.DIGEST, table, clock, 0, digest)
        for worker, other in self._others.pop((table, clock), ()):
            self._check(worker, table, clock, other)

    def _check(self, worker: int, table: int, clock: int, digest: int) -> None:
        if self._own[table, clock] != digest:
            raise DivergenceError(
                f"the replicated table {self._tables[table]!r} differs between the node of "
                f"{self._workers[worker]} and this node at clock {clock}: memory was changed by other than "
                "pushes, or the nodes' kernels differ (mpips doctor); start again from a checkpoint"
            )

    @property
    def is_idle(self) -> bool:
        """True if all that was sent has left this worker."""
        self._drop_sent()
        return not self._sends

    def _drop_sent(self) -> None:
        """Forget the sends that are complete, in order."""
        self._enter()
        while self._sends and self._sends[0][1].Test():
            self._sends.popleft()

    @property
    def slow_receiver(self) -> int | None:
        """The worker that has not received, or not answered, the oldest message under way."""
        if self._sends:
            return self._sends[0][0]
        return self._answers[0][0] if self._answers else None

    def has_ended(self) -> bool:
        """Return True if nothing is under way, and all senders have finished."""
        self.poll()
        return self.is_idle and all(sender.has_finished for sender in self._senders)

    def poll(self) -> None:
        """Take what has arrived.

        Raises:
            DivergenceError: Another node has other values.
        """
        self._drop_sent()
        for sender in self._senders:
            while (head := sender.head()) is not None and self._take(sender, head):
                pass

    def _take(self, sender: _Sender, head: Words) -> bool:
        """Take the message of a head; False if it must wait."""
        kind, table, clock, pushes, word, n_bytes = (int(value) for value in head)
        notes, worker = self._notes, sender.worker
        if kind == _Kind.PUSH:
            if not notes.room_for(table, clock):
                return False
            if not sender.receive(
                lambda: self._room(worker, table, pushes - 1)[:n_bytes], self._piece_bytes
            ):
                return False
            notes.note_push(worker, table, clock, pushes, word)
        elif kind == _Kind.CLOSE:
            notes.note_close(worker, table, clock)
        elif kind == _Kind.TICK:
            notes.note_tick(worker, clock)
            if self._answers is not None:
                answer, rank = np.array([clock], np.uint64), self._rank_of[worker]
                self._sends.append(
                    (worker, self._comm.Isend(answer, rank, self._answer_tag), answer)
                )
        elif kind == _Kind.SENT:
            notes.note_sent(worker, clock)
        elif kind == _Kind.RULE:
            if sender.rule.nbytes != n_bytes:
                sender.rule = np.zeros(n_bytes, np.uint8)
            if not sender.receive(lambda: sender.rule, self._piece_bytes):
                return False
            notes.note_rule(worker, table, clock, sender.rule)
        elif kind == _Kind.DIGEST:
            if (table, clock) in self._own:
                self._check(worker, table, clock, word)
            else:
                self._others.setdefault((table, clock), []).append((worker, word))
        else:
            notes.note_finish(worker, clock)
            sender.has_finished = True
            return True
        sender.next()
        return True

    def _send(
        self,
        kind: _Kind,
        table: int,
        clock: int,
        pushes: int = 0,
        word: int = 0,
        values: Buffer | None = None,
    ) -> None:
        self._enter()
        n_bytes = values.nbytes if values is not None else 0
        head = np.array([kind, table, clock, pushes, word, n_bytes], np.uint64)
        for worker in self._receivers:
            rank = self._rank_of[worker]
            self._sends.append((worker, self._comm.Isend(head, rank, self._head_tag), head))
            for part in _pieces(values, self._piece_bytes) if values is not None else ():
                self._sends.append((worker, self._comm.Isend(part, rank, self._values_tag), part))


def _pieces(values: Buffer, piece_bytes: int) -> list[Buffer]:
    return [values[start : start + piece_bytes] for start in range(0, len(values), piece_bytes)]
