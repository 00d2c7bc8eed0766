"""push_pull in runs that are killed while updates and values are on their way."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launcher
import pytest
from launcher import results

SCRIPT = str(Path(__file__).with_name("programs") / "by_use.py")
STEPS = "12"
KILLS = ("kill:0:2", "kill:1:5", "kill:0:8")  # no worker is two clocks ahead of another


def killed(folder: Path, transport: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "mpips", "run", "-n", "5", "--progress", "none"]
    command += [SCRIPT, STEPS, transport, *KILLS]
    with launcher.Launch(command, launcher.site_environment(), 100.0, folder) as job:
        assert job.wait() == 0, job.tail()
        found: dict[str, Any] = json.loads(job.stdout().strip().splitlines()[-1])
        assert job.stderr().count("killed by SIGKILL") == len(KILLS)
        return found


@pytest.mark.parametrize("transport", ["p2p", pytest.param("rma", marks=pytest.mark.long)])
def test_a_killed_run_has_the_bits_of_one_without_kills_and_without_a_supervisor(
    launch: Callable[..., launcher.Launch], tmp_path: Path, transport: str
) -> None:
    """Under the supervisor pushes keep their order; without it they leave by urgency."""
    (calm,) = results(launch(5, [sys.executable, SCRIPT, STEPS, transport], timeout=60.0))
    found = killed(tmp_path, transport)
    assert found["digest"] == calm["digest"]
    assert found["first"] >= 8
