"""The scripts of jobs/ beside the set-up: their environment, the quickstart, the folder of a run."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from script_machine import ROOT, Machine

PATTERNS = ("jobs/**/*.sh", "jobs/**/*.sbatch", "mpips/**/*.sh", "tests/**/*.sh", ".ci/*")
SCRIPTS = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_parses(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_shellcheck_has_nothing_to_say() -> None:
    assert len(SCRIPTS) > 10
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    # Sourced files are not followed, and checked by themselves.
    command = [shellcheck, "--shell=bash", "--exclude=SC1090,SC1091", *map(str, SCRIPTS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


ENV = "source jobs/env.sh; env | grep -E '^(OMPI|PRTE|OMP)_' | sort"


def test_env_lets_open_mpi_run_as_root_only_for_root(tmp_path: Path) -> None:
    for uid in (0, 1000):
        machine = Machine(tmp_path / str(uid), uid=uid)
        assert ("PRTE_ALLOW_RUN_AS_ROOT=1" in machine.run("bash", "-c", ENV).stdout) == (uid == 0)


def test_env_keeps_what_the_user_set(machine: Machine) -> None:
    out = machine.run("bash", "-c", ENV, OMPI_MCA_osc="rdma", OMP_NUM_THREADS="4").stdout
    assert out.splitlines() == ["OMPI_MCA_osc=rdma", "OMP_NUM_THREADS=4"]
    granted = machine.run("bash", "-c", ENV, SLURM_CPUS_PER_TASK="8").stdout
    assert "OMP_NUM_THREADS=8" in granted


def test_env_may_be_sourced_twice(machine: Machine) -> None:
    machine.add("python", "", machine.root / ".venv/bin")
    twice = 'set -eu; source jobs/env.sh; source jobs/env.sh; echo "$PATH"'
    venv = machine.root / ".venv/bin"
    assert machine.run("bash", "-c", twice).stdout == f"{venv}:{machine.bin}\n"


def test_mpirun_is_told_of_oversubscription_only_where_it_counts(machine: Machine) -> None:
    def flags(n: int, version: str, **env: str) -> str:
        machine.add("mpirun", f"echo '{version}'")
        return machine.run("bash", "-c", f"source jobs/env.sh; mpirun_flags {n}", **env).stdout

    assert flags(10_000, "mpirun (Open MPI) 5.0.11") == "--oversubscribe --bind-to none"
    assert flags(1, "mpirun (Open MPI) 5.0.11") == ""
    assert flags(10_000, "HYDRA build details") == ""
    assert flags(10_000, "mpirun (Open MPI) 5.0.11", SLURM_JOB_ID="7") == ""


def test_quickstart_prints_its_command_before_it_runs(machine: Machine) -> None:
    machine.add("setup.sh", "echo ready", machine.root / "jobs")
    machine.add(
        "mpirun", '[[ $1 != --version ]] || { echo "mpirun (Open MPI) 5"; exit; }; echo "ran: $*"'
    )
    done = machine.run("bash", "jobs/quickstart.sh")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    command = next(i for i, line in enumerate(lines) if line.startswith("$ mpirun"))
    ran = next(i for i, line in enumerate(lines) if line.startswith("ran: "))
    assert lines[command].removeprefix("$ mpirun ") == lines[ran].removeprefix("ran: ")
    assert lines[command].endswith("python -m mpips train mlp --train digits --servers 2")
    assert lines.index("ready") < command < ran < len(lines) - 1
    assert "What to try next" in done.stdout


def test_quickstart_fails_when_the_job_fails(machine: Machine) -> None:
    machine.add("setup.sh", "", machine.root / "jobs")
    machine.add("mpirun", "exit 9")
    done = machine.run("bash", "jobs/quickstart.sh")
    assert done.returncode == 9
    assert "What to try next" not in done.stdout


def run_folder(tmp_path: Path, **variables: str) -> str:
    """The run folder of a batch script in a job of Slurm, and what has to be named to go on in it."""
    tmp_path.mkdir()
    machine = Machine(tmp_path)
    for tool in ("realpath", "hostname"):
        (machine.bin / tool).symlink_to(str(shutil.which(tool)))
    venv = machine.root / ".venv/bin"
    machine.add("python", "exit 0", venv)
    (machine.root / "jobs/env.sh").write_text(f'PATH="{venv}:$PATH"\n')
    job = {
        "SLURM_JOB_ID": "12",
        "SLURM_NTASKS": "2",
        "SLURM_JOB_NAME": "j",
        "SLURM_JOB_NODELIST": "n",
    }
    script = (
        'set -euo pipefail; source "$root/jobs/batch.sh"; begin usage x >&2; echo "$run|$folder"'
    )
    done = subprocess.run(
        [str(machine.bin / "bash"), "-c", script],
        env={**machine.env, **job, **variables, "root": str(machine.root)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    run, folder = done.stdout.strip().split("|")
    return f"{Path(run).relative_to(tmp_path)} {Path(folder).relative_to(tmp_path)}"


@pytest.mark.parametrize("task", ["0", "1"])
def test_each_task_of_an_array_has_a_run_folder_of_its_own(tmp_path: Path, task: str) -> None:
    array = {"SLURM_ARRAY_JOB_ID": "11", "SLURM_ARRAY_TASK_ID": task}
    assert run_folder(tmp_path / "a", **array) == f"runs/j-11_{task} runs/j-11"
    found = run_folder(tmp_path / "b", **array, MPIPS_FOLDER=str(tmp_path / "b/mine"))
    assert found == f"mine_{task} mine"


def test_a_single_job_has_the_run_folder_that_was_given(tmp_path: Path) -> None:
    assert run_folder(tmp_path / "a") == "runs/j-12 runs/j-12"
    assert run_folder(tmp_path / "b", MPIPS_FOLDER=str(tmp_path / "b/mine")) == "mine mine"


JOB = {
    "SLURM_JOB_ID": "12",
    "SLURM_NTASKS": "8",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NAME": "j",
    "SLURM_JOB_NODELIST": "n",
}
BEGIN = """set -euo pipefail
root=$PWD
source jobs/batch.sh
begin usage x
command -v python"""


def test_a_job_uses_the_environment_that_is_named(machine: Machine, tmp_path: Path) -> None:
    for tool in ("realpath", "hostname"):
        (machine.bin / tool).symlink_to(str(shutil.which(tool)))
    done = machine.run("bash", "-c", BEGIN, **JOB)
    assert done.returncode == 69
    assert f"{machine.root}/.venv does not exist on " in done.stderr
    assert "or set MPIPS_VENV to an environment" in done.stderr
    python = machine.add("python", "", tmp_path / "env/bin")
    done = machine.run("bash", "-c", BEGIN, **JOB, MPIPS_VENV=str(tmp_path / "env"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(python)


def test_no_message_sends_anybody_to_an_index_that_has_no_mpips() -> None:
    texts = [*ROOT.glob("mpips/**/*.py"), ROOT / "README.md"]
    texts += [*ROOT.glob("jobs/*"), *ROOT.glob("native/CMakeLists.txt")]
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts
        if path.is_file()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"pip install [^#;,]*\bmpips\b", line)
    ]
    assert not wrong, "\n".join(wrong)
