"""BSP: the values of a pull, the same bits with every transport and timing, backup workers."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from playing import Session, counts, noise, workers_with

import mpips
from mpips import BSP, DenseTable, EmbeddingTable, Worker
from mpips.kernels import reference

N_CLOCKS = 6
N_DENSE = 700  # more than one record of 1 KiB, so that pushes have several segments
N_KEYS = 40
DIM = 3
SMALL_RINGS = {"slot_kib": 1, "ring_slots": 4}


def bsp_tables(optimizer: Any, reduce: str) -> list[Any]:
    return [
        DenseTable("w", (N_DENSE,), optimizer=optimizer, consistency=BSP(reduce=reduce)),
        EmbeddingTable("e", DIM, optimizer=optimizer, consistency=BSP(reduce=reduce)),
    ]


def keys_of(worker: int, clock: int) -> np.ndarray:
    """Return the keys of a worker: unsorted, some shared with other workers."""
    return np.random.default_rng([worker, clock, 5]).choice(N_KEYS, size=17, replace=False)


def push_noise(delays: int | None = None) -> Any:
    def main(worker: Worker) -> tuple[bytes, bytes]:
        random = np.random.default_rng([worker.index, delays or 0])
        w, e = worker.table("w"), worker.table("e")
        for clock in range(N_CLOCKS):
            if delays is not None:
                time.sleep(random.uniform(0.0, 0.004))
            w.push(noise(worker.index, clock, N_DENSE))
            keys = keys_of(worker.index, clock)
            e.push(keys, noise(worker.index, clock, len(keys) * DIM).reshape(-1, DIM))
            worker.clock()
        return w.pull().tobytes(), e.pull(np.arange(N_KEYS)).tobytes()

    return main


def expected_bits(optimizer: Any, reduce: str, n_workers: int) -> tuple[bytes, bytes]:
    """Compute the result in one process with NumPy, workers in order."""
    config = optimizer.native()
    scale = 1.0 / n_workers if reduce == "mean" else 1.0

    def state(n: int) -> np.ndarray:
        slots = [np.full(n, config.initial_state(k), np.float32) for k in range(config.n_state)]
        return np.array(slots, np.float32).reshape(config.n_state, n)

    w, w_state = np.zeros(N_DENSE, np.float32), state(N_DENSE)
    rows = np.zeros((N_KEYS, DIM), np.float32)
    row_states = [state(DIM) for _ in range(N_KEYS)]
    steps = [0] * N_KEYS
    for clock in range(N_CLOCKS):
        total = np.zeros(N_DENSE, np.float32)
        sums: dict[int, np.ndarray] = {}
        for worker in range(n_workers):
            total += noise(worker, clock, N_DENSE)
            keys = keys_of(worker, clock)
            part = noise(worker, clock, len(keys) * DIM).reshape(-1, DIM)
            for key, row in zip(keys.tolist(), part, strict=True):
                sums.setdefault(key, np.zeros(DIM, np.float32))
                sums[key] += row
        reference.update(config, w, w_state, total, clock + 1, scale)
        for key, row in sums.items():
            steps[key] += 1
            reference.update(config, rows[key], row_states[key], row, steps[key], scale)
    return w.tobytes(), rows.tobytes()


@pytest.mark.two_ranks
@pytest.mark.parametrize(
    ("optimizer", "reduce"),
    [(mpips.SGD(lr=0.1), "sum"), (mpips.Adam(lr=0.01), "mean")],
    ids=["sgd-sum", "adam-mean"],
)
def test_values_have_the_bits_of_one_process_that_takes_workers_in_order(
    session: Session, transport: str, servers: int, optimizer: Any, reduce: str
) -> None:
    played = session(
        push_noise(),
        bsp_tables(optimizer, reduce),
        transport=transport,
        servers=servers,
        **SMALL_RINGS,
    )
    expected = expected_bits(optimizer, reduce, workers_with(servers))
    assert played.values == [expected] * workers_with(servers)


def test_the_data_of_these_tests_depend_on_the_order_of_their_sum() -> None:
    parts = [noise(worker, 0, N_DENSE) for worker in range(3)]
    forward = parts[0] + parts[1] + parts[2]
    backward = parts[2] + parts[1] + parts[0]
    assert forward.tobytes() != backward.tobytes()


@pytest.mark.several_workers
def test_random_delays_of_workers_change_no_bit(session: Session, transport: str) -> None:
    tables = bsp_tables(mpips.Momentum(lr=0.1), "mean")
    results = [
        session(push_noise(delays), tables, transport=transport).values for delays in (1, 2, 3)
    ]
    assert results[0] == results[1] == results[2]
    assert results[0][0] == expected_bits(mpips.Momentum(lr=0.1), "mean", len(results[0]))


@pytest.mark.two_ranks
def test_a_pull_sees_all_updates_of_earlier_clocks_and_none_of_the_current_one(
    session: Session, transport: str, servers: int
) -> None:
    n = workers_with(servers)
    unit = mpips.SGD(lr=1.0)
    tables = [
        DenseTable("w", (n * 20,), optimizer=unit, consistency=BSP(reduce="sum")),
        EmbeddingTable("e", 2, optimizer=unit, consistency=BSP(reduce="sum")),
    ]

    def main(worker: Worker) -> list[tuple[set[float], set[float]]]:
        random = np.random.default_rng(worker.index)
        w, e = worker.table("w"), worker.table("e")
        own = np.zeros((20, n), np.float32)
        own[:, worker.index] = -1.0
        everyone = np.arange(n)
        seen = []
        for _ in range(8):
            time.sleep(random.uniform(0.0, 0.003))
            before = (set(w.pull().tolist()), set(e.pull(everyone).reshape(-1).tolist()))
            w.push(own.reshape(-1))
            e.push([worker.index], np.full((1, 2), -1.0, np.float32))
            after = (set(w.pull().tolist()), set(e.pull(everyone).reshape(-1).tolist()))
            assert before == after
            seen.append(after)
            worker.clock()
        return seen

    played = session(main, tables, transport=transport, servers=servers)
    assert played.values == [[({float(c)}, {float(c)}) for c in range(8)]] * n


@pytest.mark.several_workers
def test_workers_with_fewer_steps_leave_and_the_others_go_on(
    session: Session, transport: str
) -> None:
    """Worker w makes 2 + 3 w steps; a clock's mean is over the workers that made a step in it."""

    def main(worker: Worker) -> list[float]:
        handle, seen = worker.table("w"), []
        for _ in range(2 + 3 * worker.index):
            seen.append(float(handle.pull()[0]))
            handle.push(np.full(1, -6.0 * (worker.index + 1), np.float32))
            worker.clock()
        return seen

    table = DenseTable("w", (1,), optimizer=mpips.SGD(lr=1.0), consistency=BSP(reduce="mean"))
    played = session(main, [table], transport=transport)
    n = len(played.values)
    total, expected = 0.0, []
    for clock in range(2 + 3 * (n - 1)):
        expected.append(total)
        taking_part = [6.0 * (w + 1) for w in range(n) if clock < 2 + 3 * w]
        total += sum(taking_part) / len(taking_part)
    assert played.values == [expected[: 2 + 3 * w] for w in range(n)]


