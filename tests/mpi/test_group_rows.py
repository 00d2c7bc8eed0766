"""Rows that groups of workers sum: their bits on every transport, and pushes that fit nowhere."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import numpy as np
import pytest
from grouped_rig import CLOCKS, Group, Groups, check_each_clock, ends_of, units_of
from numpy.typing import NDArray
from playing import Session, counts, mapped, workers_with

from mpips import BSP, SGD, Adagrad, Adam, Bf16, DenseTable, EmbeddingTable, Int8, Worker

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
Push = tuple[Int64, Float32]

DIM = 5
N_KEYS = 60
KEYS = np.arange(N_KEYS, dtype=np.int64)
_SLOT_KIB = 2


def pushes_of(worker: int, clock: int) -> list[tuple[Int64, Float32]]:
    """Return a worker's pushes of a clock: 0 to 2, with keys that repeat; nobody pushes in clock 2."""
    found = []
    for number in range(0 if clock == 2 else (worker + clock) % 3):
        random = np.random.default_rng([worker, clock, number])
        keys = random.integers(0, N_KEYS, size=1 + 20 * number + worker)
        scale = 10.0 ** random.integers(-4, 5, size=(len(keys), 1))
        rows = random.normal(size=(len(keys), DIM)) * scale
        found.append((keys, rows.astype(np.float32)))
    return found


def one_by_one(pushes: Sequence[tuple[Int64, Float32]]) -> dict[int, Float32]:
    """Return the sum of each key, rows added in the order of the pushes."""
    total: dict[int, Float32] = {}
    for keys, rows in pushes:
        for key, row in zip(keys.tolist(), rows, strict=True):
            total[key] = total[key] + row if key in total else row
    return total


def arrays(sums: dict[int, Float32]) -> tuple[Int64, Float32]:
    return np.array(list(sums)), np.stack(list(sums.values()))


def contributions(
    part: int | Group, ends: Sequence[int], clock: int
) -> tuple[int, list[Push]] | None:
    """Return the lowest worker of a group that works in a clock, and what it contributes; None: none works.

    Each push has every key once. A group or subgroup contributes the sum of the pushes of its workers.
    """
    if isinstance(part, int):
        pushes = [arrays(one_by_one([push])) for push in pushes_of(part, clock)]
        return (part, pushes) if clock < ends[part] else None
    found = [one for inner in part if (one := contributions(inner, ends, clock)) is not None]
    found.sort(key=lambda one: one[0])
    pushes = [push for _, inner in found for push in inner]
    return (found[0][0], [arrays(one_by_one(pushes))] if pushes else []) if found else None


def expected(groups: Groups, ends: Sequence[int], clocks: int) -> Float32:
    """Return all rows after so many clocks under SGD(1.0); worker w ends after `ends[w]` clocks."""
    values = np.zeros((N_KEYS, DIM), np.float32)
    units = units_of(groups, len(ends))
    for clock in range(clocks):
        found = [one for unit in units if (one := contributions(unit, ends, clock)) is not None]
        pushes = [push for _, sums in sorted(found, key=lambda f: f[0]) for push in sums]
        n_working = sum(clock < end for end in ends)
        for key, total in one_by_one(pushes).items():
            values[key] -= total * np.float32(1.0 / n_working)
    return values


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("levels", [1, 2])
def test_rows_are_sums_in_the_order_of_the_groups(
    session: Session, transport: str, servers: int, levels: int
) -> None:
    ends = ends_of(workers_with(servers))

    def main(worker: Worker) -> list[bytes]:
        table, found = worker.table("t"), []
        for clock in range(ends[worker.index]):
            found.append(table.pull(KEYS).tobytes())
            for keys, rows in pushes_of(worker.index, clock):
                table.push(keys, rows).wait()
                keys[:], rows[:] = 0, np.nan  # free again
            worker.clock()
        found.append(table.pull(KEYS).tobytes())
        return found

    table = EmbeddingTable("t", DIM, SGD(1.0))
    check_each_clock(
        session, main, table, expected, servers, levels, transport=transport, slot_kib=_SLOT_KIB
    )


