"""[producers] on the command line: job files of scripts, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mpips.cli import run as module
from mpips.cli.run import check_programs
from mpips.cli.submit import command as submit
from mpips.cli.train import command as train
from mpips.config.schema import load_config
from mpips.errors import ConfigError
from mpips.rundir.directory import RunFolder
from mpips.supervisor import supervise
from mpips.supervisor.launcher import Launcher

SCRIPT = "import mpips\n"


@pytest.fixture(autouse=True)
def _nothing_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "find_launcher", lambda: Launcher("/bin/mpirun", "openmpi", "5"))
    monkeypatch.setattr(supervise.Supervisor, "run", lambda self: 0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "solver").write_text("#!/bin/sh\n")
    (tmp_path / "solver").chmod(0o700)


def job(text: str = "") -> str:
    Path("job.toml").write_text(
        f'[run]\nscript = "train.py"\nscript_args = ["2"]\n[producers]\ncommand = "./solver"\n{text}'
    )
    return "job.toml"


def error_of(command: Any, *arguments: str) -> str:
    done = CliRunner().invoke(command, arguments)
    assert isinstance(done.exception, ConfigError), done.output
    return str(done.exception)


def test_a_job_file_may_name_a_script_and_its_programs() -> None:
    done = CliRunner().invoke(module.command, ["-n", "3", job("members = 2\n")])
    assert done.exit_code == 0, done.output
    (path,) = Path("runs").iterdir()
    assert path.name.startswith("job-")
    config = load_config(str(RunFolder(path).config_file), [])
    assert (config.run.script, config.run.script_args) == ("train.py", ("2",))
    assert config.producers.members == 2
    printed = (
        CliRunner().invoke(module.command, ["--dry-run", "-n", "3", job("members = 2\n")]).output
    )
    assert " train.py 2" in printed
    assert printed.endswith("member 0 of 2 of the producers:\n./solver\n")


def test_a_command_line_before_a_script_names_programs() -> None:
    words = [
        "-n",
        "3",
        "--set",
        "producers.command=./solver {member}",
        "train.py",
        "--of-the-script",
    ]
    assert CliRunner().invoke(module.command, words).exit_code == 0
    (path,) = Path("runs").iterdir()
    assert load_config(str(RunFolder(path).config_file), []).producers.member(0)[0] == [
        "./solver",
        "0",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[data]\ntrain = 'digits'\n",
            "data applies only to a task, but run.script = 'train.py' is given",
        ),
        (
            "[options]\nx = 1\n[cluster]\nseed = 1\n",
            "job.toml: cluster, options applies only to a task",
        ),
    ],
)
def test_a_job_file_of_a_script_has_no_section_of_a_task(text: str, message: str) -> None:
    assert message in error_of(module.command, "-n", "3", job(text))
    assert not Path("runs").exists()


def test_a_script_that_is_not_there_is_a_sentence() -> None:
    Path("train.py").unlink()
    assert "train.py: cannot be read" in error_of(module.command, "-n", "3", job())


def test_options_of_tasks_are_refused_with_a_script_in_a_file() -> None:
    assert "--epochs: applies only to a task" in error_of(module.command, "--epochs", "3", job())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"command": "./solve"},
            r"producers.command = './solve': there is no program './solve' in /",
        ),
        ({"command": "no-such-solver -x"}, "there is no program 'no-such-solver' in PATH"),
        ({"command": "./train.py"}, "there is no program './train.py'"),
        (
            {"command": "./solver", "folder": "missing"},
            "producers.folder = 'missing': there is no folder /",
        ),
        ({"command": "./runs"}, "there is no program './runs'"),
    ],
)
def test_a_program_that_is_not_there_is_found_before_the_start(
    options: dict[str, Any], text: str
) -> None:
    Path("runs").mkdir()
    config = load_config(None, [("run.script", "train.py"), ("producers", options)])
    with pytest.raises(ConfigError, match=text):
        check_programs(config)
    words = [f"--set=producers.{name}={value}" for name, value in options.items()]
    assert error_of(module.command, "-n", "3", *words, "train.py").startswith("producers.")
    assert not [*Path("runs").iterdir()]


@pytest.mark.parametrize(
    "options",
    [
        {"command": "sh -c x"},
        {"command": "./solver"},
        {"command": "../solver", "folder": "made-{member}"},
        {"command": "tool", "environment": {"PATH": "tools"}},
        {},
    ],
)
def test_a_program_that_is_there_is_accepted(options: dict[str, Any]) -> None:
    Path("tools").mkdir()
    Path("solver").rename("tools/tool")
    Path("solver").symlink_to("tools/tool")
    check_programs(load_config(None, [("run.script", "train.py"), ("producers", options)]))


def test_only_mpips_run_starts_programs() -> None:
    Path("task.toml").write_text(
        'task = "mlp"\n[data]\ntrain = "digits"\n[producers]\ncommand = "./solver"\n'
    )
    assert "which only `mpips run` starts" in error_of(train, "task.toml")
    for launcher in ("mpirun", "srun"):
        text = error_of(submit, "--dry-run", "--launcher", launcher, "task.toml")
        assert f"slurm.launcher = '{launcher}' does not start the programs of [producers]" in text
    done = CliRunner().invoke(submit, ["--dry-run", "--launcher", "restart", job()])
    assert done.exit_code == 0, done.output
    assert "job.toml" in done.output
    assert "starts tasks only" in error_of(submit, "--dry-run", job())
