"""Workers that pull rows and sum over all workers before they push: runs that are killed behind a push."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import launcher

SCRIPT = str(Path(__file__).with_name("programs") / "gathering.py")
STEPS, DEATHS, WORKERS = 12, ("4", "7"), 3


def test_pulls_before_a_sum_do_not_wait_behind_pushes_from_before_the_restart(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "mpips", "run", "-n", "6", "--progress", "none", SCRIPT]
    environment = launcher.site_environment()
    with launcher.Launch([*command, str(STEPS), *DEATHS], environment, 100.0, tmp_path) as job:
        assert job.wait() == 0, job.tail()
        found = json.loads(job.stdout().strip().splitlines()[-1])
        assert job.stderr().count("failed after") == len(DEATHS), job.tail()
    assert found == {"first": int(DEATHS[-1]), "values": [-float(STEPS * WORKERS)]}
