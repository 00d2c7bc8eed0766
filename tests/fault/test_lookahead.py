"""After warm restarts a look-ahead has empty caches, and its run has the bits of an undisturbed one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import launcher
import pytest

SCRIPT = str(Path(__file__).with_name("programs") / "looking.py")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("transport", ["auto", pytest.param("p2p", marks=pytest.mark.long)])
def test_a_run_that_is_killed_twice_has_the_bits_of_one_without_look_ahead(
    tmp_path: Path, transport: str
) -> None:
    found = []
    for name, arguments in (("plain", ["0", "kill"]), ("killed", ["4", "kill", "11", "23"])):
        folder = tmp_path / name
        folder.mkdir()
        command = [sys.executable, "-m", "mpips", "run", "-n", "5", SCRIPT, transport, *arguments]
        with launcher.Launch(command, launcher.site_environment(), 80.0, folder) as job:
            assert job.wait() == 0, job.tail()
            found.append(json.loads(job.stdout().strip().splitlines()[-1]))
            said = job.stderr()
    assert said.count("killed by SIGKILL") >= 2
    assert "not continuing in memory" not in said
    assert found[1]["first"] > 11
    assert found[0]["digest"] == found[1]["digest"]


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("how", "code", "text"),
    [
        ("raise", 1, "the program has raised this"),
        ("stuck", 124, "mpips: error: "),
    ],
)
def test_a_job_ends_while_the_progress_thread_works(
    tmp_path: Path, how: str, code: int, text: str
) -> None:
    command = ["mpirun", "-n", "5", *launcher.mpirun_flags(5), sys.executable, SCRIPT, "p2p", "4"]
    with launcher.Launch([*command, how, "7"], launcher.site_environment(), 60.0, tmp_path) as job:
        assert job.wait() == code, job.tail()
        assert text in job.stderr()
