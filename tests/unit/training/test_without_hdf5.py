"""A job that would write a checkpoint is refused before anything is started if h5py is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import mpips
from mpips.cli import plan, run, submit, train
from mpips.errors import CapabilityError
from mpips.rundir.directory import RunFolder, replace_json
from mpips.rundir.files import Finished
from mpips.supervisor import supervise
from mpips.supervisor.launcher import Launcher
from mpips.supervisor.plan import make_run

MESSAGE = r"writing checkpoints needs h5py \(pip install h5py\)"


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Make `import h5py` fail; return the names of what was started, of which nothing runs."""
    found: list[str] = []
    monkeypatch.setitem(sys.modules, "h5py", None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "find_launcher", lambda: Launcher("mpirun", "openmpi", "5"))
    monkeypatch.setattr(supervise.Supervisor, "run", lambda self: found.append("attempt") or 0)
    monkeypatch.setattr(submit, "submit", lambda *_: found.append("batch job") or 1)
    (tmp_path / "a.svm").write_text("1 1:1 2:1\n0 2:1 3:1\n" * 8)
    (tmp_path / "script.py").write_text("import mpips\nmpips.run(print, [])\n")
    (tmp_path / "job.toml").write_text(
        'task = "logistic"\n[data]\ntrain = "a.svm"\n[slurm]\nnodes = 1\n'
    )
    return found


def invoke(command: click.Command, *arguments: str) -> int:
    return CliRunner().invoke(command, arguments, catch_exceptions=False).exit_code


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (train.command, ["job.toml", "--save", "saved", "--quiet"]),
        (train.command, ["job.toml", "--save", "saved", "--dry-run"]),
        (run.command, ["-n", "3", "job.toml"]),
        (run.command, ["-n", "3", "--dry-run", "job.toml"]),
        (run.command, ["-n", "3", "script.py"]),
        (submit.command, ["job.toml"]),
        (submit.command, ["job.toml", "--launcher", "restart", "--dry-run"]),
        (plan.command, ["job.toml", "-n", "3", "--set", "checkpoint.folder=saved"]),
    ],
)
def test_a_job_that_saves_is_refused_before_it_starts(
    command: click.Command, arguments: list[str], started: list[str], tmp_path: Path
) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CapabilityError, match=MESSAGE):
        invoke(command, *arguments)
    assert started == []
    assert sorted(tmp_path.iterdir()) == before  # no run directory, no folder for checkpoints


def test_a_run_is_refused_only_while_it_has_something_to_do(
    started: list[str], tmp_path: Path
) -> None:
    folder = make_run(mpips.config.schema.load_config("job.toml", []), tmp_path / "runs", "job")
    with pytest.raises(CapabilityError, match=MESSAGE):
        invoke(run.command, str(folder.path))
    assert invoke(run.command, "--discard-memory", str(folder.path)) == 0
    replace_json(RunFolder(folder.path).finished_file, Finished(generation=0, step=1, time_s=1.0))
    assert invoke(run.command, str(folder.path)) == 0
    assert started == ["attempt"]


def test_a_script_that_saves_is_refused_before_its_main(tmp_path: Path) -> None:
    called: list[str] = []
    tables = [mpips.DenseTable("w", (4,))]
    with pytest.raises(CapabilityError, match=MESSAGE):
        mpips.run(lambda worker: called.append("main"), tables, save=tmp_path / "saved")
    assert called == []
    mpips.run(lambda worker: called.append("main"), tables)
    assert called == ["main"]


def test_a_job_that_saves_nothing_needs_no_h5py() -> None:
    assert invoke(train.command, "job.toml", "--quiet", "--json", "--epochs", "1") == 0
    assert invoke(plan.command, "job.toml", "-n", "3", "--steps", "1") == 0
