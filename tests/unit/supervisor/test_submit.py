"""Batch scripts of `mpips submit`, and its messages when Slurm refuses; its commands are imitated."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import mpips
from mpips.cli import cli
from mpips.cli.submit import command
from mpips.config.conversion import convert
from mpips.config.launching import SlurmConfig
from mpips.config.schema import load_config
from mpips.errors import CapabilityError, ConfigError
from mpips.supervisor.submit import (
    TEMPLATES,
    directives,
    environment_of,
    examples,
    find_root,
    make_script,
)
from mpips.training.preflight import preflight

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = sorted((ROOT / "jobs/configs").glob("*.toml"))


def run_submit(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Call `mpips submit` in `folder`."""
    return subprocess.run(
        [sys.executable, "-m", "mpips", "submit", *arguments],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def add_command(folder: Path, name: str, script: str) -> str:
    """Write a command into a folder; return a PATH with this folder."""
    (folder / "bin").mkdir(exist_ok=True)
    path = folder / "bin" / name
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    return f"{path.parent}:{os.environ['PATH']}"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job that asks for two nodes."""
    path = tmp_path / "my job.toml"
    text = (ROOT / "jobs/configs/digits.toml").read_text()
    path.write_text(
        text + '\n[slurm]\nnodes = 2\nranks_per_node = 3\nsbatch = ["--partition=cpu"]\n'
    )
    return path


@pytest.mark.parametrize("text", ["UNLIMITED", "unlimited", "INFINITE", "-1", "0", "00:00:00"])
def test_a_job_without_a_time_limit_is_accepted(text: str) -> None:
    assert SlurmConfig(time=text).check().time == text


@pytest.mark.parametrize("template", TEMPLATES.values())
def test_a_script_of_jobs_becomes_that_of_one_job(template: str, tmp_path: Path) -> None:
    text = (ROOT / "jobs" / template).read_text()
    options = SlurmConfig(nodes=3, ranks_per_node=2, time="7", sbatch=("--exclusive", "--mem=1G"))
    script = make_script(
        text,
        directives(options, "a b", tmp_path, 1),
        {"MPIPS_FOLDER": "it's"},
        ["job.toml", "--set", "x=$HOME"],
        "mpips submit",
    )
    asked = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --nodes=4" in asked, "three to work on, one to spare"
    assert "#SBATCH --job-name='a b'" in asked
    assert "#SBATCH --time=7" in asked
    assert "#SBATCH --exclusive" in asked
    assert "#SBATCH --mem=1G" in asked
    assert "#SBATCH --requeue" in asked, "what nobody asked to change stays"
    names = [line.partition("=")[0] for line in asked]
    assert len(set(names)) == len(names)
    # Slurm reads directives only up to the first command.
    assert script.rindex("#SBATCH") < script.index("set -euo pipefail")
    # The shell receives the arguments unchanged, before any command of the script.
    prologue = script.partition("set -euo pipefail")[2].partition("root=")[0]
    show = f'{prologue}\nprintf "%s|" "$MPIPS_FOLDER" "$@"'
    done = subprocess.run(["bash", "-c", show], capture_output=True, text=True, check=True)
    assert done.stdout == "it's|job.toml|--set|x=$HOME|"
    assert script.endswith(text[text.index("root=") :])


def test_what_slurm_would_not_read_is_refused(tmp_path: Path) -> None:
    text = (ROOT / "jobs/train.sbatch").read_text()
    for word in ("-N4", "mem=4", "--mem=4\n#SBATCH --uid=0"):
        with pytest.raises(ConfigError, match="--name=value"):
            make_script(text, [(word.partition("=")[0], word.partition("=")[2])], {}, [], "")


@pytest.mark.parametrize(
    ("time", "warn_s", "fits"),
    [
        ("3", 180, False),
        ("4", 180, True),
        ("3:01", 180, True),
        ("0:03:01", 180, True),
        ("00:02:59", 180, False),
        ("0-18", 64799, True),
        ("0-18", 64800, False),
        ("0-1:00", 3599, True),
        ("0-1:00", 3600, False),
    ],
)
def test_a_warning_comes_before_the_limit(time: str, warn_s: int, fits: bool) -> None:
    given = () if warn_s == 180 else (f"--signal=B:USR1@{warn_s}",)
    options = SlurmConfig(time=time, sbatch=given)
    if fits:
        assert options.check() is options
        return
    with pytest.raises(ConfigError, match="the warning would come before the job has begun"):
        options.check()


def test_flags_of_training_are_those_of_train_and_go_into_the_script(
    job: Path, tmp_path: Path
) -> None:
    flags = ["--epochs=3", "--lr=0.5", "--batch-size=16", "--set", "train.epochs=4"]
    done = run_submit(tmp_path, job.name, "--dry-run", *flags)
    assert done.returncode == 0, done.stderr
    given = "train.epochs=3 table.optimizer.lr=0.5 train.batch_size=16 train.epochs=4"
    words = " ".join(f"--set {word}" for word in given.split())
    assert f"{words}\n" in done.stdout
    refused = run_submit(tmp_path, job.name, "--dry-run", "--epochs=-1")
    assert refused.returncode == 2
    assert "epochs = -1: must be 0 or more" in refused.stderr


def test_a_script_gets_its_arguments_and_all_nodes(tmp_path: Path) -> None:
    script = tmp_path / "my script.py"
    script.write_text("import mpips\n")
    done = run_submit(
        tmp_path,
        *("--dry-run", "--nodes=2", "--set", "slurm.ranks_per_node=3"),
        *("--set", "run.max_restarts=1", script.name, "--dry-run", "--nodes=7"),
    )
    assert done.returncode == 0, done.stderr
    assert f"set -- --set run.max_restarts=1 '{script}' --dry-run --nodes=7\n" in done.stdout
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=3\n" in done.stdout
    assert "export MPIPS_SPARES=0\n" in done.stdout
    assert "python -m mpips run" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--epochs=3"], "--epochs: applies only to a task"),
        (["--set", "train.lr=1"], "--set train.lr=1: applies only to a task"),
        (["--launcher=srun"], "slurm.launcher = 'srun' starts tasks only: must be 'restart'"),
    ],
)
def test_options_that_only_tasks_have_are_refused_for_a_script(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text("import mpips\n")
    done = run_submit(tmp_path, "--dry-run", *arguments, "script.py")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("spares", [0, 2])
def test_a_job_of_the_restart_launcher_has_the_spare_nodes_that_were_asked_for(
    spares: int, job: Path, tmp_path: Path
) -> None:
    done = run_submit(tmp_path, job.name, "--launcher=restart", f"--spares={spares}", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"export MPIPS_SPARES={spares}\n" in done.stdout
    assert f"#SBATCH --nodes={2 + spares}\n" in done.stdout


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"launcher": "ssh"}, "must be one of mpirun, restart, srun"),
        ({"nodes": 0}, "1 or more"),
        ({"time": "an hour"}, "days-hours or UNLIMITED"),
        ({"time": "1:2:3:4"}, "days-hours or UNLIMITED"),
        ({"spares": -1}, "0 to 65535"),
    ],
)
def test_impossible_options_are_a_sentence(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        convert(values, SlurmConfig, "slurm").check()


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ("partition", "--partition=NAME"),
        ("account", "--account=NAME"),
        ("qos", "--qos=NAME"),
        ("cpus_per_rank", "--cpus-per-task=N"),
        ("warn_s", "--signal=B:USR1@SECONDS"),
    ],
)
def test_a_removed_option_names_what_to_write_now(key: str, word: str, tmp_path: Path) -> None:
    job = ['task = "mlp"', 'data.train = "digits"', f"slurm.{key} = 1"]
    (tmp_path / "job.toml").write_text("\n".join(job))
    with pytest.raises(ConfigError) as caught:
        load_config(str(tmp_path / "job.toml"), [])
    assert str(caught.value) == f'slurm.{key} was removed: write slurm.sbatch = ["{word}"]'
    # A run that began with it can continue.
    (tmp_path / "config.json").write_text(
        json.dumps({"task": "mlp", "data": {"train": ["digits"]}, "slurm": {key: 1, "nodes": 2}})
    )
    assert load_config(str(tmp_path / "config.json"), []).slurm == SlurmConfig(nodes=2)


@pytest.mark.parametrize(
    "flag", ["-p", "-A", "--partition", "--account", "--qos", "--cpus-per-rank"]
)
def test_a_removed_flag_names_what_to_write_now(flag: str, job: Path) -> None:
    done = CliRunner().invoke(command, [str(job), flag, "x", "--dry-run"])
    assert done.exit_code == 2
    names = {"-p": "--partition", "-A": "--account", "--cpus-per-rank": "--cpus-per-task"}
    assert f"write {names.get(flag, flag)}=x after `--`" in " ".join(done.output.split())
    options = CliRunner().invoke(command, ["--help"]).output.partition("Options:")[2]
    assert not re.search(rf" {flag}\b", options)


def test_dry_run_prints_the_script_and_leaves_nothing(job: Path, tmp_path: Path) -> None:
    done = run_submit(tmp_path, job.name, "--time=90", "--dry-run", "--", "--mem=2G")
    assert done.returncode == 0, done.stderr
    for line in ("--nodes=2", "--ntasks-per-node=3", "--partition=cpu", "--time=90", "--mem=2G"):
        assert f"#SBATCH {line}\n" in done.stdout
    assert done.stdout.startswith("#!/usr/bin/env bash\n# Written by: mpips submit 'my job.toml'")
    assert [path.name for path in tmp_path.iterdir()] == [job.name]


@pytest.mark.parametrize(
    ("parameters", "directive"),
    [
        ("bf_interval=2,enable_expedited_requeue", "#SBATCH --requeue=expedite"),
        ("enable_expedited_requeue_of_others,defer", "#SBATCH --requeue"),
        ("(null)", "#SBATCH --requeue"),
    ],
)
def test_a_job_that_loses_a_node_goes_first_where_slurm_has_that(
    job: Path, tmp_path: Path, parameters: str, directive: str
) -> None:
    config = f"SchedulerParameters     = {parameters}\nSchedulerType           = sched/backfill"
    path = add_command(tmp_path, "scontrol", f"[[ $* == 'show config' ]] && echo '{config}'")
    done = run_submit(tmp_path, str(job), "--dry-run", PATH=path)
    assert done.returncode == 0, done.stderr
    found = [line for line in done.stdout.splitlines() if line.startswith("#SBATCH --requeue")]
    assert found == [directive]


def test_a_submitted_job_keeps_its_own_copy(job: Path, tmp_path: Path) -> None:
    path = add_command(tmp_path, "sbatch", f'echo "$*" >>{tmp_path}/calls; echo "42;cluster"')
    done = run_submit(tmp_path, job.name, "--set", "train.epochs=2", PATH=path)
    assert done.returncode == 0, done.stderr
    assert "job 42 (my job) is submitted: 2 nodes with 3 ranks each" in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    assert "scancel 42" in done.stdout
    assert str(folder) in done.stdout
    assert (folder / "job.toml").read_text() == job.read_text()
    script = (folder / "job.sbatch").read_text()
    arguments = shlex.join([f"{folder}/job.toml", "--set", "train.epochs=2"])
    assert f"set -- {arguments}\n" in script
    assert f"export MPIPS_FOLDER={shlex.quote(str(folder))}\n" in script
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == [f"--test-only {folder}/job.sbatch", f"--parsable {folder}/job.sbatch"]


def test_a_refusal_of_slurm_is_reported_with_its_partitions(job: Path, tmp_path: Path) -> None:
    add_command(tmp_path, "sinfo", 'echo "main* 4 16 1-00:00:00"')
    refuse = "echo 'allocation failure: Requested node configuration is not available' >&2; exit 1"
    path = add_command(tmp_path, "sbatch", refuse)
    done = run_submit(tmp_path, job.name, "--nodes=9", PATH=path)
    assert done.returncode == 2
    assert (
        "Slurm refuses the job: Requested node configuration is not available. Asked for: 9 nodes, "
        "3 ranks a node, 01:00:00, --partition=cpu. Partitions: main*: 4 nodes of 16 CPUs, at most 1-00:00:00"
    ) in done.stderr
    assert not list((tmp_path / "runs").iterdir()), "nothing is left of it"


def test_without_slurm_the_way_out_is_named(job: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/env").symlink_to(shutil.which("env") or "")
    done = run_submit(tmp_path, job.name, PATH=str(tmp_path / "bin"))
    assert done.returncode == 69
    assert "there is no sbatch here" in done.stderr


def test_wrong_jobs_are_refused_before_they_wait_in_a_queue(job: Path, tmp_path: Path) -> None:
    done = run_submit(tmp_path, job.name, "--set", "cluster.servers=5", "--dry-run")
    assert done.returncode == 2
    assert "servers = 5" in done.stderr
    done = run_submit(tmp_path, job.name, "--spares=1", "--dry-run")
    assert done.returncode == 2
    assert "--spares needs --launcher restart" in done.stderr


def test_scripts_are_found_or_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MPIPS_ROOT", raising=False)
    assert find_root() == ROOT
    monkeypatch.setenv("MPIPS_ROOT", str(tmp_path))
    with pytest.raises(CapabilityError, match="set MPIPS_ROOT"):
        find_root()


def test_an_installed_package_has_its_own_scripts_and_names_its_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MPIPS_ROOT", raising=False)
    package = tmp_path / "site-packages/mpips"
    (package / "jobs").mkdir(parents=True)
    monkeypatch.setattr(mpips, "__file__", str(package / "__init__.py"))
    with pytest.raises(CapabilityError, match=f"{package}/jobs/batch.sh does not exist"):
        find_root()
    (package / "jobs/batch.sh").touch()
    (package / "examples").mkdir()
    assert find_root() == package
    assert examples(package) == package / "examples"
    (tmp_path / "env/bin").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    with pytest.raises(CapabilityError, match="install mpips into a virtual environment"):
        environment_of(package)
    (tmp_path / "env/bin/python").touch()
    found = {"MPIPS_ROOT": str(package), "MPIPS_VENV": str(tmp_path / "env")}
    assert environment_of(package) == found
    # A repository that was set up has its own environment.
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").touch()
    assert environment_of(tmp_path) == {"MPIPS_ROOT": str(tmp_path)}


def test_a_task_is_submitted_with_its_files(tmp_path: Path) -> None:
    for name in ("a b.csv", "c.csv"):
        (tmp_path / name).write_text("label,x\n0,1\n1,2\n" * 8)
    path = add_command(tmp_path, "sbatch", "echo 42")
    files = ("--train", "a b.csv", "--train", "c.csv", "--test", "c.csv")
    more = ("--epochs=3", "--nodes=2", "--set", "slurm.nodes=3")
    done = run_submit(tmp_path, "logistic", *files, *more, PATH=path)
    assert done.returncode == 0, done.stderr
    assert "job 42 (logistic) is submitted: 2 nodes with 4 ranks each" in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    assert [file.name for file in folder.iterdir()] == ["job.sbatch"]
    words = shlex.join(["logistic", *files, "--set", "train.epochs=3", "--set", "slurm.nodes=3"])
    assert f"set -- {words}\n" in (folder / "job.sbatch").read_text()


def test_what_is_neither_a_file_nor_a_task_is_refused() -> None:
    for job, sentence in (("none.toml", "none.toml: cannot be read"), ("logistc", "logistic")):
        done = CliRunner().invoke(cli, ["submit", job, "--train", "digits", "--dry-run"])
        assert isinstance(done.exception, ConfigError)
        assert sentence in str(done.exception)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_configuration_of_jobs_can_be_run(path: Path) -> None:
    data = [("data.train", "digits"), ("data.test", "digits")]
    given = [] if path.name == "digits.toml" else data
    config = load_config(str(path), given)
    assert preflight(config, 4).name == config.task
    config.slurm.check()


def test_every_line_of_the_sweep_is_a_job() -> None:
    lines = (ROOT / "jobs/configs/sweep.txt").read_text().splitlines()
    jobs = [line.split() for line in lines if line and not line.startswith("#")]
    assert len(jobs) == 3
    for job, *assignments in jobs:
        assert assignments[::2] == ["--set"] * (len(assignments) // 2)
        pairs = [tuple(word.split("=")) for word in assignments[1::2]]
        values = [(key, int(value) if value.isdigit() else value) for key, value in pairs]
        preflight(load_config(str(ROOT / job), values), 4)


def test_nothing_on_the_command_line_becomes_a_command_of_the_script(tmp_path: Path) -> None:
    evil = "run.name=x\ntouch evil\r\ntouch evil\x0b\ntouch evil #"
    template = "#!/bin/bash\n# A job.\nset -euo pipefail\nprintf '%s' \"$2\"\n"
    origin = shlex.join(["mpips", "submit", "--set", evil])
    script = make_script(template, [], {"X": evil}, ["--set", evil], origin)
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout.decode() == evil
    assert not list(tmp_path.iterdir())
    assert "run.name=x\\ntouch evil" in script.splitlines()[1]


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\x0bb"])
def test_an_option_of_sbatch_that_is_no_line_is_refused(value: str, tmp_path: Path) -> None:
    template = "#!/bin/bash\nset -euo pipefail\n"
    with pytest.raises(ConfigError, match="options of sbatch"):
        make_script(template, [("--comment", value)], {}, [], "x")


@pytest.mark.parametrize("name", ["../../x", "a/b", "/tmp/x", "", "a\nb", "x" * 300])
def test_a_name_that_leads_out_of_runs_is_refused(job: Path, name: str) -> None:
    done = run_submit(job.parent, str(job), "--dry-run", "--name", name)
    if not name:
        assert done.returncode == 0, "the name of the file then"
        return
    assert done.returncode == 2
    assert "name of the run = " in done.stderr
