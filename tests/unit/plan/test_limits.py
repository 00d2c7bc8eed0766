"""The limits that a plan names are those at which its own arithmetic stops to fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from planning_rig import job, planned

from mpips.mpi.roles import default_servers
from mpips.plan.limits import MOST_RANKS, Growth, limits
from mpips.plan.planning import Plan

GIB = 1 << 30


@pytest.fixture
def svm(tmp_path: Path) -> Path:
    path = tmp_path / "made.svm"
    path.write_text("".join(f"{i % 2} {i % 7 + 1}:1 {i % 5 + 9}:2\n" for i in range(160)))
    return path


def growth(plan: Plan, n_ranks: int, per_node: int) -> Growth:
    c = plan.config
    tables, n = plan.inputs.tables, plan.inputs.info.n_samples_total
    return Growth(
        tables, c.cluster, plan.shares, plan.needs, n_ranks, per_node, n, c.redundancy.warm
    )


@pytest.mark.parametrize("servers", [0, 5])
@pytest.mark.parametrize("n_ranks", [16, 64, 320])
def test_memory_of_a_plan_is_that_of_its_growth(svm: Path, n_ranks: int, servers: int) -> None:
    plan = planned(job("logistic", svm, ("cluster.servers", servers)), n_ranks, per_node=16)
    found = growth(plan, n_ranks, 16)
    assert found.servers(n_ranks) == len(plan.assignment.servers)
    assert found.workers(n_ranks) == len(plan.assignment.workers)
    nodes = plan.needs.nodes
    assert found.shared(n_ranks) == pytest.approx(max(n.shared for n in nodes), rel=0.05)
    assert found.memory(n_ranks) == pytest.approx(max(n.memory for n in nodes), rel=0.05)


def test_each_limit_is_the_last_number_of_ranks_that_fits(svm: Path) -> None:
    found = growth(planned(job("logistic", svm), 64, per_node=16), 64, 16)
    shm, memory = found.shared(4000) + 1, found.memory(6000) + 1
    listed = {limit.what[:9]: limit.n_ranks for limit in limits(found, shm, memory, 5000)}
    last = listed["/dev/shm "]
    assert found.shared(last) <= shm < found.shared(last + 1)
    last = listed["a node ha"]
    assert found.memory(last) <= memory < found.memory(last + 1)
    assert listed["a server "] == 5000 - 256
    last = listed["the train"]
    assert found.workers(last) <= 160 < found.workers(last + 1)
    last = listed["records c"]
    assert found.workers(last) <= 65_536 < found.workers(last + 1)


def test_the_limit_that_is_met_first_is_at_the_front(svm: Path) -> None:
    found = replace(growth(planned(job("logistic", svm), 64, per_node=16), 64, 16), n_samples=10**9)
    listed = limits(found, 1000 * GIB, 1000 * GIB, 5000)
    assert [limit.n_ranks for limit in listed] == sorted(limit.n_ranks for limit in listed)
    assert listed[0].n_ranks == 5000 - 256
    assert "open 5,000 files" in listed[0].what
    assert listed[-1].n_ranks <= MOST_RANKS


def test_servers_grow_with_the_ranks_unless_their_number_is_configured(svm: Path) -> None:
    free = growth(planned(job("logistic", svm), 64, per_node=16), 64, 16)
    assert free.servers(1600) == default_servers(1600, 100)
    fixed = growth(planned(job("logistic", svm, ("cluster.servers", 3)), 64, per_node=16), 64, 16)
    assert (fixed.servers(1600), fixed.workers(1600)) == (3, 1596)


def test_a_budget_for_buffers_is_a_limit(svm: Path) -> None:
    """With one rank more per node the least rings of each server need more than the budget."""
    config = job("logistic", svm, ("cluster.node_buffers_mib", 30), ("cluster.servers", 2))
    plan = planned(config, 16, per_node=16)
    found = growth(plan, 16, 16)
    first = next(n for n, what in limits(found, 1 << 50, 1 << 50) if "node_buffers_mib" in what)
    assert 16 < first < 10_000
    assert found.least_buffers(first) <= 30 << 20 < found.least_buffers(first + 1)
    assert "cluster.node_buffers_mib = 30" in {limit.what[:29] for limit in plan.limits}
