"""Look-aheads of one node read rows for each other: no bit and no bound changes, and fewer are read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ahead_rig import held_parts, included, some_order
from harness import Rig, in_threads, rows
from numpy.typing import NDArray

import mpips
from mpips import _native
from mpips.model.consistency import ASP, BSP, SSP
from mpips.model.optimizer import SGD, Adagrad
from mpips.worker.ahead import table_ahead
from mpips.worker.node_rows.part import NodeRowsPart
from mpips.worker.worker import connection_of

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]

ALL = (0, 2**62)
ABSENT = 0
DIM = 4
STEPS = 30


def batches_of(worker: int, table: str = "e") -> list[Int64]:
    random = np.random.default_rng((len(table), worker))
    return [random.zipf(1.3, 40) % 60 for _ in range(STEPS)]


def played(
    consistency: Any, n_workers: int, depth: int, n_slots: int | None, rule: Any = None
) -> tuple[list[Float32], int]:
    """Let workers train in turns; return all that they have pulled, and how many bytes came from the server.

    `n_slots`: of the memory that they share; None: they share none.
    """
    table = rows(DIM, consistency=consistency, optimizer=rule or Adagrad(0.1), init="normal(1)")
    rig = Rig(table, n_workers=n_workers, n_slots=64)
    shared = held_parts(n_workers, n_slots, DIM) if n_slots is not None else [None] * n_workers
    workers = [rig.worker(w, timeout_s=10.0, node_rows=shared[w]) for w in range(n_workers)]
    loops = [
        mpips.lookahead(batches_of(w), keys=lambda k: k, worker=worker, depth=depth)
        if depth
        else iter(batches_of(w))
        for w, worker in enumerate(workers)
    ]
    found = []
    for _ in range(STEPS):
        for worker, loop in zip(workers, loops, strict=True):
            keys = next(loop)
            values = worker.table("e").pull(keys)
            found.append(values.copy())
            worker.table("e").push(keys, values * np.float32(0.25) + np.float32(1))
        for worker in workers:
            worker.clock()
    pulled = sum(int(connection_of(w).figures().pulled_bytes) for w in workers)
    return found, pulled


@pytest.mark.parametrize("n_slots", [0, 4, 32, 4096])
@pytest.mark.parametrize("depth", [1, 4])
def test_bsp_bits_are_those_without(depth: int, n_slots: int) -> None:
    plain, _ = played(BSP(), 3, 0, None)
    _, alone = played(BSP(), 3, depth, None)
    found, pulled = played(BSP(), 3, depth, n_slots)
    assert all(np.array_equal(a, b) for a, b in zip(plain, found, strict=True))
    if n_slots == 4096:
        assert pulled < 0.8 * alone
    if n_slots == 0:
        assert pulled == alone


@pytest.mark.parametrize("consistency", [SSP(2), SSP(8), ASP()])
def test_fewer_rows_are_read_under_ssp_and_asp(consistency: Any) -> None:
    _, alone = played(consistency, 3, 4, None, SGD(0.1))
    _, pulled = played(consistency, 3, 4, 4096, SGD(0.1))
    assert pulled < 0.7 * alone


@pytest.mark.parametrize("bound", [0, 1, 2, 5, None])
@pytest.mark.parametrize("depth", [1, 3, 8])
def test_rows_have_all_updates_that_bound_and_depth_demand(bound: int | None, depth: int) -> None:
    order = some_order(bound, depth)
    held = held_parts(3, 64, 3)
    found = included(SSP(bound) if bound is not None else ASP(), 3, order, depth, held)
    for w, now, values in found:
        assert bound is None or (values >= now - bound).all(), (w, now, values)
        # A worker lacks its own updates for `depth` clocks at most.
        oldest = depth if bound is None else min(bound, depth)
        assert (values[:, w] >= now - oldest).all(), (w, now, values)


def test_a_copied_row_is_not_under_way() -> None:
    """Under SSP a copy may have an earlier stamp than the clock of the request before."""
    rig = Rig(rows(DIM, consistency=SSP(3), init="zeros"), n_workers=2, n_slots=64)
    shared = held_parts(2, 64, DIM)
    worker, other = rig.worker(0, timeout_s=10.0, node_rows=shared[0]), rig.worker(1)
    ahead, keys = worker.table("e").begin_ahead(8), np.arange(4)  # type: ignore[union-attr]
    for number in range(3):
        ahead.announce(number, keys)

    def begin(number: int, clocks: int) -> int:
        """Begin a batch after some clocks; return the number of its requests."""
        for _ in range(clocks):
            worker.clock()
        ahead.begin(number)
        ahead.request_missing()
        return len(ahead._requests)

    assert begin(0, 2) == 1
    ahead.take()
    other.clock()
    shared[1].rows.publish(0, 1, keys, np.zeros((4, DIM), np.float32), keys)
    assert begin(1, 2) == 0
    # At clock 5 a row that lacks updates of clock 1 is too old.
    other.clock()
    assert begin(2, 1) == 1


def test_rows_of_servers_on_this_node_are_not_shared() -> None:
    def held(worker: mpips.Worker, part: NodeRowsPart) -> Any:
        return worker.table("e").begin_ahead(2)._held  # type: ignore[union-attr]

    rig = Rig(rows(DIM), n_workers=2)
    near, far = held_parts(2, 64, DIM, frozenset())[0], held_parts(2, 64, DIM)[0]
    keys = np.arange(5)
    share = held(rig.worker(0, node_rows=near), near)
    share.publish(keys, np.ones((5, DIM), np.float32), 0, keys)
    assert not share.look(keys, ALL, 0).copied.any()
    share = held(rig.worker(1, node_rows=far), far)
    share.publish(keys, np.ones((5, DIM), np.float32), 0, keys)
    assert share.look(keys, ALL, 0).copied.all()


def test_a_claim_whose_row_never_comes_delays_and_no_more() -> None:
    """The other worker has claimed all rows, and never reads them."""
    for consistency in (BSP(), SSP(3), ASP()):
        rig = Rig(rows(DIM, consistency=consistency, init="zeros"), n_workers=2, n_slots=64)
        shared = held_parts(2, 4096, DIM)
        worker = rig.worker(0, timeout_s=10.0, node_rows=shared[0])
        other = rig.worker(1, timeout_s=10.0, node_rows=shared[1])
        keys = np.arange(20)
        for clock in range(5):
            shared[1].rows.look(0, keys, DIM, (clock, clock), clock, clock, True)
            if clock == 0:
                loop = mpips.lookahead([keys] * 5, keys=lambda k: k, worker=worker, depth=2)
            next(loop)
            assert (worker.table("e").pull(keys) >= -clock).all()
            worker.table("e").push(keys, np.ones((20, DIM), np.float32))
            worker.clock()
            other.clock()


def test_claims_of_many_tables_delay_as_long_as_those_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, waits = [0.0], []

    def wait(done: Any, max_s: float) -> bool:
        waits.append(max_s)
        now[0] += max_s
        return bool(done())

    monkeypatch.setattr(table_ahead, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(table_ahead, "wait_for", wait)
    tables = [rows(DIM, name=f"t{i}", consistency=BSP()) for i in range(12)]
    rig = Rig(*tables, n_workers=2, n_slots=64)
    shared, keys = held_parts(2, 4096, DIM), np.arange(20)
    for i in range(12):
        shared[1].rows.look(i, keys, DIM, (0, 0), 0, 0, True)
    worker = rig.worker(0, timeout_s=10.0, node_rows=shared[0])
    batch = {table.name: keys for table in tables}
    next(mpips.lookahead([batch], keys=lambda b: b, worker=worker))
    assert len(waits) == 12
    assert sum(waits) == 0.001


def test_under_asp_claims_do_not_delay_far_before_the_slowest_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Worker 2 stays at clock 0: no row that others read later can be used."""
    waits: list[int] = []

    def wait(done: Any, max_s: float) -> bool:
        waits.append(workers[0].now)
        return bool(done())

    monkeypatch.setattr(table_ahead, "wait_for", wait)
    rig = Rig(rows(DIM, consistency=ASP(), init="zeros"), n_workers=3, n_slots=64)
    shared, depth = held_parts(3, 4096, DIM), 2
    workers = [rig.worker(w, timeout_s=10.0, node_rows=shared[w]) for w in range(2)]
    batches = [np.arange(i, i + 20) for i in range(12)]
    loops = [
        mpips.lookahead(batches, keys=lambda k: k, worker=worker, depth=depth) for worker in workers
    ]
    for _ in batches:
        for loop, worker in zip(loops, workers, strict=True):
            next(loop)
            worker.clock()
    assert all(now <= depth + 1 for now in waits)


