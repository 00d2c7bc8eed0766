"""`mpips plan`: counts and sizes equal those of the job."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from planning_rig import BIG, job, planned

from mpips.checkpoint.structure import hdf5_kind
from mpips.config.schema import JobConfig
from mpips.model.buffers import BufferShares
from mpips.model.table import DenseTable
from mpips.plan import planning
from mpips.plan.needs import (
    ServerNeeds,
    node_needs,
    staging_bytes,
    steps_per_epoch,
)
from mpips.plan.planning import Hardware, read_inputs, this_machine
from mpips.plan.rehearsal import rehearse
from mpips.plan.report import as_json, as_text
from mpips.training.train import train
from mpips.worker.buffers import buffers_alone
from mpips.worker.replicated.start import memory
from mpips.worker.start import Planned


def alone(config: JobConfig) -> BufferShares:
    """Return the sizes of the buffers of a job of one process."""
    return buffers_alone([], [], config.cluster).shares()


def test_the_memory_of_a_node_is_what_its_control_group_grants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planning, "group_limit", lambda: 0)
    whole = this_machine().memory
    assert whole == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit, granted in ((1 << 30, 1 << 30), (4 * whole, whole)):
        monkeypatch.setattr(planning, "group_limit", lambda limit=limit: limit)
        assert this_machine().memory == granted


LEAVING = 2  # last records of a worker at each server: no more checkpoints, no more pushes


def test_a_rehearsal_writes_the_records_of_a_run(svm: Path) -> None:
    for task in ("logistic", "fm"):
        config = job(task, svm, ("train.epochs", 2), ("train.batch_size", 16))
        inputs = read_inputs(config, 1)
        found = rehearse(inputs, config.cluster, alone(config), 1, 20)
        served = train(config, "none", verbose=False).statistics["servers"][0]
        assert len(found.steps) == 20 == 2 * steps_per_epoch(160, 1, 16)
        assert sum(found.records) + LEAVING == served["counters"]["records"]


def test_a_rehearsal_of_a_dense_task_writes_the_records_of_a_run() -> None:
    config = job("mlp", "digits", ("train.epochs", 1), ("options.hidden", [1500]))
    found = rehearse(read_inputs(config, 1), config.cluster, alone(config), 1, 45)
    served = train(config, "none", verbose=False).statistics["servers"][0]
    assert len(found.steps) == 45
    # In one process large updates go through the ring; in a job on one node through staging memory.
    shares = alone(config)
    unstaged = rehearse(read_inputs(config, 1), config.cluster, shares, 1, 45, staged=False)
    assert sum(unstaged.records) + LEAVING == served["counters"]["records"]
    assert sum(found.records) < sum(unstaged.records)


@pytest.mark.skipif(hdf5_kind() == "none", reason="checkpoints need h5py")
@pytest.mark.parametrize("task", ["logistic", "fm"])
def test_a_checkpoint_has_the_planned_size(svm: Path, tmp_path: Path, task: str) -> None:
    folder = tmp_path / "checkpoints"
    config = job(task, svm, ("train.epochs", 1), ("checkpoint.folder", str(folder)))
    train(config, "none", verbose=False)
    written = (folder / "latest" / "state.h5").stat().st_size
    assert planned(config, 1).needs.checkpoint == written


def test_the_regions_are_those_of_the_placement(svm: Path) -> None:
    plan = planned(job("logistic", svm), 8)
    for server, layout in zip(plan.needs.servers, plan.placement.layouts, strict=True):
        assert server.mailboxes + server.dense == layout.total_bytes
    node = plan.needs.nodes[0]
    assert node.shared == sum(s.shared for s in plan.needs.servers)
    assert node.memory > node.shared + 8 * plan.needs.program
    assert len(plan.needs.nodes) == 1


def test_checkpoints_while_training_goes_on_take_a_copy(svm: Path) -> None:
    plain = planned(job("logistic", svm), 3).needs
    needs = planned(job("logistic", svm, ("checkpoint.every_steps", 5)), 3).needs
    for server, without in zip(needs.servers, plain.servers, strict=True):
        assert server.copy == server.dense + int(1.25 * server.embedding)
        assert (without.copy, without.shared) == (0, server.shared)
    assert needs.nodes[0].memory - plain.nodes[0].memory == sum(s.copy for s in needs.servers)


def test_partners_hold_each_others_servers(svm: Path) -> None:
    config = job("softmax", svm, ("cluster.servers", 2), ("redundancy.partner", True))
    found = planned(config, 6, per_node=3).needs
    both = sum(server.shared for server in found.servers)
    assert [node.shared for node in found.nodes] == [both, both]
    assert found.worker_staging == 0


def test_sums_lie_in_shared_memory_where_there_is_a_journal() -> None:
    def server(warm: bool, *settings: tuple[str, object]) -> ServerNeeds:
        config = job("mlp", "digits", ("redundancy.warm", warm), *settings)
        return planned(config, 4, n_steps=1).needs.servers[0]

    warm, cold = server(True), server(False)
    n = 64 * 128 + 128 + 128 * 10 + 10
    assert warm.sums == cold.sums == 4 * n
    assert warm.shared == cold.shared + warm.sums + warm.journal
    assert cold.private == warm.private + cold.sums
    asp = server(True, ("table.consistency", "asp"))
    assert (asp.sums, asp.journal) == (0, warm.journal)


def test_replicated_tables_lie_on_each_node_with_workers() -> None:
    bsp = ("table.consistency", "bsp")
    found = planned(job("mlp", "digits", bsp, ("table.placement", "replicated")), 6, 3)
    assert {tuple(paths) for paths in as_json(found)["paths"].values()} == {("replicated",)}
    assert "replicated" in as_text(found)
    needs, a = found.needs, found.assignment
    assert [s.journal > 0 for s in needs.servers] == [True] * len(needs.servers)
    assert needs.worker_staging == 0
    # Values, one state of Adagrad, and the pushes of all workers.
    n_floats = sum(math.prod(t.shape) for t in found.inputs.tables if isinstance(t, DenseTable))
    once, added = (
        memory(Planned(t, t, found.config.cluster, a, found.placement, found.shares, warm))[
            0
        ].shared
        for t, warm in ((found.inputs.tables, False), (found.inputs.tables, True))
    )
    assert 0 < once - 4 * n_floats * (2 + len(a.workers)) < 64 << 10
    # Two versions of values and state; after a failure also the memory of the attempt before.
    assert 0 < added - 2 * 4 * n_floats * (4 + len(a.workers)) < 128 << 10
    without = node_needs(a, needs.servers, needs.worker_data, 0, needs.program)
    assert [n.shared - b.shared for n, b in zip(needs.nodes, without, strict=True)] == [added] * 2


@pytest.mark.parametrize(
    ("changes", "n", "per_node", "path", "line"),
    [
        ({}, 5, 5, "replicated", "assumes that 4 of 4 are replicated; the"),
        ({}, 1, 1, "direct", "with one process all are on the server"),
        ({"redundancy.warm": False}, 5, 5, "replicated", "assumes that 4 of 4 are replicated; the"),
        ({"redundancy.warm": False}, 6, 2, "", "are replicated, with 1.2 GB/s between nodes; the"),
    ],
)
def test_a_plan_says_which_placement_it_assumes(
    changes: dict[str, Any], n: int, per_node: int, path: str, line: str
) -> None:
    codec = {"name": "auto", "codecs": ["bf16"]}
    options = [("table.placement", "auto"), ("cluster.servers", 1), *changes.items()]
    coded = planned(job("mlp", "digits", ("table.pull_compression", codec)), n, per_node)
    assert "codecs that are Auto: the plan assumes none" in as_text(coded)
    found = planned(job("mlp", "digits", *options), n, per_node)
    if path:
        assert {tuple(paths) for paths in as_json(found)["paths"].values()} == {(path,)}
    assert "placement = 'auto': " in as_text(found)
    assert line in as_text(found)
    assert not any(t.placement == "auto" for t in found.inputs.tables if isinstance(t, DenseTable))


@pytest.mark.parametrize(("what", "word"), [("shm", "/dev/shm"), ("memory", "memory needs")])
def test_a_node_that_is_too_small_is_a_problem(svm: Path, what: str, word: str) -> None:
    plan = planned(job("logistic", svm), 6, hardware=replace(BIG, **{what: 1 << 20}))
    assert len(plan.problems) == 1
    assert word in plan.problems[0]
    assert as_text(plan).splitlines()[-1].startswith("cannot run: node0")
    assert not as_json(plan)["fits"]


def test_staging_holds_two_of_each_large_update() -> None:
    tables = [DenseTable("small", (1000,)), DenseTable("large", (1000, 1000))]
    assert staging_bytes(tables, 1 << 30) == 2 * 4_000_000
    assert staging_bytes([DenseTable("huge", (1 << 28,))], 5 << 20) == 5 << 19


def test_tables_larger_than_this_machine_are_planned_without_making_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "wide.npz"
    np.savez(path, x=np.zeros((20, 60), np.float32), y=np.arange(20) % 2)
    plan = planned(
        job("mlp", path, ("options.hidden", [400_000_000])), 4, hardware=Hardware(4, 1, 1)
    )
    assert plan.rehearsal is None
    assert plan.needs.servers[0].dense > 4 * 60 * 400_000_000
    assert len(plan.problems) == 2


def test_a_plan_has_shared_scales_and_their_residuals() -> None:
    found, plain = (
        planned(job("mlp", "digits", *options), 4, n_steps=5)
        for options in ((("table.compression", "shared_int8"),), ())
    )
    assert {tuple(paths) for paths in as_json(found)["paths"].values()} == {("shared scales",)}
    assert found.rehearsal is not None
    assert plain.rehearsal is not None
    n = 64 * 128 + 128 + 128 * 10 + 10
    scales = 4 * sum(-(-size // 128) for size in (64 * 128, 128, 128 * 10, 10))
    assert found.needs.checkpoint - plain.needs.checkpoint >= scales
    assert found.needs.worker_residuals >= 2 * 4 * n


def test_tables_under_diloco_are_planned_by_their_outer_steps() -> None:
    local = (("table.consistency", "diloco"), ("table.steps", 8), ("table.compression", "int8"))
    found, plain = planned(job("mlp", "digits", *local), 4), planned(job("mlp", "digits"), 4)
    n = 64 * 128 + 128 + 128 * 10 + 10
    assert found.rehearsal is None
    text = as_text(found)
    pushed = n * (1 + 4 / 128)
    assert (
        f"outer steps: 1 in 8 steps of a worker, in which it pushes {pushed / 1024:.1f} KiB" in text
    )
    assert f"and pulls {4 * n / 1024:.1f} KiB of dense tables" in text
    # Values, a state, the servers' values and a gradient of each of two workers, and two images in shared
    # memory. Servers have the momentum of the outer rule in place of Adagrad's state.
    more = found.needs.nodes[0].memory - plain.needs.nodes[0].memory
    assert 0 <= more - 2 * (4 * 4 * n + 2 * 2 * 4 * n) < 64 << 10
