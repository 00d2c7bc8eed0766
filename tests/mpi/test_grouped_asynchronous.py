"""Groups of workers whose tables are under SSP and ASP: exact counts, own pushes, and the bound of SSP."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from playing import Session, counts, workers_with

from mpips import ASP, BSP, SGD, SSP, Adam, ConfigError, DenseTable, EmbeddingTable, Worker, _native
from mpips.model.consistency import Reject
from mpips.worker.worker import connection_of

CLOCKS = 12
BOUND = 1
WIDTH = 500  # values of one worker in a table, so that a table takes several records
KEYS = np.arange(6)
# Tables with a part for each worker, to which it adds 1 in each of its clocks.
PARTS = ("ssp", "asp", "late")
SHARED = {"bsp": BSP(reduce="sum"), "free": ASP(), "same": SSP(2)}


def groups(n_workers: int) -> list[list[int]]:
    """Every second worker is in the first group; with four or more the others are in the second one."""
    halves = [list(range(first, n_workers, 2)) for first in (0, 1)]
    return [half for half in halves if len(half) > 1]


def nested(n_workers: int) -> list[list[int | list[int]]]:
    """Return one group of all workers, with subgroups of workers 0 and 2, and of 1 and 3."""
    return [[[w for w in half if w < n_workers] for half in ([0, 2], [1, 3])]]


def work(worker: int, clock: int) -> None:
    """Take a time that differs between workers and clocks."""
    n = 1 + 30 * ((worker + clock) % 3 == 0)
    for _ in range(n):
        np.sort(counts(worker, clock, 2000))


def await_finish(worker: Worker) -> None:
    """Wait until all servers have the end of all other workers."""
    connection = connection_of(worker)

    def all_have_finished() -> bool:
        clocks = [channel.clocks() for channel in connection.channels]
        others = [n for own in clocks for w, n in enumerate(own) if w != worker.index]
        return all(n == _native.FINISHED_CLOCK for n in others)

    connection.wait_until(all_have_finished, lambda: "another worker has not finished")


def check(
    name: str,
    values: NDArray[np.float32],
    worker: int,
    clock: int,
    ends: list[int],
    together: list[int],
) -> None:
    """Compare the clocks of each worker that a pull of a table contains, at this worker's clock."""
    where = (name, worker, clock)
    for other, part in enumerate(values):
        # Each server applies a sum at a time of its own.
        least, most = part.min(), part.max()
        assert other != worker or least == most == clock, where
        # The leader's push of the clock before is there, which has the updates of the whole group.
        assert other not in together or least >= min(clock, ends[other]), where
        if name == "ssp":
            assert least >= min(clock - BOUND, ends[other]), where
            assert most <= clock + BOUND + 1, where


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("levels", [1, 2])
def test_every_pull_has_own_pushes_and_those_that_the_bound_demands(
    session: Session, transport: str, servers: int, levels: int
) -> None:
    n_workers = workers_with(servers)
    group_of = {w: group for group in groups(n_workers) for w in group}
    if levels == 2:
        group_of = {w: list(range(n_workers)) for w in range(min(4, n_workers))}
    # Leaders end before other workers of their groups.
    ends = [CLOCKS - 3 + w for w in range(n_workers)]

    def main(worker: Worker) -> dict[str, list[int]]:
        w = worker.index
        own = np.zeros((n_workers, WIDTH), np.float32)
        own[w] = -1.0
        for clock in range(ends[w]):
            work(w, clock)
            for name in PARTS:
                if name != "late" or clock % 2:
                    found = worker.table(name).pull()
                    check(name, found, w, clock, ends, group_of.get(w, [w]))
                worker.table(name).push(own).wait()
            for name in SHARED:
                for number in range((w + clock) % 3):
                    worker.table(name).push(counts(w, 10 * clock + number, 50), closes=False)
            worker.table("rows").push(KEYS, counts(w, clock, (len(KEYS), 4)))
            worker.table("adam").push(np.ones(7, np.float32))
            worker.clock()
        if w != n_workers - 1:
            return {}
        await_finish(worker)
        found = {name: worker.table(name).pull().astype(int).tolist() for name in (*PARTS, *SHARED)}
        return found | {"rows": worker.table("rows").pull(KEYS).astype(int).tolist()}

    rules = dict(zip(PARTS, (SSP(BOUND), ASP(), ASP()), strict=True))
    played = session(
        main,
        [
            *(DenseTable(n, (n_workers, WIDTH), SGD(1.0), rules[n]) for n in PARTS),
            *(DenseTable(n, (50,), SGD(1.0), model) for n, model in SHARED.items()),
            EmbeddingTable("rows", 4, SGD(1.0), ASP(), init="zeros"),
            DenseTable("adam", (7,), Adam(0.1), ASP()),
        ],
        servers=servers,
        transport=transport,
        slot_kib=1,
        ring_slots=2,
        topology=groups(n_workers) if levels == 1 else nested(n_workers),
    )
    parts = np.repeat(np.array(ends)[:, None], WIDTH, axis=1).tolist()
    total = -sum(
        counts(w, 10 * clock + number, 50)
        for w in range(n_workers)
        for clock in range(ends[w])
        for number in range((w + clock) % 3)
    )
    rows = -sum(counts(w, c, (len(KEYS), 4)) for w in range(n_workers) for c in range(ends[w]))
    for found in (played.values or ())[n_workers - 1 :]:
        assert all(found[name] == parts for name in PARTS)
        assert all(found[name] == total.astype(int).tolist() for name in SHARED)
        assert found["rows"] == rows.astype(int).tolist()
    # Each group pushes once in each clock of its slowest worker.
    units = {tuple(group_of.get(w, [w])) for w in range(n_workers)}
    pushes = sum(max(ends[w] for w in unit) for unit in units)
    assert all(played.server_total(name, "pushed") == pushes * servers for name in PARTS)
    assert played.server_total("adam", "pushed") == sum(ends)


