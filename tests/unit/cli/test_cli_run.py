"""`mpips run`: what a run keeps of its command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpips.cli import run as module
from mpips.errors import ConfigError
from mpips.rundir.directory import RankPlace, RunFolder, Status, replace_json
from mpips.supervisor import supervise
from mpips.supervisor.launcher import Launcher


@pytest.fixture(autouse=True)
def _nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_launcher", lambda: Launcher("mpirun", "openmpi", "5"))
    monkeypatch.setattr(supervise.Supervisor, "run", lambda self: 0)


def invoke(*arguments: str) -> str:
    """What the command prints."""
    done = CliRunner().invoke(module.command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_arguments_for_mpirun_are_kept_when_a_run_goes_on(tmp_path: Path) -> None:
    job = ["-n", "3", "--folder", str(tmp_path), "mlp", "--train", "digits"]
    invoke(*job, "--", "--map-by", "numa")
    (run,) = tmp_path.iterdir()
    again = invoke("--dry-run", str(run))
    assert " --map-by numa " in again
    assert again.index("--map-by") < again.index("train")
    assert " --map-by numa " not in invoke("--dry-run", str(run), "--", "--map-by", "node")
    # What is given once is not for good.
    assert " --map-by numa " in invoke("--dry-run", str(run))


def test_another_number_of_ranks_does_not_cost_the_memory_of_a_run(tmp_path: Path) -> None:
    invoke("-n", "3", "--folder", str(tmp_path), "mlp", "--train", "digits")
    (path,) = tmp_path.iterdir()
    run = RunFolder(path)
    ranks = tuple(RankPlace(rank=r, role="", host="h", pid=1) for r in range(3))
    status = Status(state="failed", generation=0, time_s=0.0, ranks=ranks)
    replace_json(run.status_file, status)
    token = run.info().token
    mark = Path(f"/dev/shm/mpips-kept-{os.geteuid()}-{token}.0a-s0-mark")
    assert "-n 4 " in invoke("--dry-run", str(path), "-n", "4")
    mark.write_text("0")
    try:
        with pytest.raises(ConfigError, match="in memory is of 3 ranks; go on with -n 3, or throw"):
            invoke("--dry-run", str(path), "-n", "4")
        assert "-n 3 " in invoke("--dry-run", str(path), "-n", "3")
        invoke("--discard-memory", str(path), "-n", "4")
        assert not mark.exists()
    finally:
        mark.unlink(missing_ok=True)
