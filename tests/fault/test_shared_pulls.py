"""Pulls and rows that the workers of a node share, on two imitated nodes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import supervised
from multinode import Nodes

PROGRAM = str(Path(__file__).with_name("programs") / "passed_pull.py")
CLAIMING = str(Path(__file__).with_name("programs") / "claimed_rows.py")


@pytest.mark.multinode
def test_a_worker_pulls_by_itself_what_others_of_its_node_have_passed(nodes2: Nodes) -> None:
    done = nodes2.mpirun([4, 3], [sys.executable, PROGRAM])
    assert done.returncode == 0, done.stderr
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    steps = -15.0
    assert {role.rpartition(" ")[2]: values for role, values in found.items()} == {
        "3": [steps, 2 * steps],
        "4": [0.0, steps, 2 * steps],
    }


@pytest.mark.multinode
def test_a_worker_killed_with_rows_that_it_has_claimed_holds_up_nobody(
    nodes2: Nodes, tmp_path: Path
) -> None:
    """The rows of the next launch are in new memory, and no update counts twice."""
    hosts = f"{nodes2.hosts[0]}:3,{nodes2.hosts[1]}:2"
    arguments = ["--hosts", hosts, "-n", "5", CLAIMING, "kill", str(tmp_path)]
    with nodes2.start_on_head(supervised.command(*arguments), {}, 55.0, tmp_path) as job:
        assert job.wait() == 0, job.tail(60)
        found = json.loads(job.stdout().strip().splitlines()[-1])
        assert found["row"] == -36.0
        assert found["first"] >= 3
        assert "after 1 restart:" in job.stderr()


@pytest.mark.multinode
def test_a_worker_stopped_with_rows_that_it_has_claimed_is_named(
    nodes2: Nodes, tmp_path: Path
) -> None:
    done = nodes2.mpirun([3, 2], [sys.executable, CLAIMING, "stop", str(tmp_path)])
    assert done.returncode == 124
    # The scheduler misses its heartbeats, or another worker its part in a clock.
    assert re.search(r"mpips: error: .*worker 1 \(rank 3", done.stderr), done.stderr
