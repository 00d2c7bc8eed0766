"""What start-up decides for workers of groups: shared pulls, partners of servers, and the clock of cuts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mpips import ASP, BSP, SGD, DenseTable
from mpips.model.grouping import grouped_tables
from mpips.model.placement import place
from mpips.session.parts import Parts
from mpips.worker.connection_options import needs_common_clock
from mpips.worker.groups.memory import shared_parts


def test_only_values_of_a_clock_are_pulled_once_for_a_node() -> None:
    tables = [DenseTable(n, (1000,), SGD(0.1), m) for n, m in (("a", ASP()), ("b", BSP()))]
    placement = place(tables, 1, 3, None, 0)
    assert list(shared_parts(grouped_tables(tables), placement, (0, 0, 0), (1,), 0)) == [(1, 0)]


@pytest.mark.parametrize("has_partners", [False, True])
def test_workers_of_a_group_wait_for_partners_and_cut_at_one_clock(has_partners: bool) -> None:
    tables = [DenseTable("t", (10,), SGD(0.1), ASP())]
    for groups in ((), ((0, 1),)):
        parts: Any = SimpleNamespace(
            has_partners=has_partners,
            partnership=SimpleNamespace(of={0: 1}),
            groups=groups,
            tables=tables,
        )
        assert Parts.partners(parts).waits is (has_partners and bool(groups))
        assert needs_common_clock(tables, groups) is bool(groups)
