"""Rates and totals that the rank table computes from heartbeats."""

from __future__ import annotations

import numpy as np
import pytest

from mpips.mpi.messages import Figures, Heartbeat, decode, encode
from mpips.rundir.files import RankPlace
from mpips.scheduler.rank_table import RankTable

PLACES = [
    RankPlace(rank=0, role="scheduler", host="a", pid=10),
    RankPlace(rank=1, role="server 0", host="a", pid=11),
    RankPlace(rank=2, role="worker 0", host="b", pid=12),
    RankPlace(rank=3, role="worker 1", host="b", pid=13),
]


def beat(at: float, clock: int, state: str = "computing", **counted: int) -> Heartbeat:
    return Heartbeat(state, clock, Figures(at=at, **counted))


def test_a_heartbeat_is_unchanged_by_encoding() -> None:
    sent = beat(2.5, 7, samples=3, queue=2, memory_bytes=1 << 40)
    assert decode(encode(sent)) == sent
    assert decode(encode(Heartbeat("starting", 0))) == Heartbeat("starting", 0, None)


def test_rates_are_those_of_the_ranks_own_clock() -> None:
    rank_table = RankTable(PLACES)
    rank_table.note_heartbeat(
        2, beat(100.0, 10, samples=1000, pushed_bytes=500, judged=4, staleness_sum=4)
    )
    rank_table.note_heartbeat(
        2, beat(102.0, 30, samples=3000, pushed_bytes=2500, judged=14, staleness_sum=29)
    )
    row = rank_table.rows()[2]
    assert (row.clock, row.clocks_per_s, row.samples_per_s) == (30, 10.0, 1000.0)
    assert (row.push_bytes_per_s, row.staleness) == (1000.0, 2.5)
    assert (row.role, row.host, row.pid) == ("worker 0", "b", 12)
    assert row.heard_s > 0


def test_rates_forget_what_is_long_ago() -> None:
    rank_table = RankTable(PLACES)
    for second in range(20):
        # Count ten samples a second, and none from second 10 on.
        rank_table.note_heartbeat(2, beat(float(second), second, samples=10 * min(second, 10)))
    assert rank_table.rows()[2].samples_per_s == 0.0


def test_totals_are_of_the_workers_and_unknown_before_two_heartbeats() -> None:
    rank_table = RankTable(PLACES)
    rank_table.note_heartbeat(1, beat(0.0, 0, pushed_bytes=9999))
    rank_table.note_heartbeat(2, beat(50.0, 0, pushed_bytes=0))
    rank_table.note_heartbeat(3, beat(7.0, 0, pushed_bytes=0))
    assert rank_table.totals().push_bytes_per_s is None
    assert rank_table.totals().staleness is None
    rank_table.note_heartbeat(
        2, beat(51.0, 1, pushed_bytes=100, pulled_bytes=10, judged=1, staleness_sum=0)
    )
    rank_table.note_heartbeat(
        3, beat(8.0, 1, pushed_bytes=200, pulled_bytes=20, judged=1, staleness_sum=3)
    )
    totals = rank_table.totals()
    assert (totals.push_bytes_per_s, totals.pull_bytes_per_s) == (300.0, 30.0)
    assert (totals.pushed_bytes, totals.pulled_bytes) == (300, 30)
    assert totals.staleness == 1.5


def test_the_schedulers_own_row_is_updated_and_shows_its_other_role() -> None:
    rank_table = RankTable(
        [RankPlace(rank=0, role="scheduler + server 0", host="a", pid=1), PLACES[2]]
    )
    seen = []
    rank_table.attach(lambda: seen.append(1), lambda: None)
    rank_table.look()
    assert rank_table.rows()[0].state == "scheduling"
    rank_table.show_own(lambda: beat(1.0, 0, "serving", queue=5))
    rank_table._next_own = 0.0
    rank_table.look()
    assert (rank_table.rows()[0].state, rank_table.rows()[0].queue) == ("serving", 5)
    assert len(seen) == 2


def test_a_rank_without_a_heartbeat_has_a_row() -> None:
    row = RankTable(PLACES).rows()[3]
    assert (row.state, row.heard_s, row.samples_per_s, row.staleness) == (
        "starting",
        0.0,
        0.0,
        None,
    )


def test_totals_are_the_sums_of_the_rows_after_any_heartbeats() -> None:
    random = np.random.default_rng(3)
    places = [
        RankPlace(rank=r, role=f"{'server' if r < 3 else 'worker'} {r}", host="a", pid=r)
        for r in range(9)
    ]
    rank_table = RankTable(places)
    counts = np.zeros((9, 4), np.int64)
    times = np.zeros(9)
    for _ in range(400):
        rank = int(random.integers(9))
        # Whole numbers of bytes per eighth of a second, so that all rates are exact.
        times[rank] += float(random.choice([0.5, 1.0, 4.0, 16.0]))
        counts[rank] += random.integers(0, 100, 4) * 1024
        pushed, pulled, judged, stale = counts[rank].tolist()
        figures = {"pushed_bytes": pushed, "pulled_bytes": pulled}
        figures |= {"judged": judged, "staleness_sum": stale}
        rank_table.note_heartbeat(rank, beat(times[rank], 0, **figures))
        totals, rows = rank_table.totals(), rank_table.rows()[3:]
        assert (totals.pushed_bytes, totals.pulled_bytes) == tuple(counts[3:, :2].sum(axis=0))
        if totals.push_bytes_per_s is not None:
            for name in ("push_bytes_per_s", "pull_bytes_per_s"):
                expected = sum(getattr(row, name) for row in rows)
                assert getattr(totals, name) == pytest.approx(expected, abs=0.01)
        assert (totals.staleness is None) == all(row.staleness is None for row in rows)


def test_a_rate_of_rare_heartbeats_is_that_between_the_last_two() -> None:
    rank_table = RankTable(PLACES)
    for at, samples in ((0.0, 0), (11.0, 1100), (22.0, 3300)):
        rank_table.note_heartbeat(2, beat(at, 0, samples=samples))
    assert rank_table.rows()[2].samples_per_s == 200.0
