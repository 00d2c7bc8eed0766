"""Copies that pulls follow by differences count as memory of servers, workers and checkpoints."""

from __future__ import annotations

from planning_rig import job, planned

from mpips.plan.planning import Plan
from mpips.plan.report import as_json, as_text

N = 64 * 128 + 128 + 128 * 10 + 10  # values of the model


def plan(codec: str) -> Plan:
    settings = () if codec == "none" else (("table.pull_compression", codec),)
    return planned(job("mlp", "digits", *settings), 4, n_steps=1)


def test_servers_and_workers_hold_copies() -> None:
    plain, found = plan("none"), plan("onebit")
    before, after = plain.needs.servers[0], found.needs.servers[0]
    # Each of the four tables has its copy, a head and differences, in whole pages.
    assert 4 * N * 33 // 32 < after.dense - before.dense < 4 * N * 9 // 8 + 4 * 3 * 4096
    assert (before.encoding, after.encoding) == (0, 4 * N)
    assert after.private - before.private >= 4 * N
    assert (plain.needs.worker_common, found.needs.worker_common) == (0, 4 * N)
    assert found.needs.checkpoint - plain.needs.checkpoint >= 4 * N
    # Of the four ranks one is the scheduler, one the server, two are workers.
    grown = found.needs.nodes[0].memory - plain.needs.nodes[0].memory
    assert grown >= 4 * N * (2 + 2)


def test_the_plan_names_them() -> None:
    found = plan("topk")
    text = as_text(found)
    assert "to encode differences" in text
    assert "for copies that its pulls follow" in text
    assert as_json(found)["common_bytes"] == 4 * N
    assert "copies that its pulls follow" not in as_text(plan("none"))
