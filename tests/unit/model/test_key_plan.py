"""The key plan of a batch, compared with NumPy: unique, add.at and fancy indexing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpips._native import KeyPlan, Partitioner

INT64 = np.iinfo(np.int64)
SERVERS = (1, 2, 3, 7, 64)

keys_of_batch = st.lists(st.one_of(st.integers(-15, 15), st.integers(-1000, 999)), max_size=80)


def int64(keys: object) -> np.ndarray:
    return np.array(keys, dtype=np.int64)


def partitioners(n_servers: int) -> list[Partitioner]:
    boundaries = np.linspace(-1000, 1000, n_servers + 1).astype(np.int64)
    table = (np.arange(200) * 13 % n_servers).astype(np.uint16)
    return [
        Partitioner.hash(n_servers),
        Partitioner.range(boundaries),
        Partitioner.buckets(table, n_servers),
    ]


def check_plan(plan: KeyPlan, keys: np.ndarray, partitioner: Partitioner) -> None:
    unique, starts, inverse = plan.unique_keys, plan.group_starts, plan.inverse
    assert (unique.dtype, starts.dtype, inverse.dtype) == (np.int64, np.uint64, np.uint32)
    assert len(plan) == keys.size
    assert plan.n_unique == unique.size
    assert sorted(unique.tolist()) == np.unique(keys).tolist()
    assert (unique[inverse] == keys).all()

    # Order groups by server, and the keys of a group by first occurrence.
    appeared = list(dict.fromkeys(keys.tolist()))
    owners = partitioner.owners(int64(appeared)).tolist()
    pairs = sorted(zip(owners, range(len(appeared)), strict=True))
    assert unique.tolist() == [appeared[number] for _, number in pairs]
    counts = np.bincount(int64(owners), minlength=partitioner.n_servers)
    assert starts.tolist() == [0, *np.cumsum(counts).tolist()]


def check_rows(plan: KeyPlan, keys: np.ndarray, dim: int) -> None:
    rows = np.random.default_rng(keys.size).integers(-99, 99, (keys.size, dim)).astype(np.float32)
    expected = np.zeros((plan.n_unique, dim), np.float32)
    np.add.at(expected, plan.inverse, rows)
    sums = plan.sum_rows(rows)
    assert sums.dtype == np.float32
    assert (sums == expected).all()

    out = np.full((keys.size, dim), np.nan, np.float32)
    plan.scatter_rows(expected, out)
    assert (out == expected[plan.inverse]).all()


@given(
    batches=st.lists(keys_of_batch, min_size=1, max_size=4),
    n_servers=st.sampled_from(SERVERS),
    dim=st.sampled_from((0, 1, 3, 16)),
)
def test_plan_agrees_with_numpy(batches: list[list[int]], n_servers: int, dim: int) -> None:
    # Use one plan for all batches, so that state of an earlier batch would show.
    plan = KeyPlan()
    for partitioner in partitioners(n_servers):
        for batch in batches:
            keys = int64(batch)
            plan.build(keys, partitioner)
            check_plan(plan, keys, partitioner)
            check_rows(plan, keys, dim)


@pytest.mark.parametrize("n_servers", SERVERS)
@pytest.mark.parametrize("n_different", [100_000, 300])
def test_large_batches_agree_with_numpy(n_servers: int, n_different: int) -> None:
    draws = np.random.default_rng(n_servers).integers(0, n_different, 20_000)
    keys = draws * 2_718_281_828_459 - 10**17
    partitioner = Partitioner.hash(n_servers)
    plan = KeyPlan()
    plan.build(keys, partitioner)
    check_plan(plan, keys, partitioner)
    check_rows(plan, keys, 5)


@pytest.mark.parametrize("n_servers", SERVERS)
def test_batches_without_repeats_agree_with_numpy(n_servers: int) -> None:
    keys = np.random.default_rng(0).permutation(5000) - 2500
    for partitioner in (Partitioner.hash(n_servers), partitioners_over(-2500, 2500, n_servers)):
        for batch in (keys, np.sort(keys)):
            plan = KeyPlan()
            plan.build(batch, partitioner)
            check_plan(plan, batch, partitioner)
            check_rows(plan, batch, 4)


def partitioners_over(low: int, high: int, n_servers: int) -> Partitioner:
    return Partitioner.range(np.linspace(low, high, n_servers + 1).astype(np.int64))


def test_rows_are_added_in_the_order_of_the_batch() -> None:
    # In float32 the sum depends on the order: (1e8 + 1) - 1e8 is 0, (1e8 - 1e8) + 1 is 1.
    plan = KeyPlan()
    plan.build(int64([4, 9, 4, 4]), Partitioner.hash(1))
    rows = np.array([[1e8, -1e8], [0, 0], [1, 1e8], [-1e8, 1]], np.float32)
    assert plan.sum_rows(rows).tolist() == [[0, 1], [0, 0]]


def test_extreme_keys_are_planned() -> None:
    keys = int64([INT64.max, INT64.min, 0, -1, INT64.max, INT64.min])
    plan = KeyPlan()
    plan.build(keys, Partitioner.hash(5))
    check_plan(plan, keys, Partitioner.hash(5))


def test_key_outside_the_partition_is_a_key_error_and_empties_the_plan() -> None:
    plan = KeyPlan()
    partitioner = Partitioner.range(int64([0, 50, 100]))
    plan.build(int64([1, 99]), partitioner)
    for key in (100, -1):
        with pytest.raises(KeyError, match=rf"key {key} lies outside .* keys from 0 to 99"):
            plan.build(int64([1, key, 2]), partitioner)
        assert (len(plan), plan.n_unique) == (0, 0)
        assert plan.group_starts.tolist() == [0, 0, 0]
    plan.build(int64([60, 1]), partitioner)
    assert plan.unique_keys.tolist() == [1, 60]


def test_results_outlive_the_next_build() -> None:
    plan = KeyPlan()
    plan.build(int64([3, 1, 3]), Partitioner.hash(1))
    unique, inverse = plan.unique_keys, plan.inverse
    plan.build(np.arange(100_000, dtype=np.int64), Partitioner.hash(1))
    assert unique.tolist() == [3, 1]
    assert inverse.tolist() == [0, 1, 0]


def test_wrong_shapes_are_refused() -> None:
    plan = KeyPlan()
    plan.build(int64([1, 2, 1]), Partitioner.hash(2))
    with pytest.raises(ValueError, match=r"rows has shape \(2, 4\), expected \(3, dim\)"):
        plan.sum_rows(np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match=r"out has shape \(3, 5\), expected rows of length 4"):
        plan.scatter_rows(np.zeros((2, 4), np.float32), np.zeros((3, 5), np.float32))
    with pytest.raises(TypeError):
        plan.sum_rows(np.zeros((3, 4)))
    locked = np.zeros((3, 4), np.float32)
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="not writeable"):
        plan.scatter_rows(np.zeros((2, 4), np.float32), locked)


@pytest.mark.parametrize("n_servers", SERVERS)
def test_range_owner_is_the_interval_that_holds_the_key(n_servers: int) -> None:
    boundaries = np.sort(np.random.default_rng(n_servers).integers(-60, 60, n_servers + 1))
    partitioner = Partitioner.range(boundaries)
    keys = np.arange(boundaries[0], boundaries[-1], dtype=np.int64)
    owners = partitioner.owners(keys)
    assert (boundaries[owners] <= keys).all()
    assert (keys < boundaries[owners + 1]).all()
    assert [partitioner.owner(key) for key in keys.tolist()] == owners.tolist()


@pytest.mark.parametrize("n_servers", [2, 3, 64, 65535])
def test_hash_owners_are_even_and_in_range(n_servers: int) -> None:
    n_keys = 20 * n_servers + 100_000
    for stride in (1, 4096, 2**40 + 2**8):
        keys = np.arange(n_keys, dtype=np.int64) * np.int64(stride)
        counts = np.bincount(Partitioner.hash(n_servers).owners(keys), minlength=n_servers)
        assert counts.size == n_servers
        mean = n_keys / n_servers
        assert abs(counts - mean).max() < 7 * mean**0.5


def test_bucket_owner_is_the_table_entry_of_the_bucket() -> None:
    table = np.random.default_rng(6).integers(0, 9, 500).astype(np.uint16)
    keys = np.random.default_rng(7).integers(INT64.min, INT64.max, 10_000)
    buckets = Partitioner.hash(500).owners(keys)
    assert (Partitioner.buckets(table, 9).owners(keys) == table[buckets]).all()


def test_wrong_partitions_are_refused() -> None:
    for n_servers in (0, 65536):
        with pytest.raises(
            ValueError, match=f"n_servers = {n_servers}: a partition needs 1 to 65535"
        ):
            Partitioner.hash(n_servers)
    for boundaries in ([], [1], [1, 1], [2, 1, 3]):
        with pytest.raises(ValueError, match="ascending boundaries"):
            Partitioner.range(int64(boundaries))
    with pytest.raises(ValueError, match="belongs to server 3, but servers are 0 to 2"):
        Partitioner.buckets(np.array([0, 3], np.uint16), 3)
    with pytest.raises(ValueError, match="0 buckets: a bucket partition needs 1"):
        Partitioner.buckets(np.array([], np.uint16), 3)
