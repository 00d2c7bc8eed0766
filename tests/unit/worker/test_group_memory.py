"""The memory that mpips plan expects of groups of workers."""

from __future__ import annotations

import pytest

from mpips import ASP, SGD, DenseTable, EmbeddingTable
from mpips.config.options import SessionOptions
from mpips.model.placement import Placement, place
from mpips.model.table import Table
from mpips.mpi.roles import Assignment
from mpips.worker.buffers import JobBuffers
from mpips.worker.groups.memory import planned_groups
from mpips.worker.groups.start import memory
from mpips.worker.start import Planned

N = 1 << 20
MIB = 4  # of one copy of the table
# Scheduler, server 0 and three workers; server 1 and two workers.
ROLES = Assignment(
    node_of=(0, 0, 0, 0, 0, 1, 1, 1),
    node_names=("a", "b"),
    scheduler=0,
    servers=(1, 5),
    workers=(2, 3, 4, 6, 7),
)
TABLES = [DenseTable("w", (N,), SGD(0.1)), EmbeddingTable("rows", 4, SGD(0.1))]


def group_bytes(
    tables: list[Table], options: SessionOptions, placement: Placement, roles: Assignment = ROLES
) -> list[int]:
    groups = planned_groups(tables, options, roles)
    shares = JobBuffers(tables, tables, options, roles, groups).shares()
    planned = Planned(tables, tables, options, roles, placement, shares, False)
    return [n.shared for n in memory(planned)]


@pytest.mark.parametrize(
    ("topology", "copies"),
    [
        ("flat", (0, 0)),
        # An update of each worker and a sum; half of the values, which is on the other node's server.
        ("node", (3 + 1 + 0.5, 2 + 1 + 0.5)),
        ("auto", (3 + 1 + 0.5, 2 + 1 + 0.5)),
        # Every node has room for the updates of the whole group.
        (((0, 4), (1, 2)), (3 + 3 + 0.5, 3 + 0.5)),
        # Sums of subgroups: two updates and a sum, two more on the other node; above them three contributions
        # and a sum on either node.
        ((((0, 1), 2, (3, 4)),), (3 + 4 + 0.5, 3 + 4 + 0.5)),
    ],
)
def test_groups_take_an_update_of_each_worker_and_a_sum(
    topology: str, copies: tuple[float, float]
) -> None:
    options = SessionOptions(servers=2, topology=topology, group_rows_mib=0)
    placement = place(TABLES, 2, 5, None, 0, ROLES.near_workers("auto"), 0)
    found = group_bytes(TABLES, options, placement)
    assert [n / 2**20 / MIB for n in found] == pytest.approx(copies, rel=0.01)


@pytest.mark.parametrize(
    ("topology", "times"),
    [
        ("flat", (0, 0)),
        ("node", (3, 2)),
        # Workers 0 and 4 are on two nodes, each with room for both.
        (((0, 4), (1, 2)), (2 + 2, 2)),
        # Each subgroup of a node is as large as a group, and above it are three areas, each for two workers.
        ((((0, 1), 2, (3, 4)),), (2 + 3 * 2, 2 + 3 * 2)),
    ],
)
@pytest.mark.parametrize("tables", [TABLES, TABLES[1:]], ids=["dense and rows", "rows"])
def test_rows_take_an_area_of_each_worker(
    tables: list[Table], topology: str, times: tuple[int, int]
) -> None:
    placement = place(tables, 2, 5, None, 0, ROLES.near_workers("auto"), 0)
    without, found = (
        group_bytes(
            tables,
            SessionOptions(servers=2, topology=topology, group_rows_mib=mib),
            placement,
        )
        for mib in (0, 6)
    )
    for n, before, count in zip(found, without, times, strict=True):
        assert (n - before) / 2**20 == pytest.approx(6 * count, rel=0.01)


def test_workers_do_not_share_pulls_of_differences() -> None:
    """Each has a copy of its own; the sums of updates are as ever."""
    tables = [DenseTable("w", (N,), SGD(0.1), pull_compression="onebit")]
    options = SessionOptions(servers=2, topology="node")
    placement = place(tables, 2, 5, None, 0, ROLES.near_workers("auto"), 0)
    found = group_bytes(tables, options, placement)
    assert [n / 2**20 / MIB for n in found] == pytest.approx((3 + 1, 2 + 1), rel=0.01)


@pytest.mark.parametrize("transport", ["rma", "p2p"])
@pytest.mark.parametrize(
    ("topology", "times"),
    [
        # Every worker is a node of its own, so none is in a group of a node.
        ("node", (0, 0)),
        ("auto", (0, 0)),
        # Worker 0 has room for workers 0 and 4; workers 1 and 2 for both of them, and so has worker 4.
        (((0, 4), (1, 2)), (3 * 2, 2)),
    ],
)
def test_a_worker_that_shares_no_memory_has_room_for_its_whole_group(
    transport: str, topology: str, times: tuple[int, int]
) -> None:
    options = SessionOptions(servers=2, topology=topology, group_rows_mib=6, transport=transport)
    placement = place(TABLES, 2, 5, None, 0, ROLES.near_workers(transport), 0)
    found = group_bytes(TABLES, options, placement)
    # An update of each worker and a sum, and rows that are pushed; nothing is pulled once.
    sums = [MIB * (n + n // 2) for n in times]
    expected = [mib + 6 * n for mib, n in zip(sums, times, strict=True)]
    assert [n / 2**20 for n in found] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("tables", [TABLES[1:], [DenseTable("w", (N,), SGD(0.1), ASP())]])
def test_auto_makes_no_groups_without_a_dense_table_under_bsp(tables: list[Table]) -> None:
    placement = place(tables, 2, 5, None, 0, ROLES.near_workers("auto"), 0)
    found = [
        group_bytes(tables, SessionOptions(servers=2, topology=topology), placement)
        for topology in ("auto", "node")
    ]
    assert found[0] == [0, 0]
    assert all(found[1])
