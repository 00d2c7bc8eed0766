"""The memory for rows of look-aheads in a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from planning_rig import BIG, job, planned

from mpips.plan.planning import Plan
from mpips.plan.report import as_json, as_text

SMALL = {"ring_slots": 4, "slot_kib": 4, "staging_mib": 1}


def plan_of(svm: Path, n: int = 7, per_node: int = 4, task: str = "fm", **options: Any) -> Plan:
    """Plan two nodes: scheduler, server 0 and two workers; server 1 and two workers."""
    changes = [(f"cluster.{name}", value) for name, value in options.items() if name != "hardware"]
    hardware = options.get("hardware", BIG)
    config = job(task, svm, ("cluster.servers", 2), *changes)
    return planned(config, n, per_node, n_steps=1, hardware=hardware)


def node_rows(plan: Plan) -> list[int]:
    return [node["held_row_bytes"] for node in as_json(plan)["nodes"]]


def test_each_worker_of_a_node_adds_its_share(svm: Path) -> None:
    found = plan_of(svm)
    assert node_rows(found) == [2 * 16 << 20, 2 * 16 << 20]
    # Rings, 1 MiB of staging memory for each worker, and 3 MiB for rows.
    assert node_rows(plan_of(svm, node_buffers_mib=9, **SMALL)) == [2 * 3 << 20, 2 * 3 << 20]
    line = "look-aheads and groups take 32.0 MiB more of /dev/shm on a node for shared rows "
    assert line + "(node_buffers_mib)\n" in as_text(found)


@pytest.mark.parametrize(
    "options",
    [
        {"node_buffers_mib": 4, **SMALL},  # no MiB is left for each worker
        {"transport": "p2p"},
        {"per_node": 7},  # all servers are here
        {"n": 4, "per_node": 2},  # no two workers on a node
    ],
)
def test_there_is_none_where_workers_share_no_rows(svm: Path, options: dict[str, Any]) -> None:
    found = plan_of(svm, **options)
    assert not any(node_rows(found))
    assert "look-ahead" not in as_text(found)


def test_a_job_without_rows_has_none(svm: Path) -> None:
    assert not any(node_rows(plan_of(svm, task="softmax")))


def test_a_node_without_room_for_it_is_named_and_the_job_fits(svm: Path) -> None:
    needs = max(node.shared for node in plan_of(svm).needs.nodes)
    short, enough = (
        plan_of(svm, hardware=msgspec.structs.replace(BIG, shm=needs + more))
        for more in ((32 << 20) - 1, 32 << 20)
    )
    assert not short.problems
    assert "(node_buffers_mib); no room on node" in as_text(short)
    assert "where they share none\n" in as_text(short)
    assert "no room" not in as_text(enough)
