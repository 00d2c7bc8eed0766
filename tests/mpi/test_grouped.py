"""Groups of workers: sums in their order on every transport, whatever each worker of a group does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from grouped_rig import CLOCKS, Group, Groups, check_each_clock, ends_of, units_of
from numpy.typing import NDArray
from playing import Session, counts, noise, workers_with

from mpips import ASP, BSP, SGD, Adam, DenseTable, EmbeddingTable, Int8, Replicated, Worker

Float32 = NDArray[np.float32]

N = 3000  # values of a table, in several records
_SLOT_KIB = 4


def update_of(worker: int, clock: int, number: int) -> Float32:
    return noise(worker, 10 * clock + number, N)


def pushes_of(worker: int, clock: int) -> int:
    """Return the number of a worker's pushes in a clock: 0 to 2; nobody pushes in clock 2."""
    return 0 if clock == 2 else (worker + clock) % 3


def added(updates: Sequence[Float32]) -> Float32 | None:
    """Return the sum from the first to the last one, in float32; None for none."""
    total: Float32 | None = None
    for update in updates:
        total = update if total is None else total + update
    return total


def updates_of(worker: int, clock: int) -> list[Float32]:
    return [update_of(worker, clock, number) for number in range(pushes_of(worker, clock))]


def sum_of(part: int | Group, ends: Sequence[int], clock: int) -> tuple[int, Float32 | None] | None:
    """Return the lowest worker of a group that works in a clock, and the sum of updates; None: none works.

    A worker adds up its pushes, a subgroup its workers, and a group its subgroups and other workers.
    """
    if isinstance(part, int):
        return (part, added(updates_of(part, clock))) if clock < ends[part] else None
    found = [one for inner in part if (one := sum_of(inner, ends, clock)) is not None]
    found.sort(key=lambda one: one[0])
    total = added([values for _, values in found if values is not None])
    return (found[0][0], total) if found else None


def expected(groups: Groups, ends: Sequence[int], clocks: int) -> Float32:
    """Return the values after so many clocks under SGD(1.0); worker w ends after `ends[w]` clocks."""
    values = np.zeros(N, np.float32)
    for clock in range(clocks):
        found: list[tuple[int, list[Float32]]] = []
        for unit in units_of(groups, len(ends)):
            summed = sum_of(unit, ends, clock)
            if summed is not None and summed[1] is not None:
                # A server adds pushes of a worker in no group one by one.
                alone = updates_of(unit, clock) if isinstance(unit, int) else [summed[1]]
                found.append((summed[0], alone))
        total = added(
            [update for _, updates in sorted(found, key=lambda f: f[0]) for update in updates]
        )
        if total is not None:
            n_working = sum(clock < end for end in ends)
            values = values - total * np.float32(1.0 / n_working)
    return values


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("closes", [False, True], ids=["open", "closed"])
@pytest.mark.parametrize("levels", [1, 2])
def test_values_are_sums_in_the_order_of_the_groups(
    session: Session, transport: str, servers: int, closes: bool, levels: int
) -> None:
    ends = ends_of(workers_with(servers))

    def main(worker: Worker) -> list[bytes]:
        table, found = worker.table("t"), []
        for clock in range(ends[worker.index]):
            found.append(table.pull().tobytes())
            n_pushes = pushes_of(worker.index, clock)
            for number in range(n_pushes):
                update = update_of(worker.index, clock, number)
                table.push(update, closes=closes and number == n_pushes - 1).wait()
                update[:] = np.nan  # it is free again
            worker.clock()
        found.append(table.pull().tobytes())
        return found

    table = DenseTable("t", (N,), optimizer=SGD(1.0))
    check_each_clock(
        session, main, table, expected, servers, levels, transport=transport, slot_kib=_SLOT_KIB
    )


