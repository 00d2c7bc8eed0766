"""The load by table and by link, from heartbeats with known counts."""

from __future__ import annotations

from typing import Any

import pytest

from mpips.mpi.messages import Figures, Heartbeat, TableRows
from mpips.rundir.files import LinkLoad, RankPlace, RowLoad, TableLoad
from mpips.scheduler import load as load_module
from mpips.scheduler.load import MOST_LINKS, MOST_TABLES, LoadTable
from mpips.scheduler.rank_table import RankTable
from mpips.worker import counts


def places(*ranks: tuple[str, str]) -> list[RankPlace]:
    return [RankPlace(rank=i, role=role, host=host, pid=i) for i, (role, host) in enumerate(ranks)]


def beat(table: RankTable, rank: int, at: float, **counts: Any) -> None:
    links = counts.get("links", [])
    counts = {
        "pushed_bytes": sum(pushed for pushed, _ in links),
        "pulled_bytes": sum(pulled for _, pulled in links),
        **counts,
    }
    table.note_heartbeat(rank, Heartbeat("", 0, Figures(at=at, **counts)))


def test_bytes_are_summed_by_hosts_and_updates_by_table() -> None:
    table = RankTable(
        places(
            ("scheduler + server 0", "a"),
            ("server 1", "b"),
            ("worker 0", "a"),
            ("worker 1", "b"),
            ("worker 2", "b"),
        ),
        ["cold", "hot"],
    )
    for at in (0.0, 2.0):
        n = int(at)
        beat(table, 0, at, tables={0: 100 + n, 1: 10 * n}, staleness=[4, n])
        beat(table, 1, at, tables={1: 30 * n}, staleness=[1, 0, 5])
        beat(table, 2, at, links=[(10 * n, 0), (100 * n, 2 * n)])
        beat(table, 3, at, links=[(1 * n, 0), (7, 7)])
        beat(table, 4, at, links=[(3 * n, 4 * n), (1, 1)])
    load = table.load()
    assert load.tables == (
        TableLoad(name="hot", updates=80, updates_per_s=40.0),
        TableLoad(name="cold", updates=102, updates_per_s=1.0),
    )
    found = {(link.worker_host, link.server_host): link for link in load.links}
    assert [link.worker_host + link.server_host for link in load.links] == ["ab", "aa", "ba", "bb"]
    assert found["a", "b"] == LinkLoad(
        worker_host="a",
        server_host="b",
        pushed_bytes=200,
        pulled_bytes=4,
        push_bytes_per_s=100.0,
        pull_bytes_per_s=2.0,
    )
    assert (found["b", "a"].pushed_bytes, found["b", "a"].pulled_bytes) == (8, 8)
    assert (found["b", "a"].push_bytes_per_s, found["b", "a"].pull_bytes_per_s) == (4.0, 4.0)
    assert (found["b", "b"].pushed_bytes, found["b", "b"].push_bytes_per_s) == (8, 0.0)
    assert load.staleness == (5, 2, 5)
    # Worker 0 to server 1, workers 1 and 2 to server 0.
    assert table.totals().link_bytes_per_s == 102 + 1 + 7


def test_a_job_on_one_host_has_no_traffic_between_hosts() -> None:
    table = RankTable(places(("scheduler + server 0", "a"), ("worker 0", "a")), ["t"])
    for at in (0.0, 2.0):
        beat(table, 1, at, links=[(int(at), 9)])
    assert table.totals().link_bytes_per_s is None
    assert table.totals().push_bytes_per_s == 1.0


def test_the_traffic_of_replicated_tables_between_hosts_is_not_known() -> None:
    table = RankTable(places(("scheduler + server 0", "a"), ("worker 0", "b")), ["t"])
    for at in (0.0, 2.0):
        n = int(at)
        beat(table, 1, at, links=[(n, n)], pushed_bytes=n + 7, pulled_bytes=n)
    assert table.totals().link_bytes_per_s is None
    assert table.totals().push_bytes_per_s == 1.0


def test_the_traffic_between_hosts_is_unknown_before_the_second_heartbeat() -> None:
    table = RankTable(places(("scheduler + server 0", "a"), ("worker 0", "b")), ["t"])
    beat(table, 1, 0.0, links=[(5, 5)])
    assert table.totals().link_bytes_per_s is None
    beat(table, 1, 2.0, links=[(5, 9)])
    assert table.totals().link_bytes_per_s == 2.0


