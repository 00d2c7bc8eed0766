"""Sizes of the buffers of a job: within the budget of a node, and the defaults without a budget."""

from __future__ import annotations

import itertools
import random
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from mpips import ASP, BSP, SGD, DenseTable, EmbeddingTable
from mpips.config.options import SessionOptions
from mpips.errors import ConfigError
from mpips.model.placement import place
from mpips.model.served import served
from mpips.model.table import Table
from mpips.mpi.roles import Assignment, assign
from mpips.worker import parts
from mpips.worker.buffers import JobBuffers
from mpips.worker.groups.memory import planned_groups
from mpips.worker.start import Planned

MIB = 1 << 20
SMALL = [DenseTable("w", (300,), SGD(0.1)), EmbeddingTable("e", 4, SGD(0.1), BSP())]
LARGE = [
    DenseTable("w", (3 << 20,), SGD(0.1)),
    DenseTable("v", (1 << 17,), SGD(0.1), ASP()),
    EmbeddingTable("e", 900, SGD(0.1)),
]
TABLES = {"small": SMALL, "large": LARGE, "dense": LARGE[:2], "rows": LARGE[2:]}
# Ranks on each node.
SPREADS = {"pair": [2], "node": [5], "two": [3, 3], "uneven": [2, 6, 1], "many": [4] * 40}


class Job(NamedTuple):
    """A job on imitated nodes."""

    declared: list[Table]
    options: SessionOptions
    a: Assignment
    has_partners: bool

    def with_budget(self, mib: int | None) -> Job:
        return self._replace(options=replace(self.options, node_buffers_mib=mib).check())

    @property
    def buffers(self) -> JobBuffers:
        groups = planned_groups(self.declared, self.options, self.a)
        tables = served(self.declared)
        return JobBuffers(self.declared, tables, self.options, self.a, groups, self.has_partners)

    def planned(self) -> Planned:
        shares, tables = self.buffers.shares(), served(self.declared)
        near = self.a.near_workers(self.options.transport)
        placement = shares.place(tables, len(self.a.servers), len(self.a.workers), near)
        return Planned(self.declared, tables, self.options, self.a, placement, shares, False)


def roles(spread: list[int]) -> Assignment:
    node_of = [node for node, n in enumerate(spread) for _ in range(n)]
    return assign(node_of, [f"n{k}" for k in range(len(spread))], None)


def jobs() -> list[Any]:
    found = []
    for tables, spread, transport, topology in itertools.product(
        TABLES, SPREADS, ("auto", "rma"), ("flat", "node")
    ):
        options = SessionOptions(transport=transport, topology=topology)
        for has_partners in (False, True)[: 1 + (topology == "flat")]:
            name = f"{tables}-{spread}-{transport}-{topology}-{has_partners}"
            a = roles(SPREADS[spread])
            found.append(pytest.param(Job(TABLES[tables], options, a, has_partners), id=name))
    return found


def taken(job: Job) -> list[int]:
    """Return what the functions that start-up calls take for buffers on each node, in bytes."""
    planned, a = job.planned(), job.a
    found = [part.later for part in parts.memory(planned)]
    for index, rank in enumerate(a.servers):
        found[a.node_of[rank]] += planned.placement.layouts[index].tables_offset
    for rank in a.workers:
        found[a.node_of[rank]] += planned.shares.staging
    # Groups also have memory for dense tables, which is no buffer.
    without = replace(planned.shares, group_rows_mib=0)
    less = parts.memory(replace(planned, shares=without))
    rows = [a.shared - b.shared for a, b in zip(parts.memory(planned), less, strict=True)]
    return [n + more for n, more in zip(found, rows, strict=True)]


