"""BSP tables that workers close before their tick: sums in worker order, without waiting for ticks."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Rig, dense, rows
from journal_rig import Rig as JournalRig

from mpips import _native
from mpips.model.consistency import BSP
from mpips.model.optimizer import SGD
from mpips.transport.region import unlink_job

N = 40  # elements of a dense table


def noise(seed: int) -> np.ndarray:
    """Values whose sum depends on the order of its terms."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=N) * 10.0 ** rng.integers(-4, 5, size=N)).astype(np.float32)


def push(
    rig: Rig | JournalRig, worker: int, table: int, clock: int, seed: int, closes: bool
) -> None:
    writer = rig.writers[worker]
    writer.set_closing(closes)
    update = noise(seed)
    if table == 2:
        keys = np.arange(4)
        assert writer.push_rows(table, clock, keys, update[:8].reshape(4, 2), None, 0) == 4
    else:
        assert writer.push_dense(table, clock, update, None, 0) == N
    writer.set_closing(False)


def make(n_workers: int) -> Rig:
    model = BSP("sum")
    tables = [dense(N, name="a", consistency=model), dense(N, name="b", consistency=model)]
    return Rig(*tables, rows(2, name="e", consistency=model), n_workers=n_workers, n_slots=64)


def test_the_next_worker_is_taken_when_a_table_is_closed_and_not_before():
    rig = make(3)
    push(rig, 1, 0, 0, 1, closes=True)
    push(rig, 2, 0, 0, 2, closes=True)
    push(rig, 0, 0, 0, 3, closes=False)
    rig.drain()
    assert [rig.core.applied(w) for w in range(3)] == [1, 0, 0]
    push(rig, 0, 0, 0, 4, closes=True)
    rig.drain()
    assert [rig.core.applied(w) for w in range(3)] == [2, 1, 1]
    assert [rig.core.clock(w) for w in range(3)] == [0, 0, 0]
    # Another table has its own turn.
    push(rig, 2, 1, 0, 5, closes=True)
    rig.drain()
    assert rig.core.applied(2) == 1


@pytest.mark.parametrize("seed", range(20))
def test_sums_have_the_bits_of_worker_order_whatever_the_interleaving(seed):
    rng = np.random.default_rng(seed)
    n, clocks = 4, 5
    rig, plain = make(n), make(n)
    programs: list[list[tuple]] = []
    for w in range(n):
        moves: list[tuple] = []
        for clock in range(clocks):
            for table in rng.permutation(3):
                number = 1000 * clock + 10 * w + int(table)
                times = int(rng.integers(0, 3))
                moves += [
                    (
                        "push",
                        int(table),
                        clock,
                        7 * number + i,
                        rng.random() < 0.9 and i == times - 1,
                    )
                    for i in range(times)
                ]
            moves.append(("tick", clock))
        programs.append(moves)

    def step(to: Rig, w: int, move: tuple, closes: bool) -> None:
        if move[0] == "tick":
            assert to.writers[w].tick(move[1])
        else:
            push(to, w, move[1], move[2], move[3], closes and move[4])

    # The plain rig has the ticks of each clock in worker order, and closes no table.
    positions = [0] * n
    for _clock in range(clocks):
        for w in range(n):
            while True:
                move = programs[w][positions[w]]
                step(plain, w, move, closes=False)
                positions[w] += 1
                if move[0] == "tick":
                    break
            plain.drain()
    left = [list(moves) for moves in programs]
    while any(left):
        w = int(rng.choice([w for w in range(n) if left[w]]))
        for _ in range(int(rng.integers(1, 6))):
            if left[w] and rig.writers[w].credits > 0:
                step(rig, w, left[w].pop(0), closes=True)
        if rng.random() < 0.5:
            rig.drain()
    rig.drain()
    for table in (0, 1):
        assert rig.values(table).tobytes() == plain.values(table).tobytes()
    for one, other in zip(rig.core.embedding_rows(2), plain.core.embedding_rows(2), strict=True):
        assert one.tobytes() == other.tobytes()
    assert [rig.core.clock(w) for w in range(n)] == [clocks] * n


def test_a_worker_that_finishes_is_passed():
    rig = make(3)
    assert rig.writers[1].finish(0)
    push(rig, 2, 0, 0, 1, closes=True)
    push(rig, 0, 0, 0, 2, closes=True)
    rig.drain()
    assert [rig.core.applied(w) for w in range(3)] == [1, 1, 1]


def test_a_push_to_a_closed_table_is_a_violation():
    rig = make(2)
    push(rig, 0, 0, 0, 1, closes=True)
    push(rig, 0, 0, 0, 2, closes=False)
    with pytest.raises(
        _native.ProtocolViolation, match="worker 0 sent a push to table 0, which it had closed"
    ):
        rig.drain()


def versions(rig: Rig) -> list[int]:
    return [rig.core.version(table) for table in range(3)]


