"""Tables under DiLoCo in runs that are killed: the bits of an undisturbed run, on servers and workers."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import launcher

SCRIPT = str(Path(__file__).with_name("programs") / "local_sgd.py")
STEPS = "90"


def supervised(folder: Path, *disturbances: str) -> tuple[dict[str, Any], str]:
    folder.mkdir()
    command = [sys.executable, "-m", "mpips", "run", "-n", "5", "--progress", "none", SCRIPT]
    environment = launcher.site_environment()
    with launcher.Launch([*command, STEPS, *disturbances], environment, 100.0, folder) as job:
        assert job.wait() == 0, job.tail()
        value: dict[str, Any] = json.loads(job.stdout().strip().splitlines()[-1])
        return value, job.stderr()


def test_a_run_that_is_killed_ends_with_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    calm, said = supervised(tmp_path / "calm")
    assert "not continuing in memory" not in said
    # The second death is one step before an outer step, in the delay of the one before.
    killed, said = supervised(tmp_path / "killed", "kill:1:10", "kill:0:28", "lose:1:31")
    assert killed["digest"] == calm["digest"]
    assert killed["own"] == calm["own"]
    assert len(set(calm["own"])) == 2
    # Outer steps are every 3 clocks; the other worker may be one of them behind the one that ends. A worker's
    # node that is lost costs the steps since the checkpoint.
    (events,) = (tmp_path / "killed" / "runs").glob("*/events.jsonl")
    begun = [json.loads(line) for line in events.read_text().splitlines()]
    memory = [e["step"] for e in begun if e["event"] == "began" and e["source"] == "memory"]
    assert len(memory) == 2
    assert memory[0] in (6, 9)
    assert memory[1] in (24, 27)
    assert said.count("not continuing in memory") == 1
    assert re.search(r"not continuing in memory: .*-i1", said)
    (step,) = (e["step"] for e in begun if e["event"] == "began" and e["source"] == "checkpoint")
    # A checkpoint is of the first outer step from a multiple of ten clocks on.
    assert step in (12, 21, 30, 42, 51, 60, 72, 81)
    assert killed["first"] == step
    (run,) = (tmp_path / "killed" / "runs").iterdir()
    assert json.loads((run / "status.json").read_text())["progress"]["step"] == int(STEPS)
    assert [p.name for p in (run / "checkpoints").glob(".worker*")] == []