@pytest.mark.parametrize("job", jobs())
def test_a_budget_holds_on_every_node_and_no_size_falls_with_more(job: Job) -> None:
    """The sums that are compared with the budget are those of what start-up makes."""
    least, _ = job.buffers.least()
    assert job.buffers.shares() == job.buffers.shares()
    default = -(-max(taken(job)) // MIB)
    draws = random.Random(4)
    budgets = [least, least + 1, *(draws.randint(least, 2 * default + least) for _ in range(3))]
    before = None
    for budget in sorted({*budgets, default}):
        limited = job.with_budget(budget)
        found = taken(limited)
        shares = limited.buffers.shares()
        of_nodes = [limited.buffers.of_node(k, shares).total for k in range(len(found))]
        # The memory of a group has a word for each worker besides, where it sums rows.
        assert all(0 <= n - of < 8192 for n, of in zip(found, of_nodes, strict=True))
        assert max(of_nodes) <= budget * MIB
        # No size falls with a larger budget.
        sizes = [getattr(shares, n) or 0 for n in shares.__struct_fields__]
        assert before is None or all(a <= b for a, b in zip(before, sizes, strict=True))
        before = sizes
    if least > 1:
        short = job.with_budget(least - 1).buffers
        with pytest.raises(ConfigError, match=rf"= {least - 1} is too small .* to {least} or more"):
            short.shares()


@pytest.mark.parametrize("job", jobs())
def test_without_a_budget_sizes_are_the_defaults(job: Job) -> None:
    planned, a = job.planned(), job.a
    shares = planned.shares
    assert shares.staging_mib == (0 if job.has_partners else 1024)
    assert (shares.group_rows_mib, shares.node_rows_mib) == (16, 16)
    remote = 0 if job.has_partners else 256 * MIB
    near = a.near_workers(job.options.transport)
    other = place(planned.tables, len(a.servers), len(a.workers), None, 0, near, remote)
    for mine, theirs in zip(planned.placement.layouts, other.layouts, strict=True):
        assert (mine.tables_offset, mine.total_bytes) == (theirs.tables_offset, theirs.total_bytes)


def test_a_budget_of_the_defaults_gives_the_defaults() -> None:
    job = Job(LARGE, SessionOptions(topology="node"), roles([3, 3]), False)
    full = max(job.buffers.of_node(k, job.buffers.shares()).total for k in range(2))
    found = job.with_budget(-(-full // MIB)).buffers.shares()
    default = job.buffers.shares()
    assert found.staging_mib == default.staging_mib
    assert (found.group_rows_mib, found.node_rows_mib) == (16, 16)


def test_staging_memory_beyond_the_tables_goes_first() -> None:
    job = Job(SMALL, SessionOptions(), roles([3, 3]), False)
    default, found = job.buffers.shares(), job.with_budget(200).buffers.shares()
    assert (found.rings, found.node_rows_mib) == (default.rings, default.node_rows_mib)
    assert 1 < found.staging_mib < 100


def test_stated_sizes_stay() -> None:
    options = SessionOptions(ring_slots=8, slot_kib=16, staging_mib=7, group_rows_mib=3)
    job = Job(SMALL, options, roles([3, 3]), False)
    for budget in (None, *range(job.buffers.least()[0], 60, 7)):
        shares = job.with_budget(budget).buffers.shares()
        stated = (shares.n_slots, shares.slot_bytes, shares.staging_mib, shares.group_rows_mib)
        assert stated == (8, 16 << 10, 7, 3)
    with pytest.raises(ConfigError, match=r"staging memory, 14\.0 MiB: 7 MiB for each of 2 work"):
        job.with_budget(14).buffers.shares()


def test_the_search_is_fast_for_many_ranks() -> None:
    """A thousand equal nodes cost no more than one: nodes are counted once."""
    job = Job(LARGE, SessionOptions(topology="node"), roles([9] * 1000), False)
    buffers = job.with_budget(job.buffers.least()[0] + 900).buffers
    kinds = set(buffers._nodes)
    assert len(kinds) <= 8
    assert buffers.shares() == buffers.shares()
