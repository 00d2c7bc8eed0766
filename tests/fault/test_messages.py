"""Workers that exchange arrays, and one of which is killed: the bits of one undisturbed process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import launcher
import pytest
from multinode import Nodes

PROGRAM = str(Path(__file__).with_name("programs") / "pipelined.py")
STEPS = "45"


def digest_of(job: launcher.Launch) -> str:
    assert job.wait() == 0, job.tail(60)
    (line,) = (text for text in job.stdout().splitlines() if text.startswith("digest "))
    return line


def test_a_pipeline_whose_stage_is_killed_ends_with_the_bits_of_one_process(tmp_path: Path) -> None:
    environment = launcher.site_environment()
    with launcher.Launch([sys.executable, PROGRAM, STEPS], environment, 60.0, tmp_path) as alone:
        expected = digest_of(alone)
    command = [sys.executable, "-m", "mpips", "run", "-n", "4", "--progress", "none", PROGRAM]
    with launcher.Launch([*command, STEPS, "1", "25"], environment, 100.0, tmp_path) as job:
        assert digest_of(job) == expected
        said = job.stderr() + job.stdout()
    # Worker 0 may be a clock ahead in memory, and would not send again what the other one lacks.
    assert "not continuing in memory: attempt 0 had sent arrays between its workers" in said
    (events,) = (tmp_path / "runs").glob("*/events.jsonl")
    begun = [json.loads(line) for line in events.read_text().splitlines()]
    starts = [(e["source"], e.get("step")) for e in begun if e["event"] == "began"]
    assert len(starts) == 2
    assert starts[1] in {("checkpoint", 10), ("checkpoint", 20)}


@pytest.mark.long
def test_a_pipeline_over_two_nodes_has_the_bits_of_one_process(
    nodes2: Nodes, tmp_path: Path
) -> None:
    environment = launcher.site_environment()
    with launcher.Launch([sys.executable, PROGRAM, STEPS], environment, 60.0, tmp_path) as alone:
        expected = digest_of(alone)
    # Scheduler, server and stage 0; stage 1.
    with nodes2.start([3, 1], [sys.executable, PROGRAM, STEPS], timeout=90) as job:
        assert digest_of(job) == expected


@pytest.mark.long
def test_an_odd_number_of_workers_is_refused_by_the_example(tmp_path: Path) -> None:
    with launcher.launch(5, [sys.executable, PROGRAM, STEPS], timeout=60.0) as job:
        assert job.wait() == 2, job.tail()
        assert "3 workers: the tables have stages 0 to 1, so the number of workers" in job.stderr()