@pytest.mark.mpi(min_size=4)
def test_rows_that_do_not_fit_are_pushed_by_their_worker(
    session: Session, transport: str, servers: int
) -> None:
    """Of three pushes one is larger than the area and one fits no more; sums of whole numbers are exact."""
    n_workers = workers_with(servers)
    dim, sizes = 64, (2500, 1500, 900)  # 660,000, 396,000 and 237,600 bytes into 524,288

    def update(worker: int, clock: int, number: int) -> tuple[Int64, Float32]:
        keys = np.arange(sizes[number]) * (1 + worker % 2)
        return keys, counts(worker, 10 * clock + number, (len(keys), dim))

    def main(worker: Worker) -> bytes:
        table, dense = worker.table("rows"), worker.table("dense")
        for clock in range(3):
            dense.push(counts(worker.index, clock, 100))
            for number in range(3):
                keys, rows = update(worker.index, clock, number)
                table.push(keys, rows).wait()
                keys[:], rows[:] = 0, np.nan  # free again, also where the push waits for the clock
            if clock == 1:
                table.push_pull(np.array([7, 7]), np.ones((2, dim), np.float32))
            else:
                worker.clock()
        found = table.pull(np.arange(5000))
        raw: bytes = found.tobytes() + dense.pull().tobytes()
        return raw

    summed = BSP(reduce="sum")
    played = session(
        main,
        [
            EmbeddingTable("rows", dim, SGD(1.0), summed),
            DenseTable("dense", (100,), SGD(1.0), summed),
        ],
        servers=servers,
        transport=transport,
        topology=(tuple(range(n_workers)),),
        group_rows_mib=1,
    )
    rows = np.zeros((5000, dim), np.float32)
    dense = np.zeros(100, np.float32)
    for worker in range(n_workers):
        for clock in range(3):
            dense -= counts(worker, clock, 100)
            for number in range(3):
                keys, values = update(worker, clock, number)
                rows[keys] -= values
        rows[7] -= 2
    assert all(found == rows.tobytes() + dense.tobytes() for found in played.values or ())
    # Servers have one sum in each clock, and from each worker the two pushes that are held.
    if servers == 1 and n_workers > 1:
        assert played.server_total("rows", "pushed") == 3 * (1 + 2 * n_workers)
        # Two pushes of the leader are in one sum.
        assert played.worker_total("pushed") == n_workers * (3 * 4 + 1) - 1


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("levels", [1, 2])
def test_sums_of_rows_are_encoded(session: Session, transport: str, levels: int) -> None:
    """A sum of 127 in each block is exact in the codec, and no worker's update alone is."""
    n_workers = workers_with(1)
    group = tuple(range(n_workers))
    keys = np.arange(300)

    def main(worker: Worker) -> bytes:
        for clock in range(CLOCKS):
            for name in ("int8", "bf16"):
                if clock == 3:
                    worker.table(name).set_optimizer(SGD(2.0))
                share = {0: 100.0, n_workers - 1: 27.0}.get(worker.index, 0.0)
                rows = np.full((300, 16), share if n_workers > 1 else 127.0, np.float32)
                worker.table(name).push(keys, rows)
            worker.clock()
        raw: bytes = worker.table("int8").pull(keys).tobytes()
        return raw + worker.table("bf16").pull(keys).tobytes()

    summed = BSP(reduce="sum")
    played = session(
        main,
        [
            EmbeddingTable("int8", 16, SGD(1.0), summed, compression=Int8(16)),
            EmbeddingTable("bf16", 16, SGD(1.0), summed, compression=Bf16()),
        ],
        servers=1,
        transport=transport,
        slot_kib=_SLOT_KIB,
        topology=(group if levels == 1 else (group[0], group[1:]),),
    )
    want = np.full((600, 16), -127.0 * (3 + 2 * (CLOCKS - 3)), np.float32).tobytes()
    assert all(found == want for found in played.values or ())
    # Every push is counted once, whoever has carried it, and servers have one push of each clock.
    assert played.worker_total("pushed") == 2 * n_workers * CLOCKS
    assert played.server_total("int8", "pushed") == CLOCKS


@pytest.mark.mpi(min_size=4)
def test_rules_step_once_for_each_row_and_clock(session: Session, servers: int) -> None:
    """With whole gradients a group gives the bits that its workers give without it, whatever the rule."""
    n_workers = workers_with(servers)

    def main(worker: Worker) -> bytes:
        raw = b""
        for clock in range(CLOCKS):
            for name in ("adam", "adagrad"):
                random = np.random.default_rng([worker.index, clock])
                keys = random.integers(0, N_KEYS, size=17)
                worker.table(name).push(keys, counts(worker.index, 50 + clock, (17, DIM)))
            worker.clock()
            raw += worker.table("adam").pull(KEYS).tobytes()
        return raw + bytes(worker.table("adagrad").pull(KEYS).tobytes())

    tables = [EmbeddingTable("adam", DIM, Adam(0.01)), EmbeddingTable("adagrad", DIM, Adagrad(0.1))]
    found = []
    for topology, mib in (((tuple(range(n_workers)),), 1), ("flat", 1), ("node", 0)):
        if topology == "node":
            tables = [*tables, DenseTable("dense", (3,), SGD(1.0))]
        played = session(main, tables, servers=servers, topology=topology, group_rows_mib=mib)
        found.append(played.values)
    assert found[0] == found[1] == found[2]


@pytest.mark.mpi(min_size=4)
def test_a_job_with_rows_frees_the_memory_of_its_groups_at_its_end(session: Session) -> None:
    def main(worker: Worker) -> int:
        worker.table("t").push(KEYS, np.ones((N_KEYS, DIM), np.float32))
        worker.clock()
        worker.table("t").pull(KEYS)
        return mapped("sum")

    gc.collect()
    gc.disable()
    try:
        played = session(main, [EmbeddingTable("t", DIM)], servers=1, topology=[[0, 1]])
        left = mapped("sum")
    finally:
        gc.enable()
    assert played.values[:2] == [1, 1]
    assert left == 0
