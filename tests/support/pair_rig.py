"""A server and its copy in one process, and what lies between them: batches and answers in queues."""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from mpips.recovery import replica_memory
from mpips.server.server import Server


class Pipe:
    """A communicator for one process: what is sent waits until it is received."""

    rank = 0

    def __init__(self) -> None:
        self._queue: deque[Any] = deque()

    def send(self, value: Any, rank: int, tag: int) -> None:
        self._queue.append(value)

    def recv(self, source: int, tag: int) -> Any:
        return self._queue.popleft()

    def Send(self, data: np.ndarray, rank: int, tag: int) -> None:
        self._queue.append(data.copy())

    def Recv(self, out: np.ndarray, rank: int, tag: int) -> None:
        out[:] = self._queue.popleft()


def no_guard(what: str) -> contextlib.AbstractContextManager[None]:
    """Nothing hangs here."""
    return contextlib.nullcontext()


def copied(token: str, name: str, target: str, alone: bool = False) -> None:
    """Move a set as between nodes."""
    pipe: Any = Pipe()
    replica_memory.send(pipe, 0, token, name, alone, no_guard)
    # Both names lie in one folder here, where on two nodes they would be the same.
    replica_memory.receive(pipe, 0, token, target, no_guard)


def lose_the_server(token: str) -> None:
    """Everything but the newest complete copy is gone; the server goes on in it."""
    copy = max(h for h in replica_memory.held(token) if h.is_copy)
    replica_memory.remove_all_but(token, {copy.name})
    replica_memory.link(token, copy.name, replica_memory.own_set(0))


class Pair:
    """Carries records and answers in small pieces and in any order that messages may have."""

    def __init__(self, server: Server, make: Callable[[str], Server]) -> None:
        self.server = server
        generation, token = server.durability.generation, server.token
        name = replica_memory.copy_set(0, generation)
        copied(token, replica_memory.own_set(0), name)
        self.copy = make(name)
        self.copy.finish_recovery(self._no_staging)
        self.copy.core.become_copy()
        replica_memory.mark(token, name, generation)
        replica_memory.remove_all_but(token, {name, replica_memory.own_set(0)})
        server.core.begin_partnership()
        self.batches: deque[tuple[np.ndarray, int]] = deque()
        self.answers: deque[np.ndarray] = deque()
        self.random = random.Random(generation)
        n_bytes = 2 * (server.layout.geometry.slot_bytes + 64)
        self.batch = np.zeros(n_bytes, np.uint8)

    @staticmethod
    def _no_staging(worker: int, generation: int) -> Any:
        raise AssertionError("a record points at staging memory")

    def words(self) -> np.ndarray:
        """What the copy says."""
        words = np.zeros((self.server.layout.n_workers, 2), np.uint64)
        self.copy.core.partner_words(words)
        return words

    def hand_out(self) -> int:
        n_bytes = self.server.core.outgoing(self.batch)
        if n_bytes:
            self.batches.append((self.batch.copy(), n_bytes))
        return n_bytes

    def take_in(self) -> int:
        if not self.batches:
            return 0
        batch, n_bytes = self.batches.popleft()
        self.copy.core.accept(batch, n_bytes)
        return n_bytes

    def answer(self) -> int:
        words = self.words()
        if self.answers and (self.answers[-1] == words).all():
            return 0
        self.answers.append(words)
        return 0  # by itself it moves nothing

    def hear(self) -> int:
        if not self.answers:
            return 0
        words = self.answers.popleft()
        self.server.core.take_partner_words(words)
        self.check()
        return 0

    def check(self) -> None:
        """Check that acknowledged records have arrived."""
        for w, (arrived, _) in enumerate(self.words()):
            # A tick may be ahead; the rig says something behind each of them.
            assert self.server.core.applied(w) <= int(arrived) + 1

    def work(self) -> int:
        """Some of what can be done, in any order; all of it if that was nothing."""
        core, copy = self.server.core, self.copy.core
        actions = [
            self.hand_out,
            self.take_in,
            self.answer,
            self.hear,
            lambda: core.drain(0.0, 0),
            lambda: copy.drain(0.0, 0),
        ]
        moved = sum(self.random.choice(actions)() for _ in range(6))
        self.check()
        if moved:
            return moved
        for _ in range(2):
            for action in actions:
                while action():
                    moved += 1
        while self.answers:
            self.hear()
        return moved + self.hand_out() + core.drain(0.0, 0)
