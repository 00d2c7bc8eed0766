"""A worker that pushes the samples of programs dies at every point; each sample counts once, in its order."""

from __future__ import annotations

import gc
import os
import threading
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


class Memory:
    """What survives a process: rows, clocks, and the pushes of a worker by clock, as servers have them."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], np.ndarray] = {}
        self.made: dict[int, list[tuple[str, list[int]]]] = {}
        self.clock = 0  # that all servers have reached
        self.left, self.done = (
            NEVER,
            0,
        )  # points that the process passes until it dies, and has passed

    def point(self) -> None:
        if self.left == 0:
            raise Died
        self.left -= 1
        self.done += 1

    def launch(self) -> Any:
        """The worker of a launch."""
        first = self.clock
        before, again = list(self.made.get(first, [])), []
        connection = SimpleNamespace(
            index=1,
            now=first,
            repeats=bool(before),
            control=SimpleNamespace(state=""),
            snapshot=SimpleNamespace(end_gather=lambda: None),
            check_cut_in_wait=lambda: None,
        )

        def table(name: str) -> Any:
            def push(keys: np.ndarray, rows: np.ndarray) -> Any:
                self.point()
                made = name, keys.tolist()
                if connection.now == first and len(again) < len(before):
                    again.append(made)
                    # Else the job would end with ReplayError.
                    assert again == before[: len(again)]
                else:
                    self.made.setdefault(connection.now, []).append(made)
                    for key, row in zip(made[1], rows.copy(), strict=True):
                        self.rows[name, key] = row
                self.point()
                return SimpleNamespace(wait=lambda: None)

            def pull(keys: np.ndarray) -> np.ndarray:
                self.point()
                nothing = np.zeros(DIM, np.float32)
                return np.array([self.rows.get((name, key), nothing) for key in keys.tolist()])

            return SimpleNamespace(push=push, pull=pull)

        def clock() -> None:
            self.point()
            assert connection.now > first or len(again) == len(before)
            connection.now += 1
            self.clock = connection.now
            self.point()

        return SimpleNamespace(
            _connection=connection, table={n: table(n) for n in ("s.samples", "s.counts")}.__getitem__,
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
            gc.collect()  # a process that ends gives up its locks
        for thread in threads:
            thread.join()
        assert not errors, (dies, errors)
        for number in PRODUCERS:
            (mine,), (other,) = (
                counts_of(m.rows["s.counts", number][None]) for m in (memory, expected)
            )
            assert mine == other, dies
            assert (mine.produced, mine.dropped, mine.is_closed) == (N, 1, True)
        samples = [key for key in expected.rows if key[0] == "s.samples"]
        assert len(samples) == (N - 1) * len(PRODUCERS)
        for key in samples:
            np.testing.assert_array_equal(memory.rows[key], expected.rows[key], str(dies))
        assert not list(Path("/dev/shm").glob(f"mpips_queue.*.{name}.*"))
        dies += 4
    assert dies > 60
