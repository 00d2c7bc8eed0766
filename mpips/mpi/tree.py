"""Collective operations of the workers, along a tree of fixed shape, without waiting inside a call.

Worker 0 is the root of a binomial tree: the parent of a worker is its index without the lowest set bit, and
its children are its index plus 1, 2, 4, ... below that bit. So the workers below a child are consecutive, and
a worker has at most log2(workers) neighbours.

Reduction. A worker merges its value with those of its children, in ascending order, and sends the result to
its parent. Arrival does not change the order, so the bits of the result depend only on the number of workers.
The value of the next child is received when that of the child before is merged: a worker holds its own value
and one more. If all workers need the result, it goes down the same tree.

Swap. Two workers whose indices differ in one bit exchange values.

Order. All workers call the same operations in the same order, and each numbers them. A worker begins to
receive and send for an operation when it has received all that it needs for those before. A head contains
number and call, so workers at different calls are found by the first that receives such a head.

Operations without a result for this worker (`everyone` False) go on while the worker computes: each `poll`
advances them. MPI makes progress only in calls, so a worker polls in every wait and at every clock.

Late workers. A worker that has waited for a quarter of the time limit sends questions to the workers for
which it waits directly. A worker that has not come to the operation answers with its activity; one that waits
itself also sends such questions, and answers with the names that it has received. So the names of late
workers go along the tree to all that wait. A question is repeated after a 64th of the time limit, and a tree
of 10,000 workers has 27 edges between two workers, so the names arrive in time. A neighbour that has stopped
to answer is late itself. Questions go only to neighbours, so no worker receives more than log2(workers) of
them in that interval.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from mpips.errors import ConfigError
from mpips.mpi.mail import (
    Buffer,
    Head,
    LateAnswer,
    LateQuestion,
    Mail,
    Note,
    OutgoingValue,
    answer,
    clip,
)
from mpips.process import patience

Merge: TypeAlias = Callable[[Buffer, Buffer], Buffer]
Late: TypeAlias = list[tuple[int, str]]
# A part of an operation: it yields the workers for which it waits, and returns its value.
Steps: TypeAlias = Generator[tuple[int, ...], None, Buffer]

POLL_INTERVAL_S = (
    0.005  # s, least time between two looks for messages while the worker waits elsewhere
)
THE_END = "the end of its program"
_ASK_AFTER = 1 / 4  # share of the time limit after which a waiting worker sends questions
_ASK_EVERY = 1 / 64  # share of the time limit between two questions


def parent_of(index: int) -> int:
    """Return the parent of a worker in the tree; worker 0 has none."""
    return index & (index - 1)


def children_of(index: int, n_workers: int) -> list[int]:
    """Return the children of a worker in the tree, ascending."""
    found, step = [], 1
    while index + step < n_workers and not index & step:
        found.append(index + step)
        step *= 2
    return found


def neighbours_of(index: int, n_workers: int) -> list[int]:
    """Return the workers whose index differs in one bit: parent, children and partners of swaps."""
    bits = range((n_workers - 1).bit_length())
    return [index ^ (1 << bit) for bit in bits if index ^ (1 << bit) < n_workers]


class Operation:
    """One collective operation of this worker.

    Attributes:
        number: Number of the operation, from 0.
        call: The call, for errors.
        digest: Digest of the call.
        received: True once this worker has received what it needs to send its own value on.
        result: The value of this worker, once `done`; None before.
        done: True once nothing is left to receive or send.
        awaited: Workers whose messages are needed next.
        sending: Workers that have not received a value yet, while nothing else is needed.
        asking: True: questions about late workers are sent.
        since: Running s of the call.
    """

    def __init__(self, number: int, call: str) -> None:
        """Number an operation; `run` begins it."""
        self.number = number
        self.call = call
        self.digest = hashlib.blake2b(call.encode(), digest_size=8).digest()
        self.received = False
        self.result: Buffer | None = None
        self.done = False
        self.awaited: tuple[int, ...] = ()
        self.sending: tuple[int, ...] = ()
        self.asking = False
        self.since = patience.running_s()
        self._steps: Steps | None = None

    def run(self, steps: Steps) -> None:
        """Set what `step` does."""
        self._steps = steps

    def step(self) -> None:
        """Do all that is possible now."""
        assert self._steps is not None
        try:
            self.awaited = next(self._steps)
        except StopIteration as end:
            self.result, self.awaited, self._steps = end.value, (), None
            self.received = self.done = True

    def head(self) -> Head:
        """Return the head of a value of this operation."""
        return Head(self.number, clip(self.call), self.digest, 0)


class WorkerTree:
    """The collective operations of one worker. Main thread only.

    Attributes:
        waits: True while the worker waits for an operation and does nothing else.
    """

    def __init__(
        self,
        mail: Mail,
        index: int,
        names: Sequence[str],
        timeout_s: float,
        doing: Callable[[], str],
    ) -> None:
        """Begin without operations; not collective.

        Args:
            mail: Messages to and from `neighbours_of(index, len(names))`.
            index: Index of this worker.
            names: Names of all workers, for errors.
            timeout_s: Time limit of waits, seconds; questions are sent before it.
            doing: Returns the worker's activity, for the errors of others.
        """
        self._mail = mail
        self._index = index
        self._names = names
        self._timeout_s = timeout_s
        self._doing = doing
        self._children = children_of(index, len(names))
        self._next_number = 0
        self._open: list[Operation] = []
        self._heads: dict[
            tuple[int, int], Head
        ] = {}  # heads that have arrived, by sender and number
        self._asked: dict[tuple[int, int], float] = {}  # running s of the first question
        self._answers: dict[tuple[int, int], Late] = {}
        self._answered: dict[tuple[int, int], float] = {}  # running s of the last answer
        self._next_question = self._next_poll = 0.0
        self.waits = False

    def reduce(self, call: str, value: Buffer, merge: Merge, everyone: bool) -> Operation:
        """Begin a reduction; return at once. Collective over workers.

        Args:
            call: The call with all that must be equal on all workers.
            value: This worker's value; it must not change until the operation is done.
            merge: Merges the values of consecutive workers, those of the lower workers first. It may return
                any buffer, also its first argument if it owns it.
            everyone: True: all workers receive the result; False: worker 0 only.
        """
        operation = self._new(call)
        return self._begin(operation, self._reduction(operation, value, merge, everyone))

    def swap(self, call: str, value: Buffer, partner: int) -> Operation:
        """Begin to exchange values with a neighbour; return at once. Collective over workers.

        Args:
            call: The call, equal on all workers.
            value: The value for the partner; it must not change until the operation is done.
            partner: The other worker; this worker's own index: it has no partner, and the result is empty.
        """
        operation = self._new(call)
        return self._begin(operation, self._exchange(operation, value, partner))

    def end(self) -> None:
        """Note that this worker calls no more operations; return at once. Collective over workers."""
        self.reduce(THE_END, np.zeros(0, np.uint8), lambda mine, other: mine, everyone=False)

    @property
    def idle(self) -> bool:
        """True if no operation of this worker is under way."""
        return not self._open

    def glance(self) -> None:
        """Do the same as `poll` if the last time is long enough ago. Cheap; call it in every other wait."""
        if patience.running_s() >= self._next_poll:
            self.poll()

    def poll(self) -> None:
        """Receive messages and advance all operations. Does not block.

        Raises:
            ConfigError: Another worker called another operation.
        """
        for worker, note in self._mail.poll():
            self._take(worker, note)
        self._advance()
        now = patience.running_s()
        self._next_poll = now + POLL_INTERVAL_S
        if self._open and now >= self._next_question:
            self._next_question = now + _ASK_EVERY * self._timeout_s
            self._ask(now)

    def late(self) -> Late:
        """Return the workers that are late, as far as known, each with its activity or ""."""
        found: dict[int, str] = {}
        operation = self._waiting_one()
        if operation is None:
            # Everybody has come, but a long value is not taken.
            receivers = [worker for waiting in self._open for worker in waiting.sending]
            return [(worker, "does not receive a value") for worker in receivers]
        for worker in operation.awaited:
            key = worker, operation.number
            # A neighbour that has stopped since its last answer is late itself, whomever it named.
            since = self._answered.get(key, self._asked.get(key, patience.running_s()))
            silent_s = patience.waited_s(since)
            if silent_s > self._timeout_s / 8:
                found[worker] = found.get(worker) or f"no answer for {silent_s:.1f} s"
            elif key not in self._answers:
                found.setdefault(worker, "")
            answer = self._answers.get(key, ())
            found.update((w, text) for w, text in answer if not found.get(w))
        return list(found.items())

    def _waiting_one(self) -> Operation | None:
        """Return the first operation that waits for messages; later ones have not begun."""
        return next((operation for operation in self._open if operation.awaited), None)

    def _new(self, call: str) -> Operation:
        self._next_number += 1
        return Operation(self._next_number - 1, call)

    def _begin(self, operation: Operation, steps: Steps) -> Operation:
        operation.run(steps)
        self._open.append(operation)
        self.poll()
        return operation

    def _advance(self) -> None:
        for operation in list(self._open):
            self._check(operation)
            operation.step()
            if not operation.received:
                break
        self._open = [operation for operation in self._open if not operation.done]
        if not self._open:
            self._asked.clear()
            self._answers.clear()
            self._answered.clear()

    def _reduction(
        self, operation: Operation, value: Buffer, merge: Merge, everyone: bool
    ) -> Steps:
        for i in range(len(self._children)):
            part = yield from self._receive(operation, self._children[i:])
            value = merge(value, part)
            del part
        operation.received = not (everyone and self._index)
        sends: list[OutgoingValue] = []
        if self._index:
            sends.append(self._mail.send(parent_of(self._index), operation.head(), value))
        if everyone:
            if self._index:
                value = yield from self._receive(operation, [parent_of(self._index)])
                operation.received = True
            # Send first to the child with the most workers below it.
            for child in reversed(self._children):
                sends.append(self._mail.send(child, operation.head(), value))
        yield from _sent(operation, sends)
        return value

    def _exchange(self, operation: Operation, value: Buffer, partner: int) -> Steps:
        if partner == self._index:
            return np.zeros(0, np.uint8)
        sends = [self._mail.send(partner, operation.head(), value)]
        found = yield from self._receive(operation, [partner])
        operation.received = True
        yield from _sent(operation, sends)
        return found

    def _receive(self, operation: Operation, workers: Sequence[int]) -> Steps:
        """Receive the value of the first of these workers; the others are needed later."""
        key = workers[0], operation.number
        while key not in self._heads:
            yield tuple(w for w in workers if (w, operation.number) not in self._heads)
        incoming = self._mail.receive(workers[0], self._heads.pop(key))
        while not incoming.complete():
            yield (workers[0],)
        return incoming.value

    def _take(self, worker: int, note: Note) -> None:
        if isinstance(note, Head):
            self._heads[worker, note.number] = note
            is_open = any(operation.number == note.number for operation in self._open)
            if note.number < self._next_number and not is_open:
                raise ConfigError(self._differ("past that call", worker, note.call))
        elif isinstance(note, LateQuestion):
            self._mail.tell(worker, self._answer(note.number))
        else:
            self._answers[worker, note.number] = note.late
            self._answered[worker, note.number] = patience.running_s()

    def _check(self, operation: Operation) -> None:
        """Compare the call with those of all heads of its number."""
        for (worker, number), head in self._heads.items():
            if number == operation.number and head.digest != operation.digest:
                raise ConfigError(self._differ(f"at {operation.call}", worker, head.call))

    def _differ(self, where: str, worker: int, call: str) -> str:
        return (
            f"{self._names[worker]} is at {call}, and {self._names[self._index]} is {where}: all workers "
            "must call the same gathers, reductions and barriers in the same order"
        )

    def _ask(self, now: float) -> None:
        """Send a question to each worker for which an operation has waited for long."""
        operation = self._waiting_one()
        if operation is None:
            return
        if self.waits and now - operation.since > _ASK_AFTER * self._timeout_s:
            operation.asking = True
        if operation.asking:
            for worker in operation.awaited:
                self._asked.setdefault((worker, operation.number), now)
                self._mail.tell(worker, LateQuestion(operation.number))

    def _answer(self, number: int) -> LateAnswer:
        """Return which workers have not come to an operation, as far as is known to this worker."""
        late: Late = []
        if self._next_number <= number and not self.waits:
            late.append((self._index, self._doing()))
        operation = self._waiting_one()
        if operation is not None and operation.number <= number:
            operation.asking = True
            late += self.late()
        if not late and self._next_number <= number:
            late.append((self._index, self._doing()))
        return answer(number, late)


def _sent(
    operation: Operation, sends: Iterable[OutgoingValue]
) -> Generator[tuple[int, ...], None, None]:
    """Wait until all these values have been sent; `operation.sending` has the workers that lack one."""
    left = list(sends)
    while left := [send for send in left if not send.complete()]:
        operation.sending = tuple(send.worker for send in left)
        yield ()
    operation.sending = ()
