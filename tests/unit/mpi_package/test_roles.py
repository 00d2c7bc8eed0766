"""Roles: every rank has one, and servers are distributed over nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpips.errors import ConfigError
from mpips.mpi.roles import Assignment, assign, check_servers, default_servers, shares


def on_nodes(*ranks_per_node: int, servers: int | None = None) -> Assignment:
    node_of = [node for node, count in enumerate(ranks_per_node) for _ in range(count)]
    names = [f"node{k}" for k in range(len(ranks_per_node))]
    return assign(node_of, names, servers)


def test_two_ranks_are_a_scheduler_that_serves_and_a_worker() -> None:
    a = on_nodes(2)
    assert (a.scheduler, a.servers, a.workers) == (0, (0,), (1,))
    assert [a.roles_of(rank) for rank in range(2)] == ["scheduler + server 0", "worker 0"]


@pytest.mark.parametrize(
    ("size", "n_nodes", "expected"),
    [
        (2, 1, 1),
        (3, 1, 1),
        (3, 3, 1),
        (4, 1, 1),
        (5, 1, 1),
        (5, 2, 1),  # two servers would leave two workers for two nodes
        (6, 2, 2),
        (9, 1, 2),
        (12, 4, 4),
        (16, 4, 4),
        (1000, 4, 249),
    ],
)
def test_a_quarter_serves_and_at_least_one_a_node(size: int, n_nodes: int, expected: int) -> None:
    assert default_servers(size, n_nodes) == expected


def test_each_node_gets_servers_in_proportion_to_its_ranks() -> None:
    a = on_nodes(9, 4, 4, servers=4)
    assert [a.node_of[rank] for rank in a.servers] == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("size", "n_servers", "what", "use"),
    [
        (2, 2, "many", "1"),
        (3, 2, "many", "1"),
        (4, 4, "many", "1 or 2"),
        (5, 4, "many", "1 to 3"),
        (5, 0, "few", "1 to 3"),
    ],
)
def test_servers_that_leave_no_worker_are_refused(
    size: int, n_servers: int, what: str, use: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_servers(n_servers, size)
    assert str(caught.value) == (
        f"servers = {n_servers} is too {what} for {size} ranks: use {use} (one rank is the scheduler, at "
        "least one must be a worker)"
    )


@given(
    nodes=st.lists(st.integers(1, 20), min_size=1, max_size=12).filter(lambda n: sum(n) >= 3),
    data=st.data(),
)
def test_every_rank_has_exactly_one_role(nodes: list[int], data: st.DataObject) -> None:
    size = sum(nodes)
    n_servers = data.draw(st.none() | st.integers(1, size - 2))
    a = on_nodes(*nodes, servers=n_servers)
    assert sorted([a.scheduler, *a.servers, *a.workers]) == list(range(size))
    assert a.scheduler == 0
    assert len(a.servers) == (n_servers or default_servers(size, len(nodes)))
    assert a.workers
    assert list(a.servers) == sorted(a.servers)
    assert list(a.workers) == sorted(a.workers)


@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=10), data=st.data())
def test_shares_add_up_and_no_node_gets_more_servers_than_ranks(
    counts: list[int], data: st.DataObject
) -> None:
    if not sum(counts):
        return
    n = data.draw(st.integers(1, sum(counts)))
    got = shares(counts, n)
    assert sum(got) == n
    for share, count in zip(got, counts, strict=True):
        assert share <= count
        assert abs(share - n * count / sum(counts)) < 1


def test_the_table_of_roles_names_rank_and_node() -> None:
    lines = on_nodes(2, 2, servers=1).describe().splitlines()
    assert [line.split() for line in lines] == [
        ["role", "rank", "node"],
        ["scheduler", "0", "node0"],
        ["worker", "0", "1", "node0"],
        ["server", "0", "2", "node1"],
        ["worker", "1", "3", "node1"],
    ]


def test_workers_are_near_on_the_same_node_unless_the_transport_is_forced() -> None:
    a = on_nodes(3, 3, servers=2)
    for server, workers in zip(a.servers, a.near_workers("auto"), strict=True):
        same = [w for w, r in enumerate(a.workers) if a.node_of[r] == a.node_of[server]]
        assert list(workers) == same
        assert 0 < len(workers) < len(a.workers)
    assert a.near_workers("rma") == a.near_workers("p2p") == [(), ()]
    assert on_nodes(4).near_workers("shm") == [(0, 1)]


def test_a_table_of_many_ranks_names_the_first_and_counts_the_others() -> None:
    lines = on_nodes(*[10] * 20, servers=40).describe().splitlines()
    assert len(lines) == 1 + 64 + 1
    assert lines[-1] == "and 136 more ranks: in all 40 servers and 159 workers on 20 nodes"
