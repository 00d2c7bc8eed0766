"""Tables under asynchronous DiLoCo in runs that are killed: every inner step is counted once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import launcher

SCRIPT = str(Path(__file__).with_name("programs") / "asynchronous_steps.py")
STEPS = 90


def supervised(folder: Path, *disturbances: str) -> tuple[dict[str, Any], str]:
    command = [sys.executable, "-m", "mpips", "run", "-n", "5", "--progress", "none", SCRIPT]
    environment = launcher.site_environment()
    with launcher.Launch([*command, str(STEPS), *disturbances], environment, 100.0, folder) as job:
        assert job.wait() == 0, job.tail()
        value: dict[str, Any] = json.loads(job.stdout().strip().splitlines()[-1])
        return value, job.stderr()


def begun(folder: Path, source: str) -> list[int]:
    (events,) = (folder / "runs").glob("*/events.jsonl")
    found = [json.loads(line) for line in events.read_text().splitlines()]
    return [e["step"] for e in found if e["event"] == "began" and e["source"] == source]


def assert_counted(found: dict[str, Any]) -> None:
    assert found["least"] == found["greatest"] == -3.0 * STEPS
    assert found["lengths"] == [6, 3]


def test_each_inner_step_counts_once_whatever_dies(tmp_path: Path) -> None:
    # In the middle of a period; then again, at an outer step; then a node with its memory.
    found, said = supervised(tmp_path, "kill:1:10", "kill:0:29", "lose:1:31")
    assert_counted(found)
    assert len(begun(tmp_path, "memory")) == 2
    assert len(begun(tmp_path, "checkpoint")) == 1
    assert said.count("not continuing in memory") == 1