def test_without_memory_workers_read_for_themselves_and_say_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def commit(offset: int, n_bytes: int) -> None:
        assert (offset, n_bytes) == (0, found.n_bytes)
        raise _native.SharedMemoryError("/dev/shm is full")

    table = rows(DIM, consistency=BSP())
    rig = Rig(table, n_workers=2)
    found = held_parts(2, 64, DIM)[0]
    part = NodeRowsPart(found.rows, SimpleNamespace(commit=commit), found.n_bytes, found.remote)  # type: ignore[arg-type]
    worker = rig.worker(0, node_rows=part)
    keys = np.arange(5)
    for _ in range(2):
        for batch in mpips.lookahead([keys], keys=lambda k: k, worker=worker):
            worker.table("e").pull(batch)
    assert found.rows.look(0, keys, DIM, ALL, 0, 0, False)[0].tolist() == [ABSENT] * 5
    assert capsys.readouterr().err.count("worker 0 shares no rows that it reads with") == 1


def test_threads_that_wait_for_each_other_end() -> None:
    """Two workers read two tables in opposite orders, at one clock."""
    tables = [rows(DIM, name="a", consistency=BSP()), rows(DIM, name="b", consistency=BSP())]
    rig = Rig(*tables, n_workers=2, n_slots=64)
    shared = held_parts(2, 4096, DIM)
    keys = np.arange(50)

    def train(w: int) -> list[bytes]:
        worker = rig.worker(w, local=False, timeout_s=20.0, node_rows=shared[w])
        names = ["a", "b"] if w == 0 else ["b", "a"]
        batches = [dict.fromkeys(names, keys)] * 20
        found = []
        for batch in mpips.lookahead(batches, keys=lambda b: b, worker=worker, depth=2):
            for name in batch:
                worker.table(name).push(keys, np.ones((50, DIM), np.float32))
            found.append(b"".join(worker.table(n).pull(keys).tobytes() for n in "ab"))
            worker.clock()
        worker.flush()
        return found

    with rig.serving():
        first, second = in_threads([lambda: train(0), lambda: train(1)])
    assert first == second
