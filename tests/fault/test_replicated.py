"""Replicated tables on several nodes, and in runs that are killed: the bits of tables on servers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import launcher
import pytest
from multinode import Nodes

SCRIPT = str(Path(__file__).with_name("programs") / "replicated.py")
CLOCKS = "43"


def value(stdout: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stdout.strip().splitlines()[-1])
    return found


def supervised(folder: Path, *disturbances: str) -> tuple[dict[str, Any], str]:
    folder.mkdir()
    command = [sys.executable, "-m", "mpips", "run", "-n", "5", "--max-restarts", "6"]
    command += ["--progress", "none", SCRIPT]
    environment = launcher.site_environment()
    with launcher.Launch([*command, CLOCKS, *disturbances], environment, 100.0, folder) as job:
        assert job.wait() == 0, job.tail()
        return value(job.stdout()), job.stderr()


def test_a_run_that_is_killed_ends_with_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    calm, said = supervised(tmp_path / "calm")
    assert calm["differ"] == 0
    assert "not continuing in memory" not in said
    killed, said = supervised(
        tmp_path / "killed", "kill:1:8", "kill:0:17", "lose:2:29", "kill:1:37"
    )
    assert killed["digest"] == calm["digest"]
    assert killed["differ"] == 0
    # The supervisor may not have seen an attempt that was short, but each has noted its begin.
    (events,) = (tmp_path / "killed" / "runs").glob("*/events.jsonl")
    begun = [json.loads(line) for line in events.read_text().splitlines()]
    assert [e.get("source") for e in begun if e["event"] == "began"].count("memory") == 3
    note = "not continuing in memory: the replicated tables are gone: no node has memory of them"
    assert said.count(note) == 1
    # The first attempt measures and decides; all others use that decision.
    assert said.count("note: placement = 'auto': 1 of 1 tables replicated: a step is") == 1
    assert said.count("as before in this run: placement = 'auto': 1 of 1 tables replicated") == 4
    assert killed["paths"] == {
        "served": ["direct"],
        "copied": ["replicated"],
        "either": ["replicated"],
    }
    assert 36 <= killed["first"] <= 38


@pytest.mark.multinode
def test_nodes_compute_the_same_bits_and_compare_their_copies(
    nodes3: Nodes, tmp_path: Path
) -> None:
    # Scheduler, servers and workers on all nodes, two workers on one of them.
    done = nodes3.mpirun(
        [3, 2, 3], [sys.executable, SCRIPT, CLOCKS], {"SERVERS": "2"}, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    found = value(done.stdout)
    assert found["differ"] == 0
    assert "worker 4" in done.stderr
    # Two of three nodes have a server; each node would receive the updates of all other nodes.
    assert found["paths"]["either"] != ["replicated"]
    assert "placement = 'auto': 0 of 1 tables replicated: a step is estimated at" in done.stderr
    assert (tmp_path / "saved" / "latest").exists()
