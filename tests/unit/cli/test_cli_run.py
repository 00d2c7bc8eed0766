"""`mpips run`: which parts of its command line a run directory records."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpips.cli import run as module
from mpips.config.schema import RedundancyConfig, load_config
from mpips.errors import ConfigError
from mpips.rundir.directory import RunFolder, replace_json
from mpips.rundir.files import RankPlace, Status
from mpips.supervisor import supervise
from mpips.supervisor.launcher import Launcher


@pytest.fixture(autouse=True)
def _nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_launcher", lambda: Launcher("mpirun", "openmpi", "5"))
    monkeypatch.setattr(supervise.Supervisor, "run", lambda self: 0)


def invoke(*arguments: str) -> str:
    """Call `mpips run`, which must succeed, and return its output."""
    done = CliRunner().invoke(module.command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_continued_run_uses_its_first_arguments_for_mpirun(tmp_path: Path) -> None:
    job = ["-n", "3", "--folder", str(tmp_path), "mlp", "--train", "digits"]
    invoke(*job, "--", "--map-by", "numa")
    (run,) = tmp_path.iterdir()
    again = invoke("--dry-run", str(run))
    assert " --map-by numa " in again
    assert again.index("--map-by") < again.index("train")
    assert " --map-by numa " not in invoke("--dry-run", str(run), "--", "--map-by", "node")
    # Arguments of a later call replace those of the first only for that call.
    assert " --map-by numa " in invoke("--dry-run", str(run))


@pytest.mark.parametrize("extra", ["foo=3", "runs/other", "2024.toml"])
def test_a_second_job_is_no_argument_of_mpirun(extra: str, tmp_path: Path) -> None:
    job = ["-n", "3", "--folder", str(tmp_path), "mlp", "--train", "digits"]
    for arguments in ([*job, extra], [*job, "--", extra]):
        done = CliRunner().invoke(module.command, arguments)
        assert isinstance(done.exception, ConfigError)
        assert f"{extra}: is one argument too many" in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_the_beginning_of_a_run_s_name_is_answered_with_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    invoke("-n", "3", "--name", "first", "mlp", "--train", "digits")
    (run,) = (tmp_path / "runs").iterdir()
    done = CliRunner().invoke(module.command, ["first"])
    assert f"give its directory: runs/{run.name}" in str(done.exception)


def test_the_command_of_mpirun_is_printed_only_on_request(tmp_path: Path) -> None:
    job = ["-n", "3", "--folder", str(tmp_path), "mlp", "--train", "digits"]
    quiet = invoke(*job)
    assert quiet.startswith("mpips run: ")
    assert "mpirun -n 3" not in quiet
    assert "mpirun -n 3" in invoke(*job, "-v")


def test_a_run_that_stored_options_that_were_removed_since_can_be_continued(tmp_path: Path) -> None:
    invoke("-n", "3", "--folder", str(tmp_path), "mlp", "--train", "digits")
    (path,) = tmp_path.iterdir()
    stored = json.loads((path / "config.json").read_text())
    before = {
        "redundancy": {**stored["redundancy"], "partner_mode": "sync", "partner_lag_records": 9}
    }
    replace_json(path / "config.json", {**stored, **before})
    text = (path / "config.json").read_text()
    assert f"train {path / 'config.json'}" in invoke("--dry-run", str(path))
    # So does each rank of the next attempt, also one of a supervisor that began before an upgrade.
    assert load_config(str(RunFolder(path).config_file), []).redundancy == RedundancyConfig()
    assert (path / "config.json").read_text() == text, "a dry run writes nothing"


@pytest.mark.parametrize("end", ["failed", "starting again", "cut off", "an earlier version"])
def test_another_number_of_ranks_does_not_cost_the_memory_of_a_run(
    tmp_path: Path, end: str
) -> None:
    invoke("-n", "3", "--folder", str(tmp_path), "mlp", "--train", "digits")
    (path,) = tmp_path.iterdir()
    run = RunFolder(path)
    ranks = tuple(RankPlace(rank=r, role="", host="h", pid=1) for r in range(3))
    status = Status(state="failed", generation=0, time_s=0.0, ranks=ranks)
    if end == "an earlier version":
        replace_json(run.status_file, status)
    else:
        run.write_status(status)
    if end == "starting again":
        # The supervisor was killed while the next attempt started.
        run.write_status(Status(state="starting", generation=1, time_s=0.0))
    elif end == "cut off":
        # A host without power leaves an empty file behind a rename.
        run.status_file.write_bytes(b"")
    token = run.info().token
    mark = Path(f"/dev/shm/mpips-kept-{os.geteuid()}-{token}.0a-s0-mark")
    assert "-n 4 " in invoke("--dry-run", str(path), "-n", "4")
    mark.write_text("0")
    try:
        with pytest.raises(
            ConfigError, match="left updates of 3 ranks in shared memory; continue with -n 3"
        ):
            invoke("--dry-run", str(path), "-n", "4")
        assert "-n 3 " in invoke("--dry-run", str(path), "-n", "3")
        # Memory of another format stays as it is until a person removes it.
        (path / "memory.json").write_text('{"format": 999}')
        with pytest.raises(ConfigError, match=r"earlier mpips .* in format 999, and this is mpips"):
            invoke("--dry-run", str(path), "-n", "3")
        assert mark.exists()
        invoke("--discard-memory", str(path), "-n", "4")
        assert not mark.exists()
    finally:
        mark.unlink(missing_ok=True)