@pytest.mark.mpi(min_size=4)
def test_a_rule_that_no_sum_can_have_is_refused(session: Session) -> None:
    def main(worker: Worker) -> list[str]:
        found = []
        for name in ("asp", "bsp", "reject"):
            try:
                worker.table(name).set_optimizer(SGD(0.5, weight_decay=0.1))
            except ConfigError as error:
                found.append(str(error))
        worker.table("asp").set_optimizer(SGD(0.5))
        return found

    n_workers = workers_with(1)
    played = session(
        main,
        [
            DenseTable("asp", (10,), SGD(1.0), ASP()),
            DenseTable("bsp", (10,), SGD(1.0), BSP()),
            DenseTable("reject", (10,), SGD(1.0), ASP(Reject(3))),
        ],
        servers=1,
        topology=[list(range(n_workers))],
    )
    for found in played.values or ():
        assert len(found) == 1
        assert found[0].startswith("set_optimizer of table 'asp': SGD(lr=0.5, weight_decay=0.1")
        assert "must have no weight_decay and no clip_value under ASP" in found[0]


@pytest.mark.mpi(min_size=4)
def test_a_change_applies_to_the_sums_of_its_clock_and_of_no_earlier_one(
    session: Session, transport: str, servers: int
) -> None:
    n_workers, clocks = workers_with(servers), 40

    def rate(clock: int) -> float:
        return 1.0 + clock % 7

    def main(worker: Worker) -> list[float]:
        table = worker.table("t")
        for clock in range(clocks):
            # Another worker than the leader comes first to this call, while the leader still pushes its sum.
            table.set_optimizer(SGD(rate(clock)))
            own = np.zeros((n_workers, 9), np.float32)
            own[worker.index] = 1.0
            table.push(own)
            worker.clock()
        found: list[float] = table.pull().ravel().tolist()
        return found

    played = session(
        main,
        [DenseTable("t", (n_workers, 9), SGD(1.0), ASP())],
        servers=servers,
        transport=transport,
        topology=[list(range(n_workers))],
    )
    if n_workers > 1:
        expected = -sum(rate(clock) for clock in range(clocks))
        assert all(found == [expected] * 9 * n_workers for found in played.values or ())
