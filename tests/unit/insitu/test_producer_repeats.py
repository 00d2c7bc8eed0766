"""A producer that continues in memory makes the pushes of its last clock again, wherever it had died."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpips import StreamTable
from mpips.insitu.counts import DIM, counts_of, moments_of
from mpips.insitu.producer import Producer

N = 23


class Died(Exception):
    """The process ends here."""


class Memory:
    """Rows that survive a process, and the pushes of a worker by clock, as its servers have them."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], np.ndarray] = {}
        self.made: dict[int, list[tuple[str, list[int]]]] = {}
        self.left = 10**9  # pushes until the process dies

    def launch(self, clock: int) -> Any:
        """The worker of a launch, which begins at this clock."""
        repeats = bool(self.made.get(clock))
        connection = SimpleNamespace(index=1, now=clock, repeats=repeats)
        before, again = list(self.made.get(clock, [])), []
        tables = {}
        for name in ("s.samples", "s.counts"):

            def push(keys: np.ndarray, rows: np.ndarray, name: str = name) -> Any:
                if self.left == 0:
                    raise Died
                self.left -= 1
                made = name, keys.tolist()
                if connection.now == clock and len(again) < len(before):
                    again.append(made)
                    assert (
                        again == before[: len(again)]
                    )  # else the attempt would end with ReplayError
                else:
                    self.made.setdefault(connection.now, []).append(made)
                    self.rows |= {
                        (name, key): row for key, row in zip(made[1], rows.copy(), strict=True)
                    }
                return SimpleNamespace(wait=lambda: None)

            def pull(keys: np.ndarray, name: str = name) -> np.ndarray:
                nothing = np.zeros(DIM, np.float32)
                return np.array([self.rows.get((name, key), nothing) for key in keys.tolist()])

            tables[name] = SimpleNamespace(push=push, pull=pull)
        return SimpleNamespace(_connection=connection, table=tables.__getitem__)


def simulate(stream: StreamTable, worker: Any, every: int) -> None:
    """Push samples, some of which are dropped or on their way at the end of a clock."""
    producer = Producer(stream, worker, 1)
    for n in range(producer.produced, N):
        producer.push({"x": np.nan if n % 7 == 6 else n}, wait=n % 3 > 0)
        if n % every == every - 1:
            worker._connection.now += 1
    producer.close()


@pytest.mark.parametrize("keep", ["reservoir", "newest"])
@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("capacity", [2, 8])
def test_pushes_of_the_last_clock_are_made_again(keep: Any, every: int, capacity: int) -> None:
    stream = StreamTable("s", {"x": ()}, capacity, producers=2, keep=keep, invalid="drop")
    whole = Memory()
    simulate(stream, whole.launch(0), every)
    (counts,) = counts_of(whole.rows["s.counts", 1][None])
    assert (counts.produced, counts.dropped, counts.is_closed) == (N, 3, True)
    total = sum(map(len, whole.made.values()))
    for dies in range(total):
        memory, clock = Memory(), 0
        # It dies twice, the second time perhaps within the pushes that it makes again.
        for memory.left in (dies, min(dies % 5, total - 1 - dies)):
            worker = memory.launch(clock)
            with pytest.raises(Died):
                simulate(stream, worker, every)
            clock = worker._connection.now
        memory.left = 10**9
        simulate(stream, memory.launch(clock), every)
        samples = [key for key in whole.rows if key[0] == "s.samples"]
        for key in samples:
            np.testing.assert_array_equal(memory.rows[key], whole.rows[key])
        row = memory.rows["s.counts", 1]
        assert counts_of(row[None]) == [counts]
        assert moments_of(row) == moments_of(whole.rows["s.counts", 1])


def test_a_worker_that_had_finished_makes_no_push() -> None:
    stream = StreamTable("s", {"x": ()}, 8, producers=2, invalid="drop")
    memory = Memory()
    worker = memory.launch(0)
    simulate(stream, worker, N + 1)
    made = {clock: list(pushes) for clock, pushes in memory.made.items()}
    again = memory.launch(worker._connection.now + 1)
    again._connection.repeats = True  # a worker that has finished is ahead at any clock
    simulate(stream, again, N + 1)
    assert memory.made == made
