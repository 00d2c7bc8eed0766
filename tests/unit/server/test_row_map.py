"""The key-to-row map, compared with a dict."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_words import set_generation

from mpips._native import KeyPlan, Partitioner, RowMap

INT64 = np.iinfo(np.int64)
NPOS = 0xFFFFFFFF

# Use few small keys, so that batches repeat them, and the extremes.
any_key = st.one_of(
    st.integers(-20, 20), st.sampled_from([INT64.min, INT64.max]), st.integers(INT64.min, INT64.max)
)
batches = st.lists(st.lists(any_key, max_size=60), max_size=8)


def int64(keys: object) -> np.ndarray:
    return np.array(keys, dtype=np.int64)


def crafted(n: int) -> np.ndarray:
    """Return keys whose hash by the finaliser of MurmurHash3, without a secret, begins with zeros."""
    x = np.arange(n, dtype=np.uint64)
    for factor in (0xC4CEB9FE1A85EC53, 0xFF51AFD7ED558CCD):
        x = (x ^ (x >> np.uint64(33))) * np.uint64(pow(factor, -1, 2**64))
    return (x ^ (x >> np.uint64(33))).view(np.int64)


def strides(n: int) -> list[np.ndarray]:
    """Return regular keys, which a map must spread as well as random ones."""
    return [np.arange(n, dtype=np.int64) << shift for shift in (0, 1, 20, 31, 33, 44)]


@pytest.mark.parametrize("which", range(7))
def test_no_choice_of_keys_crowds_a_map(which: int) -> None:
    keys = [crafted(40_000), *strides(40_000)][which]
    rows = RowMap(0)
    rows.find_or_insert(keys)
    assert rows.longest_probe() < 40
    assert rows.find(keys).tolist() == list(range(40_000))


def test_no_choice_of_keys_slows_a_plan_down() -> None:
    plan, partitioner = KeyPlan(), Partitioner.hash(1)

    def fastest(keys: np.ndarray) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            plan.build(keys, partitioner)
            times.append(time.perf_counter() - start)
        return min(times)

    fastest(crafted(100))
    ordinary = fastest(np.random.default_rng(1).permutation(40_000))
    # Without a secret in the hash the factor is 600.
    assert fastest(crafted(40_000)) < 20 * ordinary


@given(batches=batches, absent=st.lists(any_key, max_size=30))
def test_map_agrees_with_a_dict(batches: list[list[int]], absent: list[int]) -> None:
    rows = RowMap(0)
    model: dict[int, int] = {}
    for batch in batches:
        before = len(model)
        expected = [model.setdefault(key, len(model)) for key in batch]
        found, n_new = rows.find_or_insert(int64(batch))
        assert found.dtype == np.uint32
        assert found.tolist() == expected
        assert n_new == len(model) - before
        assert len(rows) == len(model)
    keys = [*absent, *model]
    assert rows.find(int64(keys)).tolist() == [model.get(key, NPOS) for key in keys]


@pytest.mark.parametrize(("n_keys", "n_most"), [(40, 30), (400, 224), (6000, 3584)])
def test_a_map_agrees_with_a_dict_while_keys_are_removed(n_keys: int, n_most: int) -> None:
    rng, rows = np.random.default_rng(n_keys), RowMap(0)
    order: list[int] = []  # the key of each row
    keys = rng.integers(-(2**63), 2**63, n_keys)
    present: set[int] = set()
    for step in range(6 * n_keys):
        # Fill the map to its highest load, remove keys at random, and empty it at the end.
        key = int(keys[rng.integers(n_keys)])
        grows = step < 5 * n_keys and rng.random() < 0.6
        if grows and key not in present and len(order) < n_most:
            assert rows.find_or_insert(int64([key]))[1] == 1
            order.append(key)
            present.add(key)
        elif not grows and present:
            key = key if key in present else order[int(rng.integers(len(order)))]
            row = order.index(key)
            assert rows.erase(key) == row
            assert rows.erase(key) == NPOS
            last = order.pop()
            if last != key:
                order[row] = last
                rows.set_row(last, row)
            present.remove(key)
        if step % (n_keys // 4) == 0 or len(order) == n_most:
            model = {key: row for row, key in enumerate(order)}
            assert rows.find(keys).tolist() == [model.get(int(k), NPOS) for k in keys]
        assert len(rows) == len(order)
    full = rows.memory_bytes()
    while len(order) > 3:
        rows.erase(order.pop())
    rows.shrink()
    assert rows.memory_bytes() < full or (n_keys < 6000 and rows.memory_bytes() == full)
    assert rows.find(int64(order)).tolist() == list(range(len(order)))


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300])
def test_batches_of_any_length_give_each_key_its_own_row(n: int) -> None:
    # Fill the map nearly, so that many searches continue beyond the home bucket.
    rows = RowMap(1000)
    rng = np.random.default_rng(n)
    known = rng.permutation(10**6)[: rows.capacity - n]
    rows.find_or_insert(known)
    model = {key: row for row, key in enumerate(known.tolist())}
    batch = rng.choice(np.concatenate([known, rng.integers(0, 10**6, 64)]), n)
    expected = [model.get(key, NPOS) for key in batch.tolist()]
    assert rows.find(batch).tolist() == expected
    found, _ = rows.find_or_insert(batch)
    assert found.tolist() == [model.setdefault(key, len(model)) for key in batch.tolist()]


def test_keys_that_share_a_half_are_told_apart() -> None:
    halves = int64([0, 1, -1, 2**31 - 1, -(2**31), 7])
    high, low = (a.ravel() for a in np.meshgrid(halves, halves & 0xFFFFFFFF, indexing="ij"))
    keys = (high << 32) | low
    known = np.random.default_rng(6).permutation(keys.size) < keys.size // 2
    rows = RowMap(0)
    rows.find_or_insert(keys[known])
    assert rows.find(keys[known]).tolist() == list(range(int(known.sum())))
    assert (rows.find(keys[~known]) == NPOS).all()


@given(batches=batches)
def test_clear_forgets_every_key_and_keeps_capacity(batches: list[list[int]]) -> None:
    rows = RowMap(0)
    for batch in batches:
        rows.find_or_insert(int64(batch))
        capacity = rows.capacity
        rows.clear()
        assert len(rows) == 0
        assert rows.capacity == capacity
        assert (rows.find(int64(batch)) == NPOS).all()


def test_keys_of_all_generations_stay_forgotten_after_the_last_generation() -> None:
    # After 2**29 calls of clear the numbers of generations begin again.
    rows = RowMap(0)
    batches = [int64(np.arange(50)) + 1000 * i for i in range(6)]
    rows.find_or_insert(batches[0])
    rows.clear()
    set_generation(rows, 2**29 - 3)
    for i, batch in enumerate(batches[1:], 1):
        for old in batches[:i]:
            assert (rows.find(old) == NPOS).all()
        assert rows.find_or_insert(batch)[1] == 50
        rows.clear()
        assert len(rows) == 0


def test_rows_are_kept_while_the_map_grows() -> None:
    keys = np.random.default_rng(1).permutation(int64(np.arange(-30_000, 30_000)) * 1_000_003)
    rows = RowMap(0)
    first_bytes = rows.memory_bytes()
    for start in range(0, keys.size, 777):
        _, n_new = rows.find_or_insert(keys[start : start + 777])
        assert n_new == min(777, keys.size - start)
        assert (rows.find(keys[: start + 777]) == np.arange(min(start + 777, keys.size))).all()
    assert rows.memory_bytes() > first_bytes
    assert len(rows) <= rows.capacity


def test_a_batch_of_repeats_that_forces_growth_numbers_each_key_once() -> None:
    rows = RowMap(0)
    batch = np.tile(int64([7, -7, INT64.min]), 5000)
    found, n_new = rows.find_or_insert(batch)
    assert n_new == 3
    assert (found == np.tile([0, 1, 2], 5000)).all()


def test_reserve_makes_room_once() -> None:
    rows = RowMap(0)
    rows.find_or_insert(int64([5]))
    rows.reserve(100_000)
    reserved = rows.memory_bytes()
    rows.find_or_insert(np.arange(99_999, dtype=np.int64) + 10)
    assert rows.memory_bytes() == reserved == RowMap(100_000).memory_bytes()
    assert rows.find(int64([5])).tolist() == [0]


def test_million_keys() -> None:
    keys = np.unique(np.random.default_rng(2).integers(INT64.min, INT64.max, 1_000_000))
    np.random.default_rng(3).shuffle(keys)
    rows = RowMap(0)
    found, n_new = rows.find_or_insert(keys)
    assert n_new == keys.size == len(rows)
    assert (found == np.arange(keys.size)).all()
    order = np.random.default_rng(4).permutation(keys.size)
    assert (rows.find(keys[order]) == order).all()
    absent = np.setdiff1d(keys + 1, keys)
    assert (rows.find(absent) == NPOS).all()
    assert rows.memory_bytes() <= 40 * keys.size


def key_patterns() -> dict[str, np.ndarray]:
    steps = np.arange(100_000, dtype=np.int64)
    patterns = {f"multiples of 2^{k}": steps << k for k in range(0, 48, 4)}
    patterns["negative"] = -steps * 4096
    patterns["high and low halves"] = (steps % 300 << 32) | steps // 300
    patterns["multiples of the golden ratio's inverse"] = (
        steps.view(np.uint64) * np.uint64(0xF1DE83E19937733D)
    ).view(np.int64)
    patterns["keys of one server of 64"] = steps_of_one_server(Partitioner.hash(64))
    patterns["keys of one of 4096 buckets"] = steps_of_one_server(Partitioner.hash(4096))
    return patterns


def steps_of_one_server(partitioner: Partitioner) -> np.ndarray:
    keys = np.arange(4_000_000, dtype=np.int64)
    return keys[partitioner.owners(keys) == 1]


@pytest.mark.parametrize("pattern", key_patterns().items(), ids=lambda pattern: pattern[0])
def test_searches_stay_short_for_regular_keys(pattern: tuple[str, np.ndarray]) -> None:
    _, keys = pattern
    rows = RowMap(0)
    rows.find_or_insert(keys)
    # Random keys at the highest load need about 30 buckets, a degenerate hash thousands.
    assert rows.longest_probe() <= 50
    assert (rows.find(keys) == np.arange(keys.size)).all()


def test_searches_stay_short_at_the_highest_load() -> None:
    rows = RowMap(200_000)
    rows.find_or_insert(np.random.default_rng(5).integers(INT64.min, INT64.max, rows.capacity))
    assert rows.capacity == RowMap(rows.capacity).capacity
    assert rows.longest_probe() <= 60


OUT_OF_MEMORY = """
import resource, numpy as np
from mpips._native import RowMap
rows = RowMap(0)
batch = np.arange(50_000, dtype=np.int64) * 3
rows.find_or_insert(batch)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (24 << 20),) * 2)
n, state = len(batch), None
try:
    while n < 10_000_000:
        state = len(rows), rows.memory_bytes()
        rows.find_or_insert(batch + 3 * n)
        n += len(batch)
except MemoryError:
    assert (len(rows), rows.memory_bytes()) == state == (n, state[1])
    for start in range(0, n, len(batch)):
        assert (rows.find(batch + 3 * start) == np.arange(start, start + len(batch))).all()
    assert (rows.find(batch + 3 * n) == RowMap.npos).all()
    print("unchanged")
"""


def test_failed_growth_leaves_the_map_unchanged() -> None:
    child = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY], capture_output=True, text=True, timeout=60
    )
    assert child.stdout.strip() == "unchanged", child.stderr


def test_too_many_keys_are_refused() -> None:
    rows = RowMap(0)
    with pytest.raises(ValueError, match="4294967296 keys: a row map can have at most 4294967295"):
        rows.reserve(2**32)
    assert len(rows) == 0


@pytest.mark.parametrize(
    "keys", [np.zeros(3, np.int32), np.zeros(3), np.zeros(6, np.int64)[::2]], ids=str
)
def test_other_arrays_are_refused(keys: np.ndarray) -> None:
    with pytest.raises(TypeError):
        RowMap(0).find(keys)


def test_matrices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"keys has shape \(2, 3\), expected one dimension"):
        RowMap(0).find_or_insert(np.zeros((2, 3), np.int64))
