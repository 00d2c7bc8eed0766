"""Groups of the workers of each node, under `mpips run` on imitated nodes."""

from __future__ import annotations

from pathlib import Path

import multinode
import pytest
import supervised
from supervised import Run, counting, job, start

pytestmark = pytest.mark.multinode

SHAPE = ["-n", "7", "--servers", "2"]  # a server and two workers on each of two nodes
SETTINGS = {
    "options.small": "true",
    "options.pulls": "true",
    "options.copies": "20",
    "options.pause_s": "0.01",
    "tables.fitted.compression": "{name='shared_int8',block=16}",
    "tables.fitted.pull_compression": "bf16",
    # Groups sum the counts under ASP and SSP, and the fitted table under BSP. Counts are exact in any order.
    "table.consistency": "asp",
    "tables.seen.consistency": "ssp",
    "tables.rows.consistency": "bsp",
    "tables.rows.reduce": "sum",
    "tables.factors.consistency": "bsp",
    "tables.factors.reduce": "sum",
    "tables.fitted.consistency": "bsp",
    "tables.fitted.reduce": "sum",
}
# A worker dies in the sum of a clock, another one after the sum, and one between the ticks of a clock; then a
# server dies while it applies a push, and a worker before its ticks are sent. Then one dies with part of its
# updates and rows in the memory of its group, and leaders die while they push the sums.
FAULTS = (
    "summed:40,summed-clock:9,ticking:13,unit-changing:30,ticked:15,contributed:31,payload:97,"
    "stamped:121"
)


def counted(folder: Path, topology: str) -> list[str]:
    texts = [f"{name}={value}" for name, value in SETTINGS.items()]
    return job(folder, "mpips.testing.counted:Counted", *texts, f"cluster.topology={topology}")


def run_on(nodes: multinode.Nodes, folder: Path, topology: str, fault: str) -> Run:
    """`mpips run` over both nodes to its end."""
    hosts = ",".join(f"{host}:{n}" for host, n in zip(nodes.hosts, (4, 3), strict=True))
    arguments = counted(folder, topology)
    command = supervised.command("--hosts", hosts, *SHAPE, "--max-restarts", "9", *arguments)
    env = {**supervised.ENVIRONMENT, "MPIPS_FAULT": fault}
    run = Run(folder, nodes.start_on_head(command, env, 500.0, folder))
    with run.launched:
        assert run.launched.wait() == 0, run.launched.tail(80)
    return run


# Groups of the first run, and the same groups in other words.
NODES = ("node", "[[0,1],[2,3]]")
RACK = ("[[[0,1],[2,3]]]", "[[[3,2],[1,0]]]")


# Eight restarts over two nodes take 14 s each, and half as long again on a busy machine.
@pytest.mark.timeout(1100)
@pytest.mark.parametrize(
    "groups",
    [pytest.param(NODES, marks=pytest.mark.long, id="nodes"), pytest.param(RACK, id="rack")],
)
def test_kills_change_no_bit_of_sums_and_rows_of_nodes(
    nodes2: multinode.Nodes, tmp_path: Path, groups: tuple[str, str]
) -> None:
    run = run_on(nodes2, tmp_path, groups[0], FAULTS)
    said = run.launched.stderr()
    assert run.attempts == FAULTS.count(",") + 2, said
    assert said.count("continuing in memory at step") == FAULTS.count(",") + 1, said
    (tmp_path / "calm").mkdir()
    calm = run_on(nodes2, tmp_path / "calm", groups[1], "")
    assert run.final() == calm.final()
    supervised.check_counts(run, tmp_path)


def test_a_restart_from_a_checkpoint_counts_the_updates_of_a_group_once(tmp_path: Path) -> None:
    """No table is under BSP or SSP. Workers' positions in a checkpoint must be those of the sums."""
    arguments = counting(
        tmp_path,
        "table.consistency=asp",
        "options.pause_s=0.01",
        "checkpoint.every_steps=9",
        "redundancy.warm=false",
        "cluster.topology=[[2,[0,1]]]",
    )
    # Two passages a clock. The second fault comes soon, for few clocks are left behind a late checkpoint.
    run = start(tmp_path, "-n", "6", "--servers", "2", *arguments, fault="ticking:130,ticking:31")
    with run.launched:
        assert run.launched.wait() == 0, run.launched.tail(80)
    said = run.launched.stderr()
    assert run.attempts == 3, said
    # On a busy machine the first launch may end before a checkpoint is complete.
    assert "from checkpoint step-" in said, said
    supervised.check_counts(run, tmp_path)
