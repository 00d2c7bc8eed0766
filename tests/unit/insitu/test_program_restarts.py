"""A worker that serves programs is killed at every point of its loop; each sample counts once, in order."""

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
    """The simulated worker is killed."""


class Shard:
    """A server of one table, and the records of a worker that it has not consumed yet.

    Attributes:
        rows: Rows that were pushed, by key.
        made: Keys of pushes that were applied, by the worker's clock.
        clock: The worker's clock as of the records that were consumed.
        coming: Records on their way, in the order of the worker.
    """

    def __init__(self) -> None:
        self.rows: dict[int, np.ndarray] = {}
        self.made: dict[int, list[list[int]]] = {}
        self.clock = 0
        self.coming: list[Callable[[], None]] = []

    def take(self, n: int | None = None) -> None:
        """Consume the first `n` records that are on their way (None: all); the others are lost."""
        for record in self.coming[:n]:
            record()
        self.coming = []


class Memory:
    """The memory of two servers, which survives the worker.

    A record is on its way until the worker has waited for a push or has pulled from that server. When the
    worker is killed, each server has received some first part of its records, and the others are lost.

    Attributes:
        shards: The servers, by table.
        left: Points that the worker passes before it is killed.
    """

    def __init__(self) -> None:
        self.shards = {"s.samples": Shard(), "s.counts": Shard()}
        self.left = NEVER

    def point(self) -> None:
        """Pass a point, or raise Died."""
        if self.left == 0:
            raise Died
        self.left -= 1

    def lose(self, salt: int) -> None:
        """Lose records after a kill. A restart gives both servers the later one of their clocks."""
        for n, shard in enumerate(self.shards.values()):
            shard.take((salt + n * (1 + salt // 3)) % (1 + len(shard.coming)))
        clock = max(shard.clock for shard in self.shards.values())
        for shard in self.shards.values():
            shard.clock = clock

    def rows(self, name: str) -> dict[int, np.ndarray]:
        """Return the rows of a table after all records."""
        self.shards[name].take()
        return self.shards[name].rows

    def launch(self) -> Any:
        """Return the worker of a launch, which asserts that it repeats the pushes of the last clock."""
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
            clock=clock, index=1, cursor={"serves": "s"},
        )  # fmt: skip


def value(number: int, n: int) -> np.ndarray:
    """Return sample `n` of a producer; one of them is dropped."""
    return np.full(2, np.nan if n == 3 else 10 * number + n, np.float32)


def program(name: str, number: int) -> None:
    """Push all samples of a producer that are not in its queue yet, and end it."""
    p = Program(name, number, 60.0)
    p.declare("x", "float32", (2,))
    for n in range(p.produced, N):
        p.push(value(number, n))
    p.close()


def served(memory: Memory, name: str) -> bool:
    """Run one launch; return False if its worker was killed."""
    try:
        ProgramServer(STREAM, memory.launch(), name, PRODUCERS, SLOTS, "", 60.0).run()
    except Died:
        return False
    return True


def whole() -> Memory:
    """Return the memory after pushes of producers in Python."""
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
        # The worker is killed twice, the second time perhaps while it repeats a clock.
        for memory.left in (dies, dies % 7, NEVER):
            if served(memory, name):
                break
            ended = False
            memory.lose(dies)
            gc.collect()  # closes the queues of the worker
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
