"""Residuals of a group of workers: they belong to its leader, and the next leader takes them over.

The leader of a group pushes the sums of the updates of all its workers (mpips.worker.groups.tables), so its
residuals are those of the group. When the leader ends before others, the next leader asks for them, once in a
launch, when it ends the first clock that it leads. From then on it owes them: its next encoded push to each
part of a table adds them to the update (`mpips.worker.paths.feedback`), and its own residual has them from
then on.

Writers and readers. Leader m has finished in the group before any worker finds itself the leader. It writes
its residuals no more: it pushes nothing. It answers with copies. Questions and answers are messages of MPI,
whose order for one pair of workers is that of their sends; a worker sends a question to one other worker at a
time, and waits.

Which residuals are owed. A part of a table has been pushed by a worker if its residual has a tag, other than
that of the beginning. Let n be the new leader, and consider a part that n has not pushed.

* The newest of the lower workers that has pushed the part has taken over all earlier residuals with its first
  push. So n owes that worker's residual, and none of lower ones. Those between them have pushed nothing: they
  have only what they took from a checkpoint, and n also owes that.
* If n has pushed the part, it owes nothing. This also holds when n continues in memory after a restart: its
  first push contained what it owed, and its residual is that after its last push
  (mpips.worker.feedback.residuals). If that push is not complete at the server, the tag of the beginning is
  in force, n asks again, and gets the same values: m changes its residual no more, and it also lies in memory
  that outlives the launch.
* If n has taken over in one launch, pushed nothing to the part, and leads no clock in the next one, it asks
  again when it ends (`GroupedTables.finish`): what it owes was in the memory of its process.
* A residual that is lost (mpips.worker.feedback.residuals) contained what the worker owed before. It counts
  as pushed.

Every wait ends. n waits before its ticks, but not for the end of a clock: m has ended its last one. m answers
in every wait and behind its end, until the job ends. One that had finished before a restart answers from the
first wait of its program on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips.worker.feedback.residuals import Residuals

Float32 = NDArray[np.float32]

_ASK, _PARTS, _VALUES = 57, 58, 59  # tags
_MOST = 1 << 24  # values of a message


@dataclass(frozen=True)
class HandoverPart:
    """The parts of start-up that a handover needs.

    Attributes:
        comm: Communicator of the job for messages between workers.
        ranks: Rank of each worker of the group, by number.
        number: Number of this worker in the group.
        residuals: The residuals of this worker.
        tables: Indices in the job of the tables whose updates the group sums.
        enter: Called before calls of MPI.
    """

    comm: Any
    ranks: tuple[int, ...]
    number: int
    residuals: Residuals
    tables: Collection[int]
    enter: Callable[[], object] = lambda: None


@dataclass
class _Answer:
    """An answer that is under way: the worker that gives it, its buffers and its requests."""

    worker: int
    pushed: NDArray[np.uint8]
    values: Mapping[tuple[int, int], Float32]
    requests: list[Any]


@dataclass
class ResidualHandover:
    """One worker's end of the handover in its group. Not thread-safe. No call blocks.

    Attributes:
        part: See HandoverPart.
        asked: Number of the worker that has not answered yet; None: no answer is awaited.
    """

    part: HandoverPart
    asked: int | None = None
    _answer: _Answer | None = None
    _owed: set[tuple[int, int]] = field(
        default_factory=set
    )  # parts whose newest residual is not found
    _sends: list[tuple[Any, Any]] = field(default_factory=list)  # request and its buffer

    def __post_init__(self) -> None:
        """Find the parts of tables of the group."""
        self._spans = [s for s in self.part.residuals.spans if s.table in self.part.tables]

    def begin(self) -> None:
        """Begin to ask for what this worker, which leads the group now, owes."""
        residuals = self.part.residuals
        keys = [(span.table, span.server) for span in self._spans]
        self._owed = {key for key in keys if not residuals.has_pushed(*key)}
        self._ask(self.part.number - 1)

    def _ask(self, worker: int) -> None:
        """Ask a worker of the group, unless nothing is left to find, or to be asked."""
        if not self._owed or worker < 0:
            self._owed, self.asked, self._answer = set(), None, None
            return
        comm, rank = self.part.comm, self.part.ranks[worker]
        self.part.enter()
        pushed = np.zeros(len(self._spans), np.uint8)
        values = {(s.table, s.server): np.empty(s.stop - s.start, np.float32) for s in self._spans}
        requests = [comm.Irecv(pushed, rank, _PARTS)]
        for array in values.values():
            requests += [comm.Irecv(piece, rank, _VALUES) for piece in _pieces(array)]
        self._send(np.ones(1, np.uint8), rank, _ASK)
        self.asked, self._answer = worker, _Answer(worker, pushed, values, requests)

    def is_done(self) -> bool:
        """Take an answer that has come, and ask the next worker; True if nothing is left to ask for."""
        answer = self._answer
        if answer is None:
            return True
        self.part.enter()
        answer.requests = [request for request in answer.requests if not request.Test()]
        if answer.requests:
            return False
        for (key, values), pushed in zip(answer.values.items(), answer.pushed, strict=True):
            if key in self._owed:
                self.part.residuals.owe(*key, values)
                if pushed:
                    self._owed.discard(key)
        self._ask(answer.worker - 1)
        return self._answer is None

    def poll(self) -> None:
        """Answer questions that have come."""
        comm = self.part.comm
        self.part.enter()
        self._sends = [(request, buffer) for request, buffer in self._sends if not request.Test()]
        # Only a later leader asks, and it is a higher worker.
        for rank in self.part.ranks[self.part.number + 1 :]:
            if comm.Iprobe(rank, _ASK):
                comm.Recv(np.zeros(1, np.uint8), rank, _ASK)
                self._give(rank)

    def _give(self, rank: int) -> None:
        residuals = self.part.residuals
        keys = [(span.table, span.server) for span in self._spans]
        pushed = np.array([residuals.has_pushed(*key) for key in keys], np.uint8)
        self._send(pushed, rank, _PARTS)
        for key in keys:
            for piece in _pieces(residuals.part(*key)):
                self._send(piece, rank, _VALUES)

    def _send(self, buffer: NDArray[Any], rank: int, tag: int) -> None:
        self._sends.append((self.part.comm.Isend(buffer, rank, tag), buffer))

    @property
    def is_idle(self) -> bool:
        """True if no message of this worker is under way."""
        self.poll()
        return not self._sends


def _pieces(array: Float32) -> list[Float32]:
    return [array[at : at + _MOST] for at in range(0, len(array), _MOST)]
