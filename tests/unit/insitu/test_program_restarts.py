"""A worker that pushes the samples of programs dies at every point; each sample counts once, in its order."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from program_rig import Program

from mpips import StreamTable
from mpips.insitu.counts import DIM, counts_of
from mpips.insitu.producer import Producer
from mpips.insitu.programs import ProgramServer

N, PRODUCERS, SLOTS = 5, (0, 2), 3
STREAM = StreamTable("s", {"x": (2,)}, 18, producers=3, invalid="drop", moments="none")
NEVER = 10**9


class Died(Exception):
    """The process ends here."""


class Shard:
    """A server: what it has applied, and what of a worker is on its way to it, in its order."""

    def __init__(self) -> None:
        self.rows: dict[int, np.ndarray] = {}
        self.made: dict[int, list[list[int]]] = {}  # keys of pushes by clock
        self.clock = 0
        self.coming: list[Callable[[], None]] = []

    def take(self, n: int | None = None) -> None:
        """Apply the first `n` records that are on their way; None: all."""
        for record in self.coming[:n]:
            record()
        self.coming = []


class Memory:
    """What survives a process: rows, clocks, and pushes by clock, of two servers.

    What the worker sends is on its way until it has waited for a push or has pulled from that server. When
    the worker dies, each server has received the first part of it, and the rest is lost.
    """

    def __init__(self) -> None:
        self.shards = {"s.samples": Shard(), "s.counts": Shard()}
        self.left, self.done = (
            NEVER,
            0,
        )  # points that the process passes until it dies, and has passed

    def point(self) -> None:
        if self.left == 0:
            raise Died
        self.left -= 1
        self.done += 1

    def lose(self, salt: int) -> None:
        """The worker is dead. A tick that one server has is given to the other one, as a restart does."""
        for n, shard in enumerate(self.shards.values()):
            shard.take((salt + n * (1 + salt // 3)) % (1 + len(shard.coming)))
        clock = max(shard.clock for shard in self.shards.values())
        for shard in self.shards.values():
            shard.clock = clock

    def rows(self, name: str) -> dict[int, np.ndarray]:
        self.shards[name].take()
        return self.shards[name].rows

    def launch(self) -> Any:
        """The worker of a launch."""
        first = max(shard.clock for shard in self.shards.values())
        before = {name: list(s.made.get(first, [])) for name, s in self.shards.items()}
        again: dict[str, list[list[int]]] = {name: [] for name in before}
        connection = SimpleNamespace(
            index=1,
            now=first,
            repeats=any(before.values()),
            control=SimpleNamespace(state=""),
            snapshot=SimpleNamespace(end_gather=lambda: None),
            check_cut_in_wait=lambda: None,
        )

        def table(name: str) -> Any:
            shard = self.shards[name]

            def push(keys: np.ndarray, rows: np.ndarray) -> Any:
                self.point()
                made, values, now = keys.tolist(), rows.copy(), connection.now
                if now == first and len(again[name]) < len(before[name]):
                    again[name].append(made)
                    # Else the job would end with ReplayError.
                    assert again[name] == before[name][: len(again[name])]
                else:

                    def applied() -> None:
                        shard.made.setdefault(now, []).append(made)
                        shard.rows.update(zip(made, values, strict=True))

                    shard.coming.append(applied)
                self.point()
                return SimpleNamespace(wait=shard.take)

            def pull(keys: np.ndarray) -> np.ndarray:
                self.point()
                shard.take()
                nothing = np.zeros(DIM, np.float32)
                return np.array([shard.rows.get(key, nothing) for key in keys.tolist()])

            return SimpleNamespace(push=push, pull=pull)

        def clock() -> None:
            self.point()
            assert connection.now > first or all(len(again[n]) == len(before[n]) for n in before)
            connection.now += 1
            for shard in self.shards.values():
                shard.coming.append(partial(setattr, shard, "clock", connection.now))
            self.point()

        return SimpleNamespace(
            _connection=connection, table={n: table(n) for n in self.shards}.__getitem__,
            clock=clock, index=1,
        )  # fmt: skip


def value(number: int, n: int) -> np.ndarray:
    return np.full(2, np.nan if n == 3 else 10 * number + n, np.float32)


def program(name: str, number: int) -> None:
    """What the program of a producer does; it never ends on its own account."""
    p = Program(name, number, 60.0)
    p.declare("x", "float32", (2,))
    for n in range(p.produced, N):
        p.push(value(number, n))
    p.close()


def served(memory: Memory, name: str) -> bool:
    """One launch; return True if it came to its end."""
    try:
        ProgramServer(STREAM, memory.launch(), name, PRODUCERS, SLOTS, "", 60.0).run()
    except Died:
        return False
    return True


def whole() -> Memory:
    """Pushes of producers in Python."""
    memory = Memory()
    worker = memory.launch()
    for number in PRODUCERS:
        producer = Producer(STREAM, worker, number)
        for n in range(N):
            producer.push({"x": value(number, n)})
        producer.close()
    return memory


@pytest.mark.parametrize("part", range(4))
def test_each_sample_counts_once_wherever_the_worker_dies(part: int) -> None:
    expected, dies, ended = whole(), part, False
    while not ended:
        memory, name = Memory(), f"restarts-{os.getpid()}-{part}-{dies}"
        errors: list[BaseException] = []

        def simulate(number: int, name: str = name, errors: Any = errors) -> None:
            try:
                program(name, number)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=simulate, args=(number,)) for number in PRODUCERS]
        for thread in threads:
            thread.start()
        ended = True
        # It dies twice, the second time perhaps within what it repeats.
        for memory.left in (dies, dies % 7, NEVER):
            if served(memory, name):
                break
            ended = False
            memory.lose(dies)
            gc.collect()  # a process that ends gives up its locks
        for thread in threads:
            thread.join()
        assert not errors, (dies, errors)
        for number in PRODUCERS:
            (mine,), (other,) = (
                counts_of(m.rows("s.counts")[number][None]) for m in (memory, expected)
            )
            assert mine == other, dies
            assert (mine.produced, mine.dropped, mine.is_closed) == (N, 1, True)
        held, samples = memory.rows("s.samples"), expected.rows("s.samples")
        assert len(samples) == (N - 1) * len(PRODUCERS)
        for key, row in samples.items():
            np.testing.assert_array_equal(held[key], row, str(dies))
        assert not list(Path("/dev/shm").glob(f"mpips_queue.*.{name}.*"))
        dies += 4
    assert dies > 60
