"""SSP and ASP: the distance between workers, their own writes, and the fate of stale updates."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from playing import Session, workers_with

import mpips
from mpips import ASP, SSP, DenseTable, EmbeddingTable, Worker

UNIT = mpips.SGD(lr=1.0)
N_STEPS = 12


def one_hot(worker: Worker) -> np.ndarray:
    """Return an update that adds 1 to the worker's own counter, which shows its clock to all."""
    update = np.zeros(worker.n_workers, np.float32)
    update[worker.index] = -1.0
    return update


def counters(n_workers: int, consistency: Any) -> list[Any]:
    return [
        DenseTable("w", (n_workers,), optimizer=UNIT, consistency=consistency),
        EmbeddingTable("e", 1, optimizer=UNIT, consistency=consistency),
    ]


@pytest.mark.several_workers
@pytest.mark.one_of("bound")
@pytest.mark.parametrize("bound", [0, 1, 3])
@pytest.mark.parametrize("slow", ["first", "last"])
@pytest.mark.parametrize("kind", ["dense", "rows"])
def test_a_pull_holds_all_updates_up_to_the_bound(
    session: Session, transport: str, bound: int, slow: str, kind: str
) -> None:
    """Return the trace of each worker: its clock, and the clocks in the values that it pulled."""
    n_workers = workers_with(1)
    keys = np.arange(n_workers)

    def main(worker: Worker) -> list[tuple[int, list[float]]]:
        handle = worker.table("w" if kind == "dense" else "e")
        slowest = worker.index == (0 if slow == "first" else n_workers - 1)
        trace = []
        for clock in range(N_STEPS):
            if slowest:
                time.sleep(0.002)
            if kind == "dense":
                trace.append((clock, handle.pull().tolist()))
                handle.push(one_hot(worker))
            else:
                trace.append((clock, handle.pull(keys)[:, 0].tolist()))
                handle.push([worker.index], np.full((1, 1), -1.0, np.float32))
            worker.clock()
        return trace

    played = session(main, counters(n_workers, SSP(bound=bound)), transport=transport)
    for worker, trace in enumerate(played.values):
        for clock, held in trace:
            assert min(held) >= clock - bound
            assert held[worker] == clock  # own writes
            # No worker is ahead of this one by more than the bound and the current step.
            assert max(held) <= min(clock + bound, N_STEPS - 1) + 1


@pytest.mark.mpi(min_size=5)
@pytest.mark.parametrize("bound", [0, 1, 3])
def test_workers_run_ahead_by_the_bound_and_no_further(
    session: Session, transport: str, bound: int
) -> None:
    """Worker 0 makes no step until the others have reached their bound."""

    def main(worker: Worker) -> tuple[list[bool], float]:
        handle, ahead = worker.table("w"), worker.table("signal")
        if worker.index == 0:
            while float(ahead.pull()[0]) < worker.n_workers - 1:
                time.sleep(0.001)
            handle.push(one_hot(worker))
            worker.clock()
            return [], 0.0
        ready = []
        for _ in range(bound + 1):
            request = handle.prefetch()
            request.wait()
            ready.append(request.test())
            handle.push(one_hot(worker)).wait()
            worker.clock()
        worker.flush()
        request = handle.prefetch()
        ready.append(request.test())
        ahead.push(np.full(1, -1.0, np.float32)).wait()
        return ready, float(request.wait()[0])

    tables = [
        DenseTable("w", (3,), optimizer=UNIT, consistency=SSP(bound=bound)),
        DenseTable("signal", (1,), optimizer=UNIT, consistency=ASP()),
    ]
    played = session(main, tables, transport=transport, servers=1)
    for ready, seen_of_worker_0 in played.values[1:]:
        assert ready == [True] * (bound + 1) + [False]
        assert seen_of_worker_0 == 1.0


@pytest.mark.parametrize("model", [ASP(), SSP(bound=2)], ids=["asp", "ssp"])
def test_a_pull_sees_own_pushes(session: Session, transport: str, servers: int, model: Any) -> None:
    def main(worker: Worker) -> list[tuple[float, float]]:
        w, e = worker.table("w"), worker.table("e")
        mine = one_hot(worker)
        seen = []
        for _ in range(20):
            w.push(mine)
            w.push(mine)
            e.push([worker.index, worker.index], np.full((2, 1), -1.0, np.float32))
            own = float(w.pull()[worker.index]), float(e.pull([worker.index])[0, 0])
            seen.append(own)
            worker.clock()
        return seen

    n_workers = workers_with(servers)
    played = session(main, counters(n_workers, model), transport=transport, servers=servers)
    for seen in played.values:
        assert seen == [(2.0 * (k + 1), 2.0 * (k + 1)) for k in range(20)]


