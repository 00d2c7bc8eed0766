"""The loss of a node costs nothing that was acknowledged: its servers go on from their partners' copies.

By day the tests of one kind take turns: every second commit runs them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import multinode
import pytest
import supervised
from supervised import SHAPE, Run, audit, check_counts, counting, expected_counts, job, start

pytestmark = pytest.mark.multinode


# Where one process of each launch dies: a server or the copy that its partner keeps, or a worker. Two
# in a row that died before they came any further would be the last.
DEATHS = {
    "applying": "word-put:301,stamped:150,unit-saved:90,committed:101",
    "taking-over": "word-logged:499,acknowledged:130,payload:150,taken-over:1",
}


def start_on(
    nodes: multinode.Nodes,
    folder: Path,
    slots: list[int],
    *arguments: str,
    fault: str = "",
    shape: Sequence[str] = SHAPE,
) -> Run:
    """`mpips run` over all nodes with so many slots each; `fault`: see native/src/shm/fault.hpp."""
    hosts = ",".join(f"{host}:{n}" for host, n in zip(nodes.hosts, slots, strict=True))
    command = supervised.command("--hosts", hosts, *shape, *arguments)
    env = {**supervised.ENVIRONMENT, "MPIPS_FAULT": fault}
    return Run(folder, nodes.start_on_head(command, env, 170.0, folder))


def lose(nodes: multinode.Nodes, run: Run, node: int) -> str:
    """Kill a node once there is a checkpoint, and wait for the end; what was said."""
    with run.launched:
        run.until(lambda s: bool(s["ranks"] and s["checkpoint"]))
        nodes.kill(node)
        assert run.launched.wait() == 0, run.launched.tail(80)
    said = run.launched.stderr()
    assert run.attempts == 2, said
    assert f"{nodes.hosts[node]} is left out" in said
    assert "from memory: step" in said
    assert all(nodes.segments(n) == set() for n in range(len(nodes)) if n != node)
    return said


def settings(**more: object) -> list[str]:
    """Partners, a checkpoint to tell by that the job is at work, and more."""
    return [
        "redundancy.partner=true",
        "checkpoint.every_steps=20",
        *(f"{k}={v}" for k, v in more.items()),
    ]


def test_under_bsp_the_bits_are_those_of_an_undisturbed_run(
    nodes3: multinode.Nodes, tmp_path: Path
) -> None:
    (tmp_path / "calm").mkdir()
    calm = start(tmp_path / "calm", *SHAPE, *job(tmp_path, "faulty_task:Faulty"))
    with calm.launched:
        assert calm.launched.wait() == 0, calm.launched.tail()
    arguments = job(tmp_path, "faulty_task:Faulty", *settings())
    # Node 0 has the scheduler and server 0, node 1 server 1, which moves to the spare.
    run = start_on(nodes3, tmp_path, [3, 3, 3], "--spares", "1", *arguments)
    said = lose(nodes3, run, 0)
    assert f"server 0 continues from its partner's copy on {nodes3.hosts[1]}" in said
    assert f"server 1 continues from its memory, moved here from {nodes3.hosts[1]}" in said
    assert run.final() == calm.final()


def test_a_script_has_replicas(nodes3: multinode.Nodes, tmp_path: Path) -> None:
    shape = ["-n", "5", "--set", "redundancy.partner=true"]
    script = str(supervised.PROGRAMS / "lost_node.py")
    run = start_on(nodes3, tmp_path, [3, 3, 3], "--spares", "1", script, shape=shape)
    said = lose(nodes3, run, 0)
    assert f"server 0 continues from its partner's copy on {nodes3.hosts[1]}" in said
    found = json.loads(run.launched.stdout().strip().splitlines()[-1])
    assert found["first"] == 30  # more than the checkpoint has
    assert found["dense"] == [120.0] * 4
    assert found["rows"] == [2.0, 4.0, *[6.0] * 58, 4.0, 2.0]


@pytest.mark.long
def test_a_torch_script_has_replicas(nodes3: multinode.Nodes, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    shape = ["-n", "5", "--set", "redundancy.partner=true"]
    script = str(supervised.PROGRAMS / "lost_node_torch.py")
    run = start_on(nodes3, tmp_path, [3, 3, 3], "--spares", "1", script, shape=shape)
    lose(nodes3, run, 0)
    found = json.loads(run.launched.stdout().strip().splitlines()[-1])
    assert found["first"] >= 29  # more than the checkpoint has; the last step may be repeated
    assert found["values"] == [60.0] * 4


# Replicated tables beside a dense table and rows on servers, and nothing but replicated tables.
SUM = {"table.consistency": "bsp", "table.reduce": "sum"}
HYBRID = {
    **SUM,
    "options.small": "true",
    "tables.small.placement": "replicated",
    "tables.fitted.placement": "replicated",
}
ALONE = {**SUM, "options.rows": "false", "table.placement": "replicated"}


def replicated(folder: Path, job_settings: dict[str, str], *more: str) -> list[str]:
    texts = [f"{name}={value}" for name, value in job_settings.items()]
    counted = ("mpips.testing.counted:Counted", "options.copies=20", "options.pause_s=0.01")
    return job(folder, *counted, *texts, *more)


def calm_bits(folder: Path, job_settings: dict[str, str]) -> dict[str, bytes]:
    """The final tables of an undisturbed run of the same job on one node."""
    (folder / "calm").mkdir()
    calm = start(folder / "calm", *SHAPE, *replicated(folder, job_settings))
    with calm.launched:
        assert calm.launched.wait() == 0, calm.launched.tail()
    return calm.final()


def test_replicated_tables_and_those_on_servers_continue_at_one_clock(
    nodes3: multinode.Nodes, tmp_path: Path
) -> None:
    # Servers and workers are on nodes 0 and 1. A worker dies between the ticks of one clock, too.
    arguments = replicated(tmp_path, HYBRID, *settings())
    faults = "ticking:40,"
    run = start_on(
        nodes3,
        tmp_path,
        [3, 3, 3],
        "--spares",
        "1",
        "--max-restarts",
        "9",
        *arguments,
        fault=faults,
    )
    with run.launched:
        run.until(lambda s: bool(s["generation"] == 1 and s["ranks"] and s["checkpoint"]))
        nodes3.kill(0)
        assert run.launched.wait() == 0, run.launched.tail(80)
    said = run.launched.stderr()
    assert run.attempts == 3, said
    assert said.count("from memory: step") == 2, said
    assert f"server 0 continues from its partner's copy on {nodes3.hosts[1]}" in said
    assert all(nodes3.segments(n) == set() for n in (1, 2))
    assert run.final() == calm_bits(tmp_path, HYBRID)


@pytest.mark.long
def test_a_group_stays_together_when_a_node_of_it_is_lost(
    nodes3: multinode.Nodes, tmp_path: Path
) -> None:
    # The leader is on node 0, the other worker on node 1: they add up by messages.
    grouped = {**SUM, "options.small": "true", "cluster.topology": "[[0,1]]"}
    arguments = replicated(tmp_path, grouped, *settings())
    run = start_on(nodes3, tmp_path, [3, 3, 3], "--spares", "1", *arguments)
    said = lose(nodes3, run, 0)
    assert f"server 0 continues from its partner's copy on {nodes3.hosts[1]}" in said
    assert run.final() == calm_bits(tmp_path, grouped)


def test_workers_of_a_lost_node_take_replicated_tables_from_any_other(
    nodes3: multinode.Nodes, tmp_path: Path
) -> None:
    # Node 2 has one worker, which moves; the server is on another node and has no partner.
    arguments = replicated(tmp_path, ALONE, "checkpoint.every_steps=20")
    run = start_on(nodes3, tmp_path, [3, 3, 3], "--servers", "1", *arguments)
    said = lose(nodes3, run, 2)
    assert "not continuing in memory" not in said
    check_counts(run, tmp_path)


def test_every_push_counts_once_and_without_another_host_there_are_no_partners(
    nodes2: multinode.Nodes, tmp_path: Path
) -> None:
    # Small whole numbers are exact in these codecs; replicas decode the same records.
    asp = {"table.consistency": "asp", "table.compression": "fp16", "cluster.topology": "[[0,1]]"}
    arguments = counting(tmp_path, *settings(**asp))
    run = start_on(nodes2, tmp_path, [2, 5], *arguments)
    said = lose(nodes2, run, 0)
    assert "server 0 continues from its partner's copy" in said
    assert "the servers have no partners: there is none on another host" in said
    check_counts(run, tmp_path)


def test_with_codecs_only_residuals_of_the_lost_node_are_missing(
    nodes3: multinode.Nodes, tmp_path: Path
) -> None:
    coded = {
        "table.compression": "bf16",
        "options.small": "true",
        "tables.small.compression": "{name='topk',fraction=0.1}",
    }
    arguments = counting(tmp_path, *settings(**SUM, **coded))
    run = start_on(nodes3, tmp_path, [3, 3, 3], "--spares", "1", *arguments)
    said = lose(nodes3, run, 1)
    assert "server 1 continues from its partner's copy" in said
    found, expected = run.final(), expected_counts(tmp_path)
    whole = {name: values for name, values in found.items() if "small" not in name}
    assert audit(whole, expected) == (0, 0)
    # The residuals of a worker are gone with its node; nothing of it counts twice.
    missed, double = audit(found, expected)
    assert missed > 0
    assert double == 0
    lost = [line for line in said.splitlines() if " has lost " in line]
    assert len(lost) == 1, said
    assert "note: worker 1" in lost[0]
    assert "has lost 2 residuals, which are not on its node" in lost[0]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "deaths", ["applying", pytest.param("taking-over", marks=pytest.mark.long)]
)
def test_whoever_dies_with_partners_every_push_counts_once(
    nodes2: multinode.Nodes, tmp_path: Path, deaths: str
) -> None:
    arguments = counting(tmp_path, *settings(**{"table.consistency": "asp"}))
    run = start_on(
        nodes2, tmp_path, [3, 3], "--max-restarts", "9", *arguments, fault=DEATHS[deaths]
    )
    with run.launched:
        assert run.launched.wait() == 0, run.launched.tail(80)
    said = run.launched.stderr()
    assert run.attempts == DEATHS[deaths].count(",") + 2, said
    assert "from memory: step" in said
    assert "not continuing in memory" not in said
    assert "no partners" not in said
    assert all(nodes2.segments(n) == set() for n in range(len(nodes2)))
    check_counts(run, tmp_path)


def test_servers_on_one_host_are_refused(tmp_path: Path) -> None:
    run = start(tmp_path, *SHAPE, *job(tmp_path, "faulty_task:Faulty", "redundancy.partner=true"))
    with run.launched:
        assert run.launched.wait() == 2, run.launched.tail()
    assert run.attempts == 1
    assert "redundancy.partner = true, but every server is on" in run.launched.stderr()
