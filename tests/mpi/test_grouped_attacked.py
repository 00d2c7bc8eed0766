"""Groups of workers under programs that do what they may: exact sums, memory, and what is left of it."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from playing import Session, counts, mapped, workers_with

from mpips import ASP, BSP, SGD, DenseTable, EmbeddingTable, Worker
from mpips.worker.worker import connection_of

N = 2000
KEYS = np.arange(20)
CLOCKS = 6
SUM = BSP(reduce="sum")
Float32 = np.ndarray[Any, np.dtype[np.float32]]


def groups(n_workers: int) -> list[list[int]]:
    """One group of every second worker; the others are in none."""
    return [list(range(0, n_workers, 2))]


@pytest.mark.mpi(min_size=4)
def test_small_rings_and_all_kinds_of_tables_lose_and_double_nothing(
    session: Session, transport: str, servers: int
) -> None:
    n_workers = workers_with(servers)
    # The members of the group end first, then its leader.
    ends = [CLOCKS - (2 if w and w % 2 == 0 else w % 2) for w in range(n_workers)]
    shapes = {"dense": (N,), "other": (3,), "rows": (len(KEYS), 8), "copied": (N,), "free": (N,)}
    salts = {name: 100 * (1 + i) for i, name in enumerate(shapes)}

    def pushes(name: str, worker: int, clock: int) -> int:
        return (worker + clock + salts[name] // 100) % 3

    def update(name: str, worker: int, clock: int, number: int) -> Float32:
        return counts(worker, salts[name] + 10 * clock + number, shapes[name])

    def expected(name: str, clock: int) -> Float32:
        total = np.zeros(shapes[name], np.float32)
        for worker, end in enumerate(ends):
            for c in range(min(clock, end)):
                for number in range(pushes(name, worker, c)):
                    total -= update(name, worker, c, number)
        return total

    def main(worker: Worker) -> int:
        wrong, (w, end) = 0, (worker.index, ends[worker.index])
        for clock in range(end):
            for name in shapes:
                table = worker.table(name)
                if (w + clock) % 2 and name != "free":
                    values = table.pull(KEYS) if name == "rows" else table.pull()
                    wrong += not np.array_equal(values, expected(name, clock))
                n = pushes(name, w, clock)
                for number in range(n):
                    given = update(name, w, clock, number)
                    if name == "rows":
                        table.push(KEYS, given)
                    else:
                        table.push(given, closes=name == "dense" and number == n - 1 == clock % 2)
                    given[...] = np.nan  # free again
            if clock % 3 == 0:
                worker.keep_pace(1)
            worker.clock()
        if end == max(ends):
            last = worker.table("rows").pull(KEYS)
            wrong += not np.array_equal(last, expected("rows", end))
            wrong += not np.array_equal(worker.table("dense").pull(), expected("dense", end))
        return wrong

    played = session(
        main,
        [
            DenseTable("dense", (N,), SGD(1.0), consistency=SUM),
            EmbeddingTable("rows", 8, SGD(1.0), consistency=SUM),
            DenseTable("other", (3,), SGD(1.0), consistency=SUM),
            DenseTable("copied", (N,), SGD(1.0), consistency=SUM, placement="replicated"),
            DenseTable("free", (N,), SGD(1.0), consistency=ASP()),
        ],
        servers=servers,
        transport=transport,
        slot_kib=1,
        ring_slots=2,
        topology=groups(n_workers),
    )
    assert played.values == [0] * n_workers


@pytest.mark.mpi(min_size=4)
def test_a_job_frees_the_memory_of_its_groups_at_its_end(session: Session) -> None:
    def main(worker: Worker) -> tuple[int, int]:
        worker.table("t").push(np.ones(N, np.float32))
        worker.clock()
        grouped = connection_of(worker).grouped
        return mapped("sum"), 0 if grouped is None else grouped._part.layout.total_bytes

    gc.collect()
    gc.disable()
    try:
        table = DenseTable("t", (N,), SGD(1.0))
        played = session(main, [table], servers=1, topology=[[0, 1]])
        left = mapped("sum")
    finally:
        gc.enable()
    # The sum, and one contribution for each worker, all in whole pages.
    most = (1 + 2) * (4 * N + 4096) + 4096
    assert [found for found, _ in played.values[:2]] == [1, 1]
    assert all(0 < n_bytes <= most for _, n_bytes in played.values[:2])
    assert left == 0
