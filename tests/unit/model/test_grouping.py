"""Groups of workers: which tables and workers, and the rule of topology = "auto"."""

from __future__ import annotations

import pytest

from mpips import (
    ASP,
    BSP,
    SGD,
    SSP,
    Compensate,
    DenseTable,
    DiLoCo,
    EmbeddingTable,
    Momentum,
    Reject,
    Replicated,
    Scale,
)
from mpips.errors import ConfigError
from mpips.model.auto_placement import Site
from mpips.model.consistency import Consistency
from mpips.model.grouping import (
    check_grouped,
    choose_groups,
    described,
    grouped_rows,
    grouped_tables,
    listed_groups,
    node_groups,
    units,
)
from mpips.model.optimizer import Optimizer

TABLES = [
    DenseTable("plain", (1000,), SGD(0.1)),
    DenseTable("asp", (1000,), SGD(0.1), ASP()),
    DenseTable("backup", (1000,), SGD(0.1), BSP(backup=1)),
    DenseTable("copied", (1000,), SGD(0.1), placement=Replicated()),
    DenseTable("local", (1000,), SGD(0.1), DiLoCo(steps=2)),
    EmbeddingTable("rows", 4, SGD(0.1)),
    DenseTable("summed", (10,), SGD(0.1), BSP(reduce="sum")),
]


def test_groups_sum_dense_tables_on_servers_under_bsp() -> None:
    assert [table.name for table in grouped_tables(TABLES).values()] == ["plain", "summed"]
    assert list(grouped_tables(TABLES)) == [0, 6]


def test_groups_sum_rows_under_bsp_where_they_have_memory() -> None:
    tables = [
        *TABLES,
        EmbeddingTable("late", 4, SGD(0.1), ASP()),
        EmbeddingTable("spare", 4, SGD(0.1), BSP(backup=1)),
    ]
    assert list(grouped_rows(tables, True)) == [5]
    assert grouped_rows(tables, False) == {}


@pytest.mark.parametrize(
    ("consistency", "optimizer", "summed"),
    [
        (ASP(), SGD(0.1), True),
        (SSP(0), SGD(0.1), True),
        (ASP(), SGD(0.1, weight_decay=1e-4), False),
        (SSP(1), SGD(0.1, clip_value=1.0), False),
        (ASP(), Momentum(0.1), False),
        (ASP(Scale()), SGD(0.1), False),
        (SSP(2, Reject(1000)), SGD(0.1), False),
        (ASP(Compensate()), SGD(0.1), False),
        (BSP(), Momentum(0.1, weight_decay=1e-4), True),
    ],
)
def test_a_sum_has_the_effect_of_its_updates(
    consistency: Consistency, optimizer: Optimizer, summed: bool
) -> None:
    table = DenseTable("t", (10,), optimizer, consistency)
    assert bool(grouped_tables([table])) is summed
    for other in (TABLES[2], TABLES[4]):  # workers skip clocks, or servers have other clocks
        expected = summed and isinstance(consistency, BSP)
        assert (0 in grouped_tables([table, other])) is expected


def test_auto_groups_no_workers_that_would_not_wait_for_each_other() -> None:
    tables = [DenseTable("t", (1000,), SGD(0.1), model) for model in (ASP(), SSP(1))]
    where = site((0, 0, 0), (1,), 0.1e9)
    groups, reason = choose_groups(grouped_tables(tables), where)
    assert groups == ()
    assert reason.startswith("topology: flat, since clock() would wait for other workers")
    mixed = [*tables, DenseTable("sum", (1000,), SGD(0.1))]
    assert choose_groups(grouped_tables(mixed), where)[0] == ((0, 1, 2),)


def test_nodes_with_one_worker_have_no_group() -> None:
    assert node_groups([0, 1, 0, 2, 1, 3]) == ((0, 2), (1, 4))
    assert node_groups([0, 1, 2]) == ()


def test_listed_groups_are_sorted_and_groups_of_one_left_out() -> None:
    assert listed_groups([[4, 3], [2], [1, 0]], 5) == (((0, 1), (3, 4)), ())


def test_subgroups_are_sorted_and_those_of_one_or_all_workers_left_out() -> None:
    assert listed_groups([[5, [3, 1]], [[4], [2, 0]]], 6) == (
        ((0, 2, 4), (1, 3, 5)),
        ((0, 2), (1, 3)),
    )
    assert listed_groups([[[1, 0]], [[2]]], 3) == (((0, 1),), ())
    assert units((0, 2, 4, 5), ((1, 3), (2, 5))) == ((0,), (2, 5), (4,))
    assert described((0, 2, 4, 5), ((1, 3), (2, 5))) == "0 + 2 5 + 4"
    assert described((0, 2, 4), ((1, 3),)) == "0 2 4"


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([[0, 5]], "there is no worker 5; the job has workers 0 to 4"),
        ([[0, -1]], "there is no worker -1"),
        ([[0, 1], [1, 2]], "worker 1 is in two groups"),
        ([[3, 3]], "worker 3 is in two groups, or twice in one"),
        ([[0, [1, 2]], [[2, 3], 4]], "worker 2 is in two groups"),
        ([[[0, 5]]], "there is no worker 5"),
    ],
)
def test_wrong_lists_are_named(groups: list[list[int | list[int]]], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        listed_groups(groups, 5)


def test_a_job_without_such_tables_is_refused() -> None:
    with pytest.raises(ConfigError, match="no table whose updates groups can sum: dense"):
        check_grouped(grouped_tables(TABLES[1:6]), grouped_rows(TABLES, False), "'node'")
    check_grouped({}, grouped_rows(TABLES, True), "'node'")


def site(workers: tuple[int, ...], servers: tuple[int, ...], network: float) -> Site:
    return Site(workers, servers, memory_rate=10e9, network_rate=network, room=1 << 40)


@pytest.mark.parametrize(
    ("workers", "servers", "network", "groups"),
    [
        # A slow link to the server: once instead of three times.
        ((0, 0, 0), (1,), 0.1e9, ((0, 1, 2),)),
        # A link as fast as memory: a group's passes over memory take longer than it saves.
        ((0, 0, 0), (1,), 20e9, ()),
        # All servers are on the node of the workers.
        ((0, 0, 0), (0,), float("inf"), ()),
        # One worker on each node.
        ((0, 1, 2), (0, 1, 2), 0.1e9, ()),
        # Most of a table is on another node.
        ((0, 0, 1, 1), (0, 1, 2), 0.1e9, ((0, 1), (2, 3))),
    ],
)
def test_auto_weighs_the_link_against_memory(
    workers: tuple[int, ...],
    servers: tuple[int, ...],
    network: float,
    groups: tuple[tuple[int, ...], ...],
) -> None:
    found, reason = choose_groups(grouped_tables(TABLES), site(workers, servers, network))
    assert found == groups
    assert reason.startswith("topology: node: " if groups else "topology: flat")


def test_auto_without_such_tables_makes_no_groups() -> None:
    groups, reason = choose_groups({}, site((0, 0), (1,), 0.1e9))
    assert groups == ()
    assert reason.startswith(
        "topology: flat, since 'auto' decides by dense tables and the job has none"
    )
