"""Admission and eviction of rows, against a model in Python that has the expected value of every row."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from mpips.errors import ConfigError
from mpips.model.consistency import ASP, BSP
from mpips.model.optimizer import Adagrad
from mpips.model.row_limits import Idle, MaxBytes, MaxRows, MinCount, Probability, most_rows
from mpips.model.table import EmbeddingTable
from tests.support.harness import Rig, rows

DIM = 4
INITIAL = 3.0


def limited(**options) -> EmbeddingTable:
    return rows(DIM, consistency=BSP(), init=f"constant({INITIAL})", **options)


@dataclass
class Model:
    """The rows that a table should have: key -> value, last clock and number of clocks with a push.

    One set of rows: tables of fewer than 128 rows have no more.
    """

    table: EmbeddingTable
    clock: int = 0
    rows: dict[int, list[float]] = field(default_factory=dict)
    uses: dict[int, tuple[int, int]] = field(default_factory=dict)
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)  # key -> last clock, clocks

    def close(self, pushed: dict[int, float]) -> None:
        """Apply the sum of the open clock, and begin the next one."""
        now, admit, evict = self.clock, self.table.admit, self.table.evict
        for key, update in pushed.items():
            if key not in self.rows and isinstance(admit, MinCount):
                last, n = self.seen.get(key, (now, 0))
                n = n + 1 if now - last <= admit.within else 1
                self.seen[key] = now, n
                if n < admit.clocks:
                    continue
            if key not in self.rows:
                self.rows[key], self.uses[key] = [INITIAL] * DIM, (now, 0)
            self.rows[key] = [v - update for v in self.rows[key]]
            self.uses[key] = now, self.uses[key][1] + 1
        if isinstance(evict, Idle):
            for key in [k for k, (last, _) in self.uses.items() if now + 1 > last + evict.clocks]:
                self.drop(key)
        if isinstance(evict, MaxRows):
            order = sorted(
                self.rows,
                key=lambda k: (
                    self.uses[k][0] == now,
                    self.uses[k][1] if evict.by == "lfu" else 0,
                    self.uses[k][0],
                    mixed(k),
                ),
            )
            for key in order[: max(0, len(order) - evict.rows)]:
                self.drop(key)
        self.clock += 1

    def drop(self, key: int) -> None:
        del self.rows[key], self.uses[key]

    def value(self, key: int) -> list[float]:
        return self.rows.get(key, [INITIAL] * DIM)


def mixed(key: int) -> int:
    """Return the finaliser of SplitMix64, by which equal rows leave."""
    x, mask = key & (2**64 - 1), 2**64 - 1
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
    return x ^ (x >> 31)


def play(table: EmbeddingTable, clocks: int, n_keys: int, n_workers: int = 2, seed: int = 1):
    """Push and pull at random, and compare every pulled row and, at times, all rows with the model.

    Returns:
        The rig and the model.
    """
    rng = np.random.default_rng(seed)
    rig, model = Rig(table, n_workers=n_workers, n_slots=16), Model(table)
    workers = [rig.worker(w) for w in range(n_workers)]
    ranks = np.arange(1, n_keys + 1) ** -1.0
    for clock in range(clocks):
        pushed: dict[int, float] = {}
        for worker in workers:
            keys = rng.choice(n_keys, 12, p=ranks / ranks.sum()) * 7919 - 5 * n_keys
            wanted = np.unique(np.concatenate([keys, rng.integers(-9, 9, 6)]))
            found = worker.table("e").pull(wanted)
            for key, row in zip(wanted.tolist(), found.tolist(), strict=True):
                assert row == model.value(key), (clock, key)
            keys = np.unique(keys)[: rng.integers(1, 12)]
            updates = rng.integers(-3, 4, len(keys))
            for key, update in zip(keys.tolist(), updates.tolist(), strict=True):
                pushed[key] = pushed.get(key, 0.0) + update / n_workers
            worker.table("e").push(keys, np.repeat(updates[:, None], DIM, 1).astype(np.float32))
        for worker in workers:
            worker.clock()
        model.close(pushed)
        if clock % 7 == 0:
            assert rig.table_rows() == model.rows, clock
    return rig, model


LIMITS = {
    "idle": {"evict": Idle(5)},
    "idle-one": {"evict": Idle(1)},
    "lru": {"evict": MaxRows(30)},
    "lfu": {"evict": MaxRows(30, by="lfu")},
    "one row": {"evict": MaxRows(1)},
    "counted": {"admit": MinCount(3, within=20, memory_mib=1)},
    "counted-idle": {"admit": MinCount(2, within=4, memory_mib=1), "evict": Idle(3)},
    "counted-lfu": {"admit": MinCount(2, within=9, memory_mib=1), "evict": MaxRows(20, by="lfu")},
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS.keys())
def test_every_row_has_the_value_that_the_model_expects(limits):
    rig, model = play(limited(**limits), 120, 200)
    assert rig.table_rows() == model.rows
    stats = rig.core.stats(0)
    assert stats["rows_made"] - stats["rows_evicted"] == len(model.rows) == rig.core.n_rows(0)
    if model.table.evict is not None:
        assert stats["rows_evicted"] > 20
    assert (stats["rows_refused"] > 20) == (model.table.admit is not None)


def test_a_table_to_which_nothing_is_pushed_becomes_empty():
    table = rows(64, consistency=BSP(), evict=Idle(3), optimizer=Adagrad(1.0))
    rig = Rig(table, slot_bytes=1 << 16, n_slots=16)
    worker = rig.worker()
    keys = np.arange(20_000)
    for start in range(0, len(keys), 1000):
        worker.table("e").push(keys[start : start + 1000], np.ones((1000, 64), np.float32))
    worker.clock()
    full = rig.core.memory_bytes(0)
    for _ in range(60):
        worker.clock()
    assert rig.core.n_rows(0) == 0
    assert full > 10 << 20 > 2 * rig.core.memory_bytes(0)
    assert (worker.table("e").pull(keys[:3]) == 0).all()


def test_a_row_that_comes_back_begins_anew_with_its_state():
    rig = Rig(limited(evict=Idle(2), optimizer=Adagrad(1.0)))
    worker = rig.worker()
    keys, ones = np.array([5]), np.ones((1, DIM), np.float32)
    first = None
    for _ in range(3):
        worker.table("e").push(keys, ones)
        worker.clock()
        first = worker.table("e").pull(keys) if first is None else first
        for _ in range(3):
            worker.clock()
        assert (worker.table("e").pull(keys) == INITIAL).all()
    worker.table("e").push(keys, ones)
    worker.clock()
    assert (worker.table("e").pull(keys) == first).all()
    assert (first != INITIAL).all()
    assert rig.core.stats(0)["rows_returned"] >= 2


def filled(n: int, **limits):
    """Return rig, worker and keys of a table in whose first clock so many keys were pushed."""
    rig = Rig(limited(**limits), slot_bytes=1 << 16, n_slots=16)
    worker, keys = rig.worker(), np.arange(n)
    for part in np.split(keys, n // 1000):
        worker.table("e").push(part, np.ones((1000, DIM), np.float32))
    worker.clock()
    return rig, worker, keys


def test_an_idle_row_that_is_still_in_memory_begins_anew():
    rig, worker, keys = filled(20_000, evict=Idle(2))
    for _ in range(2):
        worker.clock()
    assert rig.core.n_rows(0) > 15_000
    worker.table("e").push(keys[-9:], np.ones((9, DIM), np.float32))
    worker.clock()
    assert (worker.table("e").pull(keys[-9:]) == INITIAL - 1).all()
    assert set(rig.table_rows()) == set(keys[-9:].tolist())


def test_a_pull_sees_no_row_that_is_to_be_removed():
    rig, worker, keys = filled(40_000, evict=MaxRows(2000))
    n_before = rig.core.n_rows(0)
    pulled = worker.table("e").pull(keys)
    left = rig.table_rows()
    assert n_before > len(left) == 2000
    changed = keys[(pulled != INITIAL).any(axis=1)]
    assert changed.tolist() == sorted(left)


def test_probability_admits_its_share_of_keys():
    rig = Rig(limited(admit=Probability(0.25)), n_slots=64, slot_bytes=4096)
    worker = rig.worker()
    for clock in range(20):
        keys = np.arange(clock * 1000, clock * 1000 + 1000)
        for part in np.split(keys, 10):
            worker.table("e").push(part, np.ones((100, DIM), np.float32))
        worker.clock()
    assert 4600 < rig.core.n_rows(0) < 5400
    assert rig.core.stats(0)["rows_refused"] == 20_000 - rig.core.n_rows(0)


def test_a_few_refused_keys_among_many_change_no_other_row():
    # A rule with a state per row; so few refused keys leave the values where they are.
    table = limited(admit=MinCount(2, memory_mib=1), optimizer=Adagrad(1.0))
    rig = Rig(table, slot_bytes=1 << 16, n_slots=16)
    every = Rig(limited(optimizer=Adagrad(1.0)), slot_bytes=1 << 16, n_slots=16)
    known = np.arange(0, 4000, 2)
    pushed = [known, known, np.union1d(known, [1, 777, 778, 3001, 3003, 5001])]
    pushed.append(np.union1d(known, [777, 779]))
    # The first push of a key is dropped where keys are counted.
    taken = [known[:0], known, known, np.union1d(known, [777])]
    worker, free = rig.worker(), every.worker()
    for clock, keys in enumerate(pushed):
        updates = np.repeat((keys % 7 + clock + 1)[:, None], DIM, 1).astype(np.float32)
        is_taken = np.isin(keys, taken[clock])
        worker.table("e").push(keys, updates)
        free.table("e").push(keys[is_taken], updates[is_taken])
        worker.clock()
        free.clock()
    assert len(rig.table_rows()) == 2001
    assert rig.table_rows() == every.table_rows()
    assert rig.core.stats(0)["rows_refused"] == 2000 + 5 + 1


def test_many_sets_hold_no_more_rows_than_the_table_may():
    rig = Rig(limited(evict=MaxRows(1000)), n_slots=64, slot_bytes=4096)
    worker = rig.worker()
    for clock in range(30):
        keys = np.arange(clock * 150, clock * 150 + 300)
        for part in np.split(keys, 3):
            worker.table("e").push(part, np.ones((100, DIM), np.float32))
        worker.clock()
        present = rig.table_rows()
        assert len(present) <= 1000
        # A set holds 125 rows. It has about 37 of the newest keys, which stay.
        assert set(keys.tolist()) <= set(present)
    assert len(present) > 900


def test_limits_that_do_not_fit_are_refused():
    for options, words in (
        ({"evict": Idle(3), "consistency": ASP()}, "needs consistency = BSP()"),
        ({"admit": MinCount(3), "consistency": BSP(backup=1)}, "without backup workers"),
        ({"evict": "lru"}, "must be a limit such as Idle(1000)"),
        ({"evict": {"name": "maxrows"}}, "max_rows"),
        ({"evict": {"name": "idle", "rows": 3}}, "has clocks, not rows"),
        ({"evict": {"name": "idle", "clocks": 0}}, "clocks = 0"),
        ({"admit": {"name": "min_count", "clocks": 1}}, "clocks = 1"),
        ({"admit": Probability}, "Probability, a class"),
        (
            {"evict": MaxRows(9), "partition": {"name": "range", "low": 0, "high": 9}},
            "HashPartition",
        ),
        ({"evict": MaxBytes(1), "dim": 2**19}, "too little memory for a row"),
        ({"evict": MaxBytes(2**30)}, "a table has at most 4,294,967,294"),
    ):
        with pytest.raises(ConfigError) as error:
            EmbeddingTable("e", **{"dim": 4, "consistency": BSP(), **options})
        assert words in str(error.value), error.value
    with pytest.raises(ConfigError, match="power of two"):
        MinCount(3, memory_mib=3)


def test_bytes_count_floats_and_overhead():
    table = EmbeddingTable("e", 16, Adagrad(), evict=MaxBytes(1))
    assert most_rows(table.evict, table.row_bytes) == 2**20 // (2 * 16 * 4 + 56)