@pytest.mark.mpi(min_size=4)
def test_pulls_within_a_clock_do_not_wait_behind_pushes(
    session: Session, transport: str, servers: int
) -> None:
    """A worker pushes rows and pulls others before it comes to the end of its clock.

    Dense tables, rows, and tables that groups leave alone are pushed in one clock, through a small ring.
    """
    n_workers = workers_with(servers)
    keys = np.arange(200, dtype=np.int64)

    def main(worker: Worker) -> list[float]:
        dense, rows, free, held = (worker.table(name) for name in ("dense", "rows", "free", "held"))
        for clock in range(CLOCKS):
            dense.push(counts(worker.index, clock, N))
            rows.push(keys, counts(worker.index, clock, (200, 4)))
            rows.pull(keys[:10])
            rows.push(keys[::2], counts(worker.index, 100 + clock, (100, 4)))
            worker.flush()
            free.push(counts(worker.index, clock, N))
            held.push(counts(worker.index, clock, N))
            if clock % 2:
                rows.push_pull(keys[:1], np.ones((1, 4), np.float32))
            else:
                worker.clock()
            worker.gather("between clocks", b"")
        worker.barrier("all pushes")
        worker.flush()
        worker.barrier("all consumed")
        found = [dense.pull(), rows.pull(keys), free.pull(), held.pull()]
        return [float(np.abs(values).sum()) for values in found]

    tables: list[Any] = [
        DenseTable("dense", (N,), SGD(1.0), BSP(reduce="sum")),
        EmbeddingTable("rows", 4, SGD(1.0), BSP(reduce="sum"), init="zeros"),
        DenseTable("free", (N,), optimizer=SGD(1.0), consistency=ASP()),
        DenseTable("held", (N,), SGD(1.0), BSP(reduce="sum"), placement=Replicated()),
    ]
    played = session(
        main,
        tables,
        servers=servers,
        transport=transport,
        slot_kib=1,
        ring_slots=2,
        topology=(tuple(range(n_workers)),),
    )
    dense = -sum(counts(w, c, N) for w in range(n_workers) for c in range(CLOCKS))
    row = -sum(counts(w, c, (200, 4)) for w in range(n_workers) for c in range(CLOCKS))
    for w in range(n_workers):
        for clock in range(CLOCKS):
            row[::2] -= counts(w, 100 + clock, (100, 4))
    row[0] -= n_workers * (CLOCKS // 2)
    want = [float(np.abs(values).sum()) for values in (dense, row, dense, dense)]
    assert all(found == want for found in played.values or ())


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("levels", [1, 2])
def test_sums_are_encoded_and_rules_change(session: Session, transport: str, levels: int) -> None:
    """A sum of 127 in each block is exact in the codec, and no worker's update alone is."""
    n_workers = workers_with(1)
    group = tuple(range(n_workers))

    def main(worker: Worker) -> bytes:
        table = worker.table("t")
        for clock in range(CLOCKS):
            if clock == 3:
                table.set_optimizer(SGD(2.0))
            share = {0: 100.0, n_workers - 1: 27.0}.get(worker.index, 0.0)
            table.push(np.full(N, share if n_workers > 1 else 127.0, np.float32))
            worker.clock()
        raw: bytes = table.pull().tobytes()
        return raw

    played = session(
        main,
        [DenseTable("t", (N,), SGD(1.0), BSP(reduce="sum"), compression=Int8(128))],
        servers=1,
        transport=transport,
        topology=(group if levels == 1 else (group[:2], *group[2:]),),
    )
    want = np.full(N, -127.0 * (3 + 2 * (CLOCKS - 3)), np.float32).tobytes()
    assert all(found == want for found in played.values or ())
    # Every push is counted once, whoever has carried it, and servers have one push of each clock.
    assert played.worker_total("pushed") == n_workers * CLOCKS
    assert played.server_total("t", "pushed") == CLOCKS


@pytest.mark.mpi(min_size=4)
def test_adam_counts_updates_and_not_workers(session: Session, transport: str) -> None:
    """With gradients that are equal on all workers a group gives what one worker gives."""
    n_workers = workers_with(1)

    def main(worker: Worker) -> bytes:
        table = worker.table("t")
        for clock in range(CLOCKS):
            if clock != 2:
                table.push(counts(7, clock, N))
            worker.clock()
        raw: bytes = table.pull().tobytes()
        return raw

    tables = [DenseTable("t", (N,), optimizer=Adam(0.01))]
    found = []
    for topology in ((tuple(range(n_workers)),), "flat"):
        played = session(main, tables, servers=1, transport=transport, topology=topology)
        found.append(played.values)
    assert found[0] == found[1]
