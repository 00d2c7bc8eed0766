"""Rows of a group of workers: what fits into the areas, and the sums that the leader pushes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from mpips import EmbeddingTable, _native
from mpips.worker.groups.row_areas import RowAreas, areas_bytes
from mpips.worker.groups.rows import GroupRows

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
Push = tuple[int, Int64, Float32]  # table, keys, rows

DIMS = {3: 1, 5: 7}  # by index of the table in the job
AREA = 4096
START = 64


def areas(n_workers: int, area_bytes: int = AREA) -> RowAreas:
    memory = _native.SharedMemory.anonymous(START + areas_bytes(n_workers, area_bytes), 0)
    return RowAreas(memory, START, area_bytes, tuple(range(n_workers)))


def members(found: RowAreas, n_workers: int) -> list[GroupRows]:
    tables = {index: EmbeddingTable(f"t{index}", dim) for index, dim in DIMS.items()}
    return [GroupRows(found, tables, number, n_workers) for number in range(n_workers)]


def push_of(seed: int, table: int, n: int) -> Push:
    random = np.random.default_rng([seed, table, n])
    keys = random.choice(20, size=n, replace=False).astype(np.int64) - 5
    rows = random.normal(size=(n, DIMS[table])) * 10.0 ** random.integers(-4, 5, size=(n, 1))
    return table, keys, rows.astype(np.float32)


def defined(pushes: Sequence[Push], table: int) -> dict[int, bytes]:
    """Return the sum of each key: rows are added one after another."""
    total: dict[int, Float32] = {}
    for index, keys, rows in pushes:
        for key, row in zip(keys.tolist(), rows, strict=True):
            if index == table:
                total[key] = total[key] + row if key in total else row
    return {key: row.tobytes() for key, row in total.items()}


def summed(found: RowAreas, leader: GroupRows, clock: int) -> dict[int, dict[int, bytes]]:
    """Return by table the sums that the leader pushes, made as a writer makes them."""
    sums: dict[int, dict[int, bytes]] = {}

    def send(table: int, keys: Int64, rows: Float32) -> None:
        plan = _native.KeyPlan()
        plan.build(keys, _native.Partitioner.hash(3))
        totals = zip(plan.unique_keys.tolist(), plan.sum_rows(rows), strict=True)
        assert table not in sums
        sums[table] = {key: row.tobytes() for key, row in totals}

    for index in DIMS:
        leader.add(index, lambda keys, rows, index=index: send(index, keys, rows))
    leader.push_sums(clock)
    return sums


@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_sums_are_those_of_all_pushes_in_their_order(n_workers: int) -> None:
    found = areas(n_workers)
    group = members(found, n_workers)
    for clock in range(5):
        pushes: list[Push] = []
        for number, member in enumerate(group):
            for k, size in enumerate((0, 1, 5, 13)[: (number + clock) % 5]):
                push = push_of(100 * clock + 10 * number + k, (3, 5)[(k + clock) % 2], size)
                assert member.append(clock, *push)
                pushes.append(push)
                kept = push[1].copy(), push[2].copy()
                push[1][:], push[2][:] = 0, np.nan  # free again
                pushes[-1] = (push[0], *kept)
        sums = summed(found, group[clock % n_workers], clock)
        for table in DIMS:
            assert sums.get(table, {}) == defined(pushes, table), (clock, table)


def test_rows_of_a_key_are_added_in_the_order_of_the_workers() -> None:
    found = areas(3)
    group = members(found, 3)
    # 1e8 - 1e8 + 1 is 1, and in every other order but one it is 0 in float32.
    for number, values in ((2, [1.0]), (0, [1e8]), (1, [-3e7, -7e7])):
        for value in values:
            rows = np.full((1, DIMS[5]), value, np.float32)
            assert group[number].append(0, 5, np.array([4]), rows)
    for leader in group:
        sums = summed(found, leader, 0)
        assert sums == {5: {4: np.ones(DIMS[5], np.float32).tobytes()}}


def test_rows_of_a_clock_stay_until_the_clock_after_the_next_one() -> None:
    """The leader may read clock c while the others push in clock c + 1."""
    found = areas(2)
    first, second = members(found, 2)
    old, new = push_of(1, 5, 7), push_of(2, 5, 9)
    assert first.append(4, *old)
    assert first.append(5, *new)
    assert summed(found, second, 4) == {5: defined([old], 5)}
    assert summed(found, second, 5) == {5: defined([new], 5)}
    # Without a push in clock 6 the rows of clock 4 do not count again.
    assert summed(found, second, 6) == {}


def test_what_fits_depends_on_the_bytes_of_the_clock_alone() -> None:
    row = 4 * DIMS[5]
    area_head, head, padding = 24, 16, 4
    n = (AREA - area_head - head) // (8 + row)
    exact = area_head + head + n * (8 + row) + (padding if n % 2 else 0)
    random = np.random.default_rng(1)
    keys, rows = np.arange(n), random.normal(size=(n, DIMS[5])).astype(np.float32)

    def tries(area_bytes: int) -> list[bool]:
        found = areas(1, area_bytes)
        (member,) = members(found, 1)
        # Another clock's rows in the other area change nothing.
        fits = [member.append(7, 5, keys[:3], rows[:3])]
        fits += [member.append(8, 5, keys, rows), member.append(8, 5, keys[:0], rows[:0])]
        fits += [member.append(8, 3, keys[:1], rows[:1, :1])]
        assert summed(found, member, 8).get(5, {}) == (
            defined([(5, keys, rows)], 5) if fits[1] else {}
        )
        return fits

    assert tries(exact) == [True, True, False, False]
    assert tries(exact - 8) == [True, False, True, True]
    assert tries(exact + 16) == [True, True, True, False]
    assert tries(exact) == tries(exact)  # a worker that repeats a clock finds the same


def test_workers_of_a_subgroup_have_one_area_and_count_once() -> None:
    """The next leader of a subgroup writes where the one before has written."""
    memory = _native.SharedMemory.anonymous(START + areas_bytes(2, AREA), 0)
    found = RowAreas(memory, START, AREA, (0, 1, 0))
    first, second, third = members(found, 3)
    old, other, new = push_of(1, 5, 7), push_of(2, 5, 9), push_of(3, 5, 4)
    assert first.append(4, *old)
    assert second.append(4, *other)
    assert summed(found, second, 4) == {5: defined([old, other], 5)}
    assert third.append(6, *new)
    assert second.append(6, *other)
    assert summed(found, second, 6) == {5: defined([other, new], 5)}
    assert summed(found, second, 4) == {}


def test_several_pushes_that_fill_an_area_leave_later_ones_out() -> None:
    found = areas(2)
    group = members(found, 2)
    pushes = [push_of(k, 5, 20) for k in range(9)]
    fits = [group[0].append(0, *push) for push in pushes]
    assert fits == [True] * 5 + [False] * 4  # 736 bytes each, of 4,080
    own = push_of(50, 3, 11)
    assert group[1].append(0, *own)  # the area of another worker is its own
    assert summed(found, group[1], 0) == {3: defined([own], 3), 5: defined(pushes[:5], 5)}
