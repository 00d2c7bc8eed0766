"""The rule of placement = "auto"."""

from __future__ import annotations

import math

import pytest

from mpips.model.auto_placement import Site, auto_tables, choose_placement, placed
from mpips.model.consistency import ASP, BSP
from mpips.model.optimizer import Adam
from mpips.model.python_rule import PythonRule
from mpips.model.replicated import Replicated
from mpips.model.table import DenseTable, EmbeddingTable, Table


def site(
    workers: tuple[int, ...],
    servers: tuple[int, ...],
    network: float = 1e9,
    memory: float = 1e10,
    room: int = 1 << 40,
) -> Site:
    return Site(workers, servers, memory, network, room)


def auto(name: str, n: int, **options: object) -> DenseTable:
    return DenseTable(name, (n,), placement="auto", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("workers", "servers", "expected"),
    [
        ((0, 0, 0), (0,), ("w",)),  # three workers share the work of one server
        ((0,), (0,), ()),  # nothing is gained, and a restart in memory would be lost
        ((0, 0), (0, 0), ()),
        ((0, 0, 1, 1), (2,), ("w",)),  # the node of the only server receives all updates
        ((0, 1, 2, 3), (0, 1, 2, 3), ()),  # each node would receive three updates instead of 1.5
        ((0, 0, 1, 1, 2, 2, 3, 3), (0, 1, 2, 3), ()),
    ],
)
def test_a_table_goes_the_way_that_moves_less(
    workers: tuple[int, ...], servers: tuple[int, ...], expected: tuple[str, ...]
) -> None:
    choice = choose_placement([auto("w", 1 << 20)], site(workers, servers))
    assert choice.replicated == expected


def test_the_estimate_counts_the_bytes_of_the_busiest_node() -> None:
    # Memory without cost: 4 bytes times what the busiest node receives.
    table = auto("w", 1000)
    two = site((0, 0, 1), (1,), network=1.0, memory=math.inf)
    assert two.server_seconds(table) == 4000 * 2  # node 1 receives two updates, node 0 two pulls
    assert two.replicated_seconds(table) == 4000 * 2  # node 1 receives two updates
    four = site((0, 1, 2, 3), (0, 1), network=1.0, memory=math.inf)
    # A node with a server receives half of three updates, and half of the values for its worker.
    assert four.server_seconds(table) == 4000 * (3 + 1) / 2
    assert four.replicated_seconds(table) == 4000 * 3


def test_a_slow_network_decides_differently_than_a_fast_one() -> None:
    # Between nodes both ways are equal; in memory the two workers of each node share the server's work.
    workers, servers = (0, 0, 1, 1, 2, 2, 3, 3), (0,)
    tables = [auto("w", 1 << 20)]
    assert choose_placement(tables, site(workers, servers, network=1e8)).replicated == ()
    assert choose_placement(tables, site(workers, servers, network=1e14)).replicated == ("w",)


def test_the_smallest_tables_are_replicated_until_half_of_the_memory_is_used() -> None:
    tables = [auto("large", 3000), auto("small", 1000, optimizer=Adam()), auto("middle", 2000)]
    where = site((0, 0, 0), (0,))
    needed = {t.name: where.replicated_bytes(t) for t in tables}
    # Values, two states of Adam, and the updates of three workers.
    assert needed == {"small": 4 * 1000 * 6, "middle": 4 * 2000 * 4, "large": 4 * 3000 * 4}
    room = 2 * (needed["small"] + needed["middle"])
    choice = choose_placement(tables, site((0, 0, 0), (0,), room=room))
    assert choice.replicated == ("middle", "small")
    assert "2 of 3 tables replicated, the smallest ones" in choice.reason
    assert "'large' and larger ones lie on servers" in choice.reason
    small = choose_placement(tables[::-1], site((0, 0, 0), (0,), room=2 * needed["small"]))
    assert "'middle' and larger ones lie on servers" in small.reason
    assert choose_placement(tables, site((0, 0, 0), (0,), room=room - 2)).replicated == ("small",)
    assert choose_placement(tables, site((0, 0, 0), (0,), room=0)).replicated == ()


def test_tables_that_cannot_be_replicated_lie_on_servers() -> None:
    tables: list[Table] = [
        auto("stale", 10, consistency=ASP()),
        auto("backed", 10, consistency=BSP(backup=1)),
        auto("python", 10, optimizer=PythonRule(print)),
        auto("encoded", 10, compression="int8"),
    ]
    choice = choose_placement(tables, site((0, 0, 0), (0,)))
    assert choice.replicated == ()
    assert choice.reason.endswith(
        "no table has BSP without backup workers, an optimizer of mpips and no compression"
    )
    mixed = choose_placement([*tables, auto("w", 10)], site((0, 0, 0), (0,)))
    assert mixed.replicated == ("w",)


def test_only_tables_that_ask_for_it_are_placed() -> None:
    tables: list[Table] = [
        DenseTable("fixed", (3,)),
        auto("a", 3),
        auto("b", 3),
        DenseTable("copied", (3,), placement="replicated"),
        EmbeddingTable("rows", 4),
    ]
    assert [table.name for table in auto_tables(tables)] == ["a", "b"]
    found = placed(tables, ("b",))
    assert [getattr(table, "placement", None) for table in found] == [
        "servers",
        "servers",
        Replicated(),
        Replicated(),
        None,
    ]
    assert not auto_tables(found)
    assert found[0] is tables[0]
