"""The hottest rows of embedding tables: servers find them in a sample of the keys that they serve."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from harness import Rig, dense, rows

from mpips import _native
from mpips.model.codec import Bf16
from mpips.model.consistency import ASP, BSP, SSP
from mpips.mpi.messages import Figures, TableRows
from mpips.scheduler.load import hottest_rows

N_KEYS = 20_000
BATCH = 500
# Keys of any size and sign, those with the least numbers not being the hottest.
KEYS = np.random.default_rng(7).permutation(N_KEYS).astype(np.int64) * 1_000_003 - (1 << 33)


def zipf_batches(n: int, seed: int, exponent: float = 1.1) -> list[np.ndarray]:
    """Batches of sorted unique keys whose frequencies follow Zipf's law."""
    weights = 1.0 / np.arange(1, N_KEYS + 1) ** exponent
    drawn = np.random.default_rng(seed).choice(N_KEYS, (n, BATCH), p=weights / weights.sum())
    return [np.unique(KEYS[row]) for row in drawn]


def test_a_slow_job_counts_every_row() -> None:
    counter = _native.RowCounter(100.0)
    assert counter.read(101.0, 8) == (0.0, 0.0, [])
    # From the second read on every row of so few is counted.
    for i in range(50):
        counter.count(i % 5 == 0, np.array([3, 17, 1000 + i], np.int64))
    pulls, pushes, found = counter.read(102.0, 8)
    assert pushes == pytest.approx(4 * pulls)
    # The first second counts a little less than the one after it.
    assert 30 < 2 * pulls < 30.5
    assert found == [(3, pulls / 3, pushes / 3), (17, pulls / 3, pushes / 3)]


def test_rows_of_another_minute_are_forgotten() -> None:
    counter = _native.RowCounter(0.0)
    counter.read(1.0, 8)
    for key, at_s in ((5, 2.0), (6, 603.0)):
        counter.read(at_s - 1, 8)
        for _ in range(1000):
            counter.count(True, np.array([key], np.int64))
        pulls, _, found = counter.read(at_s, 8)
        assert found == [(key, pytest.approx(pulls, rel=1e-3), 0.0)]


@pytest.mark.parametrize("rows_per_record", [BATCH, 64, 1])
def test_a_sample_finds_the_top_keys_of_zipf(rows_per_record: int) -> None:
    """Also where records have a length in step with the sampling, and the hottest keys the same places."""
    weights = 1.0 / np.arange(1, N_KEYS + 1) ** 1.1
    rng = np.random.default_rng(rows_per_record)
    n = 3_000_000 if rows_per_record > 1 else 300_000
    drawn = KEYS[rng.choice(N_KEYS, n, p=weights / weights.sum())]
    counter = _native.RowCounter(0.0)
    counter.count(True, drawn[: n // 10])
    counter.read(1.0, 8)
    for begin in range(0, drawn.size, rows_per_record):
        counter.count(False, np.sort(drawn[begin : begin + rows_per_record]))
    _, pushes, found = counter.read(4.0, 8)
    assert [key for key, *_ in found][:3] == KEYS[:3].tolist()
    assert {key for key, *_ in found} <= set(KEYS[:12].tolist())
    for key, _, pushed in found[:3]:
        true = np.count_nonzero(drawn == key) / drawn.size
        assert pushed / pushes == pytest.approx(true, rel=0.2)


def test_keys_of_equal_frequency_are_no_hot_rows() -> None:
    counter = _native.RowCounter(0.0)
    keys = np.arange(1_000_000, dtype=np.int64)
    for second in range(1, 4):
        counter.count(True, np.random.default_rng(second).permutation(keys))
        pulls, _, found = counter.read(float(second), 8)
        assert pulls > 900_000
        assert found == []


@pytest.mark.parametrize("model", [ASP(), SSP(2), BSP()], ids=str)
@pytest.mark.parametrize("compression", [None, Bf16()], ids=str)
def test_servers_count_each_row_of_a_push_and_a_pull_once(
    model: object, compression: object
) -> None:
    """With pushes of one record and of several, beside a dense table and one that is not counted."""
    options = {"consistency": model, "compression": compression, "pull_compression": compression}
    rig = Rig(dense(4), rows(4, **options), rows(4, name="idle"), n_slots=4, slot_bytes=2048)
    assert rig.core.hot_rows(1, 8) is None
    rig.server.observe_rows()
    assert rig.core.hot_rows(0, 8) is None
    worker = rig.worker()
    table = worker.table("e")
    n_pulled = n_pushed = 0
    for keys in zipf_batches(20, seed=1):
        table.pull(keys)
        n_pulled += keys.size
        for part in (keys, keys[:7]):
            table.push(part, np.ones((part.size, 4), np.float32))
            n_pushed += part.size
        worker.clock()
    figures = rig.server.figures()
    assert set(figures.rows) == {1}
    found = figures.rows[1]
    assert found.pulls_per_s / found.pushes_per_s == pytest.approx(n_pulled / n_pushed, rel=1e-3)
    assert rig.core.stats(1)["pulled_rows"] == n_pulled


def test_a_server_that_nobody_observes_counts_nothing() -> None:
    rig = Rig(rows(4))
    rig.worker().table("e").push(np.array([1]), np.ones((1, 4), np.float32))
    assert rig.core.hot_rows(0, 8) is None
    assert rig.server.figures().rows == {}


def test_rows_of_two_servers_become_one_list() -> None:
    """Each server has its own keys: those of Zipf's law, split by parity of their rank."""
    weights = 1.0 / np.arange(1, N_KEYS + 1) ** 1.1
    ranks = np.random.default_rng(3).choice(N_KEYS, 400_000, p=weights / weights.sum())
    parts = []
    for server in (0, 1):
        counter = _native.RowCounter(0.0)
        counter.read(1.0, 8)
        counter.count(True, KEYS[ranks[ranks % 2 == server]])
        parts.append(Figures(rows={2: TableRows(*counter.read(2.0, 8))}))
    found = hottest_rows([Figures(), *parts])
    assert set(found) == {2}
    assert [key for key, *_ in found[2]][:3] == KEYS[:3].tolist()
    assert {key for key, *_ in found[2]} <= set(KEYS[:12].tolist())
    true = Counter(KEYS[ranks].tolist())
    for key, pulls, pushes, share in found[2]:
        assert pushes == 0.0 < pulls
        assert share == pytest.approx(true[key] / ranks.size, rel=0.2)


def test_only_the_tables_with_most_rows_are_shown() -> None:
    figures = Figures(rows={t: TableRows(float(t), 0.0, [(7, float(t), 0.0)]) for t in range(9)})
    assert hottest_rows([figures]) == {t: [(7, float(t), 0.0, 1.0)] for t in (8, 7, 6, 5)}