def test_a_push_without_a_clock_is_counted_when_the_worker_ends(
    session: Session, transport: str
) -> None:
    def main(worker: Worker) -> None:
        worker.table("w").push(np.ones(1, np.float32))

    played = session(main, [DenseTable("w", (1,))], transport=transport)
    assert played.server_total("w", "applied") == len(played.values)


@pytest.mark.mpi(min_size=5)
def test_a_clock_closes_without_the_slowest_worker_where_there_is_a_backup(
    session: Session, transport: str
) -> None:
    """Worker 0 waits until the others are done; their clocks close without it."""
    n_steps = 6
    unit = np.full(1, -1.0, np.float32)

    def main(worker: Worker) -> tuple[float, list[int]]:
        handle, late = worker.table("w"), []
        if worker.index == 0:
            handle.push(unit).wait()  # in time, but its clock closes before this worker's tick
            worker.barrier("pushed")
            worker.barrier("the others are done")
            late.append(handle.push(unit).wait().late)  # for a clock that is closed
            worker.clock()
            late.append(handle.push(unit).wait().late)  # for the clock that is open
            worker.clock()
        else:
            worker.barrier("pushed")
            for _ in range(n_steps):
                handle.push(unit)
                worker.clock()
                handle.pull()
            worker.barrier("the others are done")
        worker.flush()
        worker.barrier("all in")
        # The push of worker 0 for the open clock counts when the others leave.
        final = float(handle.pull()[0]) if worker.index != 0 else 0.0
        worker.barrier("all looked")
        return final, late

    table = DenseTable(
        "w", (1,), optimizer=mpips.SGD(lr=1.0), consistency=BSP(reduce="sum", backup=1)
    )
    played = session(main, [table], transport=transport)
    assert [late for _, late in played.values] == [[1, 0], [], []]
    taken = {what: played.server_total("w", what) for what in ("pushed", "applied", "late")}
    assert taken == {"pushed": 2 * n_steps + 3, "applied": 2 * n_steps + 1, "late": 2}
    assert taken == {what: played.worker_total(what) for what in taken}
    assert [final for final, _ in played.values[1:]] == [2.0 * n_steps] * 2


def test_small_tables_have_the_values_of_the_clock_in_any_order_of_pulls(
    session: Session, transport: str, servers: int
) -> None:
    lengths = [1 + 37 * i for i in range(12)]
    n_workers = workers_with(servers)

    def main(worker: Worker) -> int:
        random = np.random.default_rng([worker.index, 3])
        totals = [np.zeros(n, np.float32) for n in lengths]
        n_pulls = 0
        for clock in range(N_CLOCKS):
            for i in random.permutation(len(lengths)):
                update = counts(worker.index, clock, lengths[i])
                worker.table(f"t{i}").push(update, closes=bool(random.random() < 0.5))
            worker.clock()
            for i, n in enumerate(lengths):
                totals[i] -= sum(counts(w, clock, n) for w in range(n_workers))
            for i in random.integers(0, len(lengths), 15):
                assert (worker.table(f"t{i}").pull() == totals[i]).all()
                n_pulls += 1
        return n_pulls

    tables = [
        DenseTable(f"t{i}", (n,), mpips.SGD(1.0), consistency=BSP(reduce="sum"))
        for i, n in enumerate(lengths)
    ]
    played = session(main, tables, servers=servers, transport=transport)
    assert played.values == [15 * N_CLOCKS] * n_workers