@pytest.mark.several_workers
def test_a_finished_worker_holds_nobody_back(session: Session, transport: str) -> None:
    """Worker w makes 1 + 7 w steps: more than the bound apart."""
    n_workers = workers_with(1)

    def main(worker: Worker) -> list[float]:
        w, e = worker.table("w"), worker.table("e")
        for _ in range(1 + 7 * worker.index):
            w.pull()
            e.pull(np.arange(n_workers))
            w.push(one_hot(worker))
            e.push([worker.index], np.full((1, 1), -1.0, np.float32))
            worker.clock()
        return w.pull().tolist()

    played = session(main, counters(n_workers, SSP(bound=1)), transport=transport)
    steps = [1.0 + 7 * w for w in range(n_workers)]
    assert played.values[-1][-1] == steps[-1]
    assert played.server_total("w", "applied") == played.server_total("e", "applied") == sum(steps)
    assert all(min(values) >= 1 for values in played.values[1:])


def outcomes(policy: Any) -> Any:
    """Two pushes on the same values: the second has not seen the first; no other worker pushes."""

    def main(worker: Worker) -> Any:
        handle = worker.table("w")
        if worker.index != 0:
            return None
        results = []
        for _ in range(2):
            base = handle.pull()
            requests = [handle.push(np.full(4, -8.0, np.float32), base=base) for _ in range(3)]
            results.append([request.wait() for request in requests])
            worker.clock()
        return results, handle.pull().tolist()

    table = DenseTable("w", (4,), optimizer=UNIT, consistency=ASP(policy))
    return main, [table]


def test_staleness_is_measured_and_accepted(session: Session, transport: str) -> None:
    played = session(*outcomes(mpips.Accept()), transport=transport, servers=1)
    results, values = played.values[0]
    assert [[r.staleness for r in step] for step in results] == [[0, 1, 2], [0, 1, 2]]
    assert [[r.applied for r in step] for step in results] == [[1, 1, 1], [1, 1, 1]]
    assert values == [48.0] * 4


def test_a_stale_update_is_scaled_and_its_worker_told(session: Session, transport: str) -> None:
    played = session(*outcomes(mpips.Scale()), transport=transport, servers=1)
    results, values = played.values[0]
    assert [[r.scaled for r in step] for step in results] == [[0, 1, 1], [0, 1, 1]]
    assert [[r.applied for r in step] for step in results] == [[1, 1, 1], [1, 1, 1]]
    third = np.float32(8.0) * np.float32(1.0 / 3.0)
    one = np.zeros(1, np.float32)
    for _ in range(2):
        for part in (8.0, 4.0, third):
            one += np.float32(part)
    assert values == [float(one[0])] * 4
    assert played.server_total("w", "scaled") == played.worker_total("scaled") == 4


@pytest.mark.two_ranks
def test_a_stale_update_is_rejected_and_its_worker_told(session: Session, transport: str) -> None:
    played = session(*outcomes(mpips.Reject(max_staleness=1)), transport=transport, servers=1)
    results, values = played.values[0]
    assert [[r.rejected for r in step] for step in results] == [[0, 0, 1], [0, 0, 1]]
    assert [[r.applied for r in step] for step in results] == [[1, 1, 0], [1, 1, 0]]
    assert values == [32.0] * 4
    assert played.server_total("w", "rejected") == played.worker_total("rejected") == 2


def test_a_stale_update_is_compensated_and_its_worker_told(
    session: Session, transport: str
) -> None:
    played = session(*outcomes(mpips.Compensate(lambda_=0.5)), transport=transport, servers=1)
    results, values = played.values[0]
    assert [[r.compensated for r in step] for step in results] == [[0, 1, 1], [0, 1, 1]]
    value = 0.0
    for _ in range(2):
        base = value
        for _ in range(3):
            # g + lambda g g (w - base) with g = -8 and learning rate 1
            value -= -8.0 + 0.5 * 64.0 * (value - base)
    assert values == [value] * 4
    assert played.server_total("w", "compensated") == played.worker_total("compensated") == 4


@pytest.mark.several_workers
@pytest.mark.parametrize("bound", [1, 4])
def test_keep_pace_waits_for_whoever_is_further_behind_than_its_bound(
    session: Session, transport: str, bound: int
) -> None:
    n_workers = workers_with(1)

    def main(worker: Worker) -> list[tuple[int, list[float]]]:
        handle, trace = worker.table("w"), []
        for _ in range(N_STEPS):
            if worker.index == 0:
                time.sleep(0.002)
            handle.push(one_hot(worker))
            worker.clock()
            worker.keep_pace(bound)
            trace.append((worker.now, handle.pull().tolist()))
        return trace

    tables = counters(n_workers, ASP())
    played = session(main, tables, transport=transport, servers=1)
    for trace in played.values:
        for now, counts in trace:
            assert min(counts) >= now - bound
