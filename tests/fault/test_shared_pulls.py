"""Pulls that the workers of a node share, on two imitated nodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from multinode import Nodes

PROGRAM = str(Path(__file__).with_name("programs") / "passed_pull.py")


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