def test_rows_are_named_by_their_table_and_summed_over_servers() -> None:
    table = RankTable(
        places(("scheduler + server 0", "a"), ("server 1", "a"), ("worker 0", "a")), ["d", "e"]
    )
    beat(table, 0, 1.0, rows={1: TableRows(60.0, 20.0, [(-7, 40.0, 10.0), (2, 5.0, 0.0)])})
    beat(table, 1, 1.0, rows={1: TableRows(15.0, 5.0, [(1 << 60, 15.0, 5.0)])})
    assert table.load().rows == (
        RowLoad(table="e", key=-7, pulls_per_s=40.0, pushes_per_s=10.0, share=0.5),
        RowLoad(table="e", key=1 << 60, pulls_per_s=15.0, pushes_per_s=5.0, share=0.2),
        RowLoad(table="e", key=2, pulls_per_s=5.0, pushes_per_s=0.0, share=0.05),
    )


def test_the_load_has_a_bounded_size() -> None:
    hosts = [f"h{i}" for i in range(20)]
    ranks = [(f"server {i}", host) for i, host in enumerate(hosts)]
    ranks += [(f"worker {i}", host) for i, host in enumerate(hosts)]
    table = RankTable(places(*ranks), [f"t{i}" for i in range(100)])
    for at in (0.0, 1.0):
        for i in range(20):
            beat(table, i, at, tables={i: int(at) * i, 20 + i: 1})
            beat(table, 20 + i, at, links=[(int(at) * (i * 20 + j), 0) for j in range(20)])
    load = table.load()
    assert [t.name for t in load.tables] == [f"t{i}" for i in range(19, 19 - MOST_TABLES, -1)]
    assert [link.pushed_bytes for link in load.links] == list(range(399, 399 - MOST_LINKS, -1))


def test_counts_of_servers_that_are_not_known_are_left_out() -> None:
    table = RankTable(places(("server 0", "a"), ("worker 0", "b")), [])
    beat(table, 0, 0.0, tables={5: 1})
    beat(table, 1, 0.0, links=[(1, 1), (2, 2)])
    load = table.load()
    assert (load.tables, load.links) == ((), ())


@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
def test_servers_on_other_hosts_are_named_up_to_64_servers(n: int) -> None:
    """Ranks are in any order, and the servers of a host need not follow each other."""
    ranks = [(f"server {i}", "abc"[i % 3]) for i in range(n)]
    ranks = [("scheduler", "a"), *ranks[::-1], ("worker 0", "b"), ("worker 1", "d")]
    load = LoadTable(places(*ranks), [])
    off_b = tuple(i for i in range(n) if i % 3 != 1)
    assert load.servers_off("b") == (off_b if n <= 64 else ())
    assert load.servers_off("d") == (tuple(range(n)) if n <= 64 else ())
    table = RankTable(places(*ranks), [])
    for at in (0, 2):
        links = [(10 * at * (i + 1), at) for i in range(n)] if n <= 64 else []
        beat(table, n + 1, float(at), links=links)
        beat(table, n + 2, float(at), links=links)
    moved = sum(10 * (i + 1) + 1 for i in off_b) + sum(10 * (i + 1) + 1 for i in range(n))
    # With more servers heartbeats have no bytes by server.
    assert table.totals().link_bytes_per_s == (moved if n <= 64 else None)


def test_heartbeats_have_bytes_by_server_for_as_many_servers() -> None:
    assert counts._MOST_LINKS == load_module._MOST_SERVERS


def test_the_bound_of_ssp_is_that_of_the_server_that_decides_on_it() -> None:
    table = RankTable(places(("scheduler", "a"), ("server 0", "a"), ("worker 0", "a")))
    assert table.load().bound is None
    beat(table, 2, 1.0)
    beat(table, 1, 1.0, bound=0)
    assert table.load().bound == 0
    beat(table, 1, 2.0, bound=3)
    assert table.load().bound == 3


def test_backup_workers_are_the_greatest_number_of_all_servers() -> None:
    table = RankTable(
        places(("scheduler", "a"), ("server 0", "a"), ("server 1", "a"), ("worker 0", "a"))
    )
    beat(table, 3, 1.0)
    assert table.load().backup is None
    for rank, backup, expected in ((1, 0, 0), (2, 2, 2), (1, 1, 2), (2, 0, 1)):
        beat(table, rank, 1.0 + rank, backup=backup)
        assert table.load().backup == expected


def test_a_job_has_switched_when_all_its_servers_have() -> None:
    table = RankTable(
        places(("scheduler", "a"), ("server 0", "a"), ("server 1", "a"), ("worker 0", "a"))
    )
    assert table.load().switched is None
    beat(table, 3, 1.0)
    for rank, switched, expected in ((1, 0, False), (2, 0, False), (1, 1, False), (2, 1, True)):
        beat(table, rank, 1.0 + rank, switched=switched)
        assert table.load().switched is expected
