"""Rows that look-aheads of one node read for each other, on two imitated nodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import supervised
from multinode import Nodes

import mpips
from mpips.mpi.roles import assign
from mpips.worker.node_rows.start import node_rows_bytes

PROGRAMS = Path(__file__).with_name("programs")

pytestmark = pytest.mark.multinode


def test_workers_of_a_node_read_fewer_rows_and_no_bit_changes(nodes2: Nodes) -> None:
    """Scheduler and server 0 are on one node, server 1 and two workers on the other one."""
    done = nodes2.mpirun([2, 3], [sys.executable, str(PROGRAMS / "node_rows.py")])
    assert done.returncode == 0, done.stderr
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    assert sorted(found) == ["worker 0", "worker 1"]
    for models in found.values():
        digests, *_ = models["bsp"]
        assert len(set(digests)) == 1
    for name in ("bsp", "ssp"):
        assert sum(models[name][2] for models in found.values()) > 0, name
    # Under SSP the bytes depend on the time.
    own, shared = (sum(models["bsp"][1][i] for models in found.values()) for i in (0, 1))
    assert shared < own
    # `mpips plan` counts this memory.
    a, table = assign([0, 0, 1, 1, 1], ["a", "b"], 2), mpips.EmbeddingTable("e", 4)
    planned = [node_rows_bytes([table], "auto", a, mib) for mib in (0, 0, 1)]
    for worker in (0, 1):
        assert found[f"worker {worker}"]["bsp"][3] == [sizes[worker] for sizes in planned]
    assert planned[2] == [2 << 20, 2 << 20]


@pytest.mark.timeout(120)
def test_a_run_that_is_killed_twice_has_the_bits_of_one_without_look_ahead(
    nodes2: Nodes, tmp_path: Path
) -> None:
    hosts = f"{nodes2.hosts[0]}:2,{nodes2.hosts[1]}:3"
    digests = []
    for name, arguments in (("plain", ["0", "kill"]), ("killed", ["4", "kill", "11", "23"])):
        folder = tmp_path / name
        folder.mkdir()
        command = supervised.command(
            "--hosts", hosts, "-n", "5", str(PROGRAMS / "looking.py"), "auto", *arguments
        )
        with nodes2.start_on_head(command, {}, 55.0, folder) as job:
            assert job.wait() == 0, job.tail(60)
            digests.append(json.loads(job.stdout().strip().splitlines()[-1])["digest"])
            said = job.stderr()
    assert "after 2 restarts:" in said
    assert digests[0] == digests[1]