def test_a_table_that_all_have_closed_is_applied_before_the_clock_ends():
    rig, plain = make(2), make(2)
    for table in (1, 0):
        for worker in (0, 1):
            push(rig, worker, table, 0, 10 * table + worker, closes=True)
            rig.drain()
            assert rig.core.version(table) == worker
    assert versions(rig) == [1, 1, 0]
    assert [rig.core.clock(w) for w in (0, 1)] == [0, 0]
    for worker in (0, 1):
        for table in (1, 0):
            push(plain, worker, table, 0, 10 * table + worker, closes=False)
        assert plain.writers[worker].tick(0)
    plain.drain()
    for table in (0, 1):
        assert rig.values(table).tobytes() == plain.values(table).tobytes()
    # The clock counts it once, and its updates as well.
    for worker in (0, 1):
        assert rig.writers[worker].tick(0)
    rig.drain()
    assert versions(rig) == versions(plain) == [1, 1, 1]
    for table in range(3):
        assert rig.core.steps(table) == plain.core.steps(table)
        assert rig.core.stats(table) == plain.core.stats(table)
    # The next clock begins with open tables.
    push(rig, 0, 0, 1, 5, closes=True)
    rig.drain()
    assert rig.core.version(0) == 1


def test_rows_of_the_next_clock_are_answered_when_their_table_is_applied():
    rig = make(2)
    keys, out = np.arange(4), np.full((4, 2), 9, np.float32)
    push(rig, 0, 2, 0, 1, closes=True)
    assert rig.writers[0].tick(0)
    assert rig.writers[0].pull_rows(2, 1, keys, out, 0) == 4
    rig.drain()
    assert rig.core.applied(0) == 2  # worker 1 has not pushed
    push(rig, 1, 2, 0, 2, closes=True)
    rig.drain()
    assert rig.core.applied(0) == 3
    assert rig.core.clock(1) == 0
    rig.writers[0].collect()
    assert {k: list(out[k]) for k in range(4)} == rig.table_rows(2)


@pytest.mark.parametrize("who", ["ticks", "finishes"])
def test_a_worker_without_a_push_does_not_hold_the_table(who):
    rig = make(3)
    push(rig, 0, 0, 0, 1, closes=True)
    push(rig, 2, 0, 0, 2, closes=True)
    rig.drain()
    assert rig.core.version(0) == 0
    assert rig.writers[1].tick(0) if who == "ticks" else rig.writers[1].finish(0)
    rig.drain()
    # Worker 1 has ticked, but not worker 0, whose tick comes first in the order.
    assert rig.core.version(0) == (0 if who == "ticks" else 1)
    assert rig.writers[0].tick(0)
    rig.drain()
    assert rig.core.version(0) == 1


@pytest.mark.parametrize("n_finished", [0, 1, 2])
def test_the_mean_is_over_the_workers_that_have_not_finished(n_finished):
    model = BSP("mean")
    rig = Rig(dense(N, name="a", consistency=model), n_workers=4, n_slots=64)
    for worker in range(n_finished):
        assert rig.writers[worker].finish(0)
    working = range(n_finished, 4)
    for worker in working:
        rig.writers[worker].set_closing(True)
        update = np.full(N, 12 * (worker + 1), np.float32)
        assert rig.writers[worker].push_dense(0, 0, update, None, 0) == N
    before = rig.values(0).copy()
    rig.drain()
    assert rig.core.version(0) == 1
    mean = sum(12 * (w + 1) for w in working) / len(working)
    assert np.array_equal(before - rig.values(0), np.full(N, mean, np.float32))


def test_new_hyperparameters_are_in_force_when_the_sum_is_applied_early():
    rig = make(2)
    config = SGD(lr=0.25).native()
    before = rig.values(0).copy()
    for worker in (1, 0):
        assert rig.writers[worker].configure(0, 0, 0, config)
        rig.writers[worker].set_closing(True)
        assert rig.writers[worker].push_dense(0, 0, np.full(N, 4, np.float32), None, 0) == N
        rig.drain()
    assert rig.core.version(0) == 1
    assert np.array_equal(before - rig.values(0), np.full(N, 2, np.float32))


@pytest.mark.parametrize("dies_at", range(5))
def test_with_a_journal_turns_outlive_the_server_and_sums_wait_for_the_clock(dies_at, request):
    model = BSP("sum")
    tables = [dense(N, name="a", consistency=model), dense(N, name="b", consistency=model)]
    plain = Rig(*tables, n_workers=2, n_slots=64)
    lasting = JournalRig(*tables, n_workers=2, n_slots=16)
    request.addfinalizer(lambda: unlink_job(lasting.token))
    moves = [(0, 0, True), (1, 0, True), (1, 1, True), (0, 1, False)]
    for worker, table, _ in sorted(moves):
        push(plain, worker, table, 0, 10 * worker + table, closes=False)
    for number, (worker, table, closes) in enumerate(moves):
        if number == dies_at:
            lasting.again()
        push(lasting, worker, table, 0, 10 * worker + table, closes=closes)
        lasting.drain()
    if dies_at == len(moves):
        lasting.again()
    # Worker 0 has closed table 0, and not table 1.
    assert [lasting.core.applied(w) for w in (0, 1)] == [2, 1]
    assert [lasting.core.version(table) for table in (0, 1)] == [0, 0]
    for rig in (plain, lasting):
        for worker in (0, 1):
            assert rig.writers[worker].tick(0)
        rig.drain()
    for table in (0, 1):
        assert lasting.core.version(table) == 1
        found = lasting.core.dense_values(table)
        assert found.tobytes() == plain.values(table).tobytes()
    lasting.leave()
