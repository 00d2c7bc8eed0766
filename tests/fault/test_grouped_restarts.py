"""Groups of workers in runs that are killed."""

from __future__ import annotations

import sys
from pathlib import Path

import launcher
import pytest

PROGRAM = str(Path(__file__).with_name("programs") / "finished_early.py")


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "groups",
    [
        pytest.param("[[0,1,2]]", marks=pytest.mark.long),
        "[[[0,1],2]]",
        pytest.param("[[0,[2,1]]]", marks=pytest.mark.long),
    ],
)
def test_a_worker_that_had_finished_holds_up_no_worker_of_its_group_at_the_end(
    tmp_path: Path, groups: str
) -> None:
    run = [sys.executable, "-m", "mpips", "run", "-n", "5", "--progress", "none"]
    command = [*run, PROGRAM, groups]
    with launcher.Launch(command, launcher.site_environment(), 60.0, tmp_path) as job:
        assert job.wait() == 0, job.tail()
        assert job.stdout().split() == [str(-8.0 - 3 * 2 - 8 * 3)]
        assert job.stderr().count("killed by SIGKILL") == 1
