"""Rows that workers of a group pull once: one of them writes, no other reads a row of another clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mpips import SGD, StallError, _native
from mpips.worker.groups.row_pulls import RowPulls, SharedRowsPart

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]

STRIDE = 7
LINE = 64


def shared(n_workers: int, n_slots: int) -> list[_native.SharedRows]:
    n_bytes = n_slots * (LINE + 4 * STRIDE)
    memory = _native.SharedMemory.anonymous(LINE + n_bytes, 0)
    return [
        _native.SharedRows(memory, LINE, n_bytes, STRIDE, w, n_workers, True)
        for w in range(n_workers)
    ]


def row_of(table: int, clock: int, keys: Int64, dim: int) -> Float32:
    """Return rows that differ in every key, clock and table."""
    rows = keys[:, None] * 64 + np.arange(dim) + 1e5 * clock + 1e4 * table
    return rows.astype(np.float32)


def test_one_worker_pulls_a_row_and_the_others_copy_it() -> None:
    first, second = shared(2, 50)
    assert first.n_slots == 50
    keys = np.array([5, -3, 7])
    mine, others = first.claim(1, 4, keys)
    assert len(set(mine.tolist())) == 3
    assert others.tolist() == [0, 0, 0]
    slots, others = second.claim(1, 4, np.array([7, 9, 5]))
    assert others.tolist() == [1, 0, 1]
    assert slots[[0, 2]].tolist() == mine[[2, 0]].tolist()
    assert first.claimant(int(slots[0])) == 0
    assert first.claimant(int(slots[1])) == 1
    wanted = slots[[0, 2]]
    assert second.wait_ready(4, wanted, 0, 0.0) == 0
    first.publish(4, mine[1:], row_of(1, 4, keys[1:], 3))
    assert second.wait_ready(4, wanted, 0, 0.0) == 1
    first.publish(4, mine[:1], row_of(1, 4, keys[:1], 3))
    assert second.wait_ready(4, wanted, 1, 0.0) == 2
    out = np.zeros((2, 3), np.float32)
    second.copy(wanted, out)
    np.testing.assert_array_equal(out, row_of(1, 4, np.array([7, 5]), 3))


def test_clocks_tables_and_claims_of_errors_are_kept_apart() -> None:
    first, second = shared(2, 64)
    keys = np.arange(10)
    slots, _ = first.claim(0, 0, keys)
    first.publish(0, slots, row_of(0, 0, keys, STRIDE))
    assert second.claim(1, 0, keys)[1].tolist() == [0] * 10  # another table
    assert second.claim(0, 0, keys)[1].tolist() == [1] * 10
    # The worker's second pull at the clock copies what is there, and repeats what an error has left.
    assert first.claim(0, 0, keys)[1].tolist() == [1] * 10
    slots, others = first.claim(0, 1, keys)
    assert others.tolist() == [0] * 10
    again, others = first.claim(0, 1, keys)
    assert (again.tolist(), others.tolist()) == (slots.tolist(), [0] * 10)
    assert second.wait_ready(1, second.claim(0, 1, keys)[0], 0, 0.0) == 0


def test_a_key_of_an_earlier_clock_is_not_that_of_a_slot_that_is_claimed_anew() -> None:
    """Worker 0 has claimed the slot for clock 1 and not yet written its key: the key of clock 0 is there."""
    memory = _native.SharedMemory.anonymous(LINE + 4 * STRIDE, 0)
    first, second = (
        _native.SharedRows(memory, 0, LINE + 4 * STRIDE, STRIDE, w, 2, True) for w in range(2)
    )
    keys = np.array([5])
    assert first.claim(0, 0, keys)[0].tolist() == [0]
    claimed, keyed = (memory.view(8 * word, 8, True).view(np.uint64) for word in range(2))
    assert (claimed[0], keyed[0]) == ((0 + 1) * 2, 0 + 1)
    claimed[0] = (1 + 1) * 2
    slots, others = second.claim(0, 1, keys)
    assert (slots.tolist(), others.tolist()) == ([-1], [0])
    keyed[0] = 1 + 1
    slots, others = second.claim(0, 1, keys)
    assert (slots.tolist(), others.tolist()) == ([0], [1])


@pytest.mark.parametrize("n_slots", [0, 1, 5, 24])
def test_a_full_table_leaves_rows_to_each_worker(n_slots: int) -> None:
    first, second = shared(2, n_slots)
    keys = np.arange(40)
    slots, others = first.claim(0, 3, keys)
    found = slots[slots >= 0]
    assert not others.any()
    assert len(found) == len(set(found.tolist())) <= n_slots
    assert len(found) > 0 or n_slots == 0
    first.publish(3, slots, row_of(0, 3, keys, 2))  # rows without a slot are left out
    slots, others = second.claim(0, 3, keys)
    assert (slots[others == 1] >= 0).all()
    assert others.sum() == len(found)


def test_wrong_numbers_are_refused() -> None:
    (only,) = shared(1, 4)
    with pytest.raises(IndexError, match="slot 4 of 4"):
        only.claimant(4)
    with pytest.raises(IndexError, match="slot -1 of 4"):
        only.copy(np.array([-1]), np.zeros((1, 2), np.float32))
    with pytest.raises(IndexError, match="slot -1 of 4"):
        only.left(np.array([-1]))
    with pytest.raises(IndexError, match="slot 4 of 4"):
        only.give_up(0, np.array([-1, 4]))
    with pytest.raises(ValueError, match="rows of length 8, expected at most 7"):
        only.publish(0, np.array([0]), np.zeros((1, 8), np.float32))
    memory = _native.SharedMemory.anonymous(4096, 0)
    for numbers in ((8, 64, 1, 0, 1), (0, 8192, 1, 0, 1), (0, 64, 1, 1, 1), (0, 64, 0, 0, 1)):
        with pytest.raises(ValueError, match="do not fit together"):
            _native.SharedRows(memory, *numbers, True)


class Node:
    """The workers of a group, played by threads: each makes pulls within clocks that all end together."""

    def __init__(self, n_workers: int, n_slots: int) -> None:
        layout = _native.NodeLayout(n_workers, [(0, 0)], 1)
        memory = _native.SharedMemory.anonymous(layout.total_bytes, 0)
        rules = [("rows", SGD().native(), False, 0, True)]
        self.reductions = [
            _native.Reduction(memory, layout, w, list(range(n_workers)), rules, True)
            for w in range(n_workers)
        ]
        self.connections: list[Any] = []
        self.pulls: list[RowPulls] = []
        names = [f"worker {w}" for w in range(n_workers)]
        for w, rows in enumerate(shared(n_workers, n_slots)):
            writer = SimpleNamespace(is_ahead_of=lambda clock: False)
            connection: Any = SimpleNamespace(
                now=0, channels=[SimpleNamespace(writer=writer)], wait_until=self._wait_until
            )
            self.connections.append(connection)
            part = SharedRowsPart(rows, (0, 2))
            self.pulls.append(RowPulls(connection, part, names, self.reductions[w], 0))

    n_waits = 1000  # before the job's timeout

    def _wait_until(self, done: Callable[[], bool], late: Callable[[], str]) -> None:
        for _ in range(self.n_waits):
            if done():
                return
        raise StallError(late())

    def tick(self, worker: int) -> None:
        self.reductions[worker].tick()
        self.connections[worker].now += 1


def plan_of(keys: Int64) -> _native.KeyPlan:
    plan = _native.KeyPlan()
    plan.build(keys, _native.Partitioner.hash(3))
    return plan


@pytest.mark.parametrize(("n_workers", "n_slots"), [(2, 3000), (3, 3000), (3, 100)])
def test_no_worker_gets_a_row_of_another_clock(n_workers: int, n_slots: int) -> None:
    node = Node(n_workers, n_slots)
    n_clocks, n_keys = 40, 500
    fetched = [0] * n_workers
    wrong: list[str] = []

    def work(w: int) -> None:
        for clock in range(n_clocks):
            for pull in range(2):
                random = np.random.default_rng([w, clock, pull])
                plan = plan_of(random.integers(0, n_keys, size=200))

                def fetch(keys: Int64, clock: int = clock, pull: int = pull) -> Float32:
                    fetched[w] += len(keys)
                    return row_of(pull, clock, keys, STRIDE)

                rows = node.pulls[w].pull(pull, "t", plan, STRIDE, fetch)
                expected = row_of(pull, clock, plan.unique_keys, STRIDE)
                if rows is None or not np.array_equal(rows, expected):
                    wrong.append(f"worker {w} at clock {clock}: {rows is None}")
                    return
            node.tick(w)
            while not node.reductions[w].wait_complete(0, 1.0):
                pass

    threads = [threading.Thread(target=work, args=(w,)) for w in range(n_workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    alone = n_workers * n_clocks * 2 * 200 * (1 - np.exp(-200 / n_keys)) * n_keys / 200
    share = sum(fetched) / alone
    # Of 500 keys each worker needs 165 in a pull, and a third of them lie on the server of this node.
    assert share < (0.9 if n_slots > 1000 else 1.0)


def test_a_worker_that_is_ahead_of_its_group_pulls_by_itself() -> None:
    node = Node(2, 100)
    plan = plan_of(np.arange(50))
    assert node.pulls[0].pull(0, "t", plan, 2, lambda keys: row_of(0, 0, keys, 2)) is not None
    node.tick(0)
    assert node.pulls[0].pull(0, "t", plan, 2, lambda keys: row_of(0, 1, keys, 2)) is None
    node.tick(1)
    for reduction in node.reductions:
        reduction.advance()
    assert node.pulls[0].pull(0, "t", plan, 2, lambda keys: row_of(0, 1, keys, 2)) is not None
    # One that may repeat a clock that a server has closed does not share either.
    node.connections[1].channels[0].writer.is_ahead_of = lambda clock: clock == 1
    assert node.pulls[1].pull(0, "t", plan, 2, lambda keys: row_of(0, 1, keys, 2)) is None


def test_keys_of_servers_of_this_node_are_not_shared() -> None:
    node = Node(2, 100)
    partitioner = _native.Partitioner.hash(3)
    near = np.array([key for key in range(100) if partitioner.owner(key) == 1])
    assert node.pulls[0].pull(0, "t", plan_of(near), 2, lambda keys: 1 / 0) is None
    asked: list[set[int]] = []
    for pulls in node.pulls:

        def fetch(keys: Int64) -> Float32:
            asked.append(set(keys.tolist()))
            return row_of(0, 0, keys, 2)

        pulls.pull(0, "t", plan_of(np.arange(60)), 2, fetch)
    assert asked == [set(range(60)), set(near[near < 60].tolist())]


def test_a_worker_that_does_not_receive_its_rows_is_named() -> None:
    node = Node(3, 100)
    node.n_waits = 3
    met: list[str] = []

    def wait(keys: Int64) -> Float32:
        with pytest.raises(
            StallError, match="worker 2, which pulls rows of table 't' at clock 0 for"
        ):
            node.pulls[0].pull(
                0, "t", plan_of(np.arange(20)), 2, lambda keys: row_of(0, 0, keys, 2)
            )
        met.append("stalled")
        return row_of(0, 0, keys, 2)

    node.pulls[2].pull(0, "t", plan_of(np.arange(10)), 2, wait)
    assert met == ["stalled"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("repeats", [True, False])
def test_rows_of_a_pull_that_ended_with_an_error_are_pulled_by_the_others(
    error: type[BaseException], repeats: bool
) -> None:
    node = Node(3, 100)
    node.n_waits = 3
    asked: list[list[int]] = [[], [], []]

    def fetch(worker: int, clock: int, keys: Int64) -> Float32:
        asked[worker] += keys.tolist()
        return row_of(0, clock, keys, 2)

    def fail(keys: Int64) -> Float32:
        raise error("interrupted")

    def pull(worker: int, clock: int, n: int) -> None:
        plan = plan_of(np.arange(n))
        rows = node.pulls[worker].pull(0, "t", plan, 2, lambda k: fetch(worker, clock, k))
        np.testing.assert_array_equal(rows, row_of(0, clock, plan.unique_keys, 2))

    partitioner = _native.Partitioner.hash(3)
    remote = {key for key in range(20) if partitioner.owner(key) != 1}
    pull(1, 0, 4)
    with pytest.raises(error, match="interrupted"):
        node.pulls[2].pull(0, "t", plan_of(np.arange(20)), 2, fail)
    if repeats:
        pull(2, 0, 20)
    pull(0, 0, 30)
    pull(1, 0, 30)
    # Without its repetition all but the rows that had been there are pulled by each of the others.
    assert remote & set(asked[0]) == (set() if repeats else remote - set(range(4)))
    assert remote & set(asked[1][4:]) == (set() if repeats else remote - set(range(4)))
    # The next clock shares all of them again.
    for worker in range(3):
        node.tick(worker)
    for reduction in node.reductions:
        reduction.advance()
    asked[:] = [[], [], []]
    for worker in (1, 0, 2):
        pull(worker, 1, 20)
    assert remote & set(asked[1]) == remote
    assert not remote & set(asked[0] + asked[2])
