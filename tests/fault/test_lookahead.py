"""After warm restarts a look-ahead has empty caches, and its run has the bits of an undisturbed one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import launcher
import pytest

SCRIPT = str(Path(__file__).with_name("programs") / "looking.py")


@pytest.mark.timeout(180)
def test_a_run_that_is_killed_twice_has_the_bits_of_one_without_look_ahead(tmp_path: Path) -> None:
    found = []
    for name, arguments in (("plain", ["0"]), ("killed", ["4", "11", "23"])):
        folder = tmp_path / name
        folder.mkdir()
        command = [sys.executable, "-m", "mpips", "run", "-n", "5", SCRIPT, *arguments]
        with launcher.Launch(command, launcher.site_environment(), 80.0, folder) as job:
            assert job.wait() == 0, job.tail()
            found.append(json.loads(job.stdout().strip().splitlines()[-1]))
            said = job.stderr()
    assert said.count("killed by SIGKILL") >= 2
    assert "not continuing in memory" not in said
    assert found[1]["first"] > 11
    assert found[0]["digest"] == found[1]["digest"]
