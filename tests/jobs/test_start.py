"""Jobs that cannot start end within seconds, with a message that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from slurm import Slurm

Script = Callable[[str], Path]
JOB = "jobs/configs/digits.toml"
# Seconds from submission to the end of a refused job: a few, but more where other tests have the cores.
AT_ONCE_S = 60.0


def refused(cluster: Slurm, tmp_path: Path, *argv: str | Path, **env: str) -> tuple[str, str]:
    """Submit a job that must not start; return its exit code and output."""
    job = cluster.submit(f"--output={tmp_path}/%j.out", *argv, env=env)
    shown = cluster.wait(job, AT_ONCE_S)
    output = cluster.output(shown)
    assert shown["JobState"] == "FAILED", output
    assert "mpips job: $" not in output, "the script must end before it starts a rank"
    return shown["ExitCode"].split(":")[0], output


def test_a_time_limit_below_the_warning_and_nodes_of_several_kinds_are_refused(
    cluster: Slurm, script: Script, tmp_path: Path
) -> None:
    code, output = refused(cluster, tmp_path, "--time=3", script("train.sbatch"), JOB)
    assert code == "2"
    assert "a time limit of 180 s with a warning 180 s before it" in output
    kinds = ("--ntasks=1", ":", "--ntasks=2")
    code, output = refused(cluster, tmp_path, *kinds, script("train.sbatch"), JOB)
    assert code == "2"
    assert "heterogeneous jobs are not supported: submit without ':'" in output


def test_srun_without_a_plugin_for_mpi_is_refused(
    make_slurm: Callable[..., Slurm], script: Script, tmp_path: Path
) -> None:
    without = make_slurm(1, without_plugins=["mpi_pmix*"])
    code, output = refused(without, tmp_path, "--nodes=1", script("train_srun.sbatch"), JOB)
    assert code == "69"
    assert "it has no plug-in 'pmix'" in output
    assert "jobs/train.sbatch" in output


def test_too_few_ranks_for_the_servers_are_refused(
    cluster: Slurm, script: Script, tmp_path: Path
) -> None:
    job = cluster.submit(
        *(f"--output={tmp_path}/%j.out", "--nodes=2", "--ntasks-per-node=1"),
        *(script("train.sbatch"), JOB, "--servers", "2"),
    )
    shown = cluster.wait(job, AT_ONCE_S)
    output = cluster.output(shown)
    assert shown["ExitCode"] == "2:0", output
    assert "servers = 2" in output
    assert "the configuration is wrong, see above; not tried again" in output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "nothing to do; usage: sbatch jobs/train.sbatch JOB.toml"),
        (("jobs/configs/none.toml",), "jobs/configs/none.toml: cannot be read"),
    ],
)
def test_a_wrong_call_is_refused(
    arguments: tuple[str, ...],
    sentence: str,
    cluster: Slurm,
    script: Script,
    tmp_path: Path,
) -> None:
    job = cluster.submit(
        *(f"--output={tmp_path}/%j.out", "--nodes=1", "--ntasks=1", script("train.sbatch")),
        *arguments,
    )
    shown = cluster.wait(job, AT_ONCE_S)
    output = cluster.output(shown)
    assert shown["ExitCode"] == "2:0", output
    assert sentence in output


def test_a_script_that_cannot_find_mpips_says_how_to_submit(
    cluster: Slurm, script: Script, tmp_path: Path
) -> None:
    job = cluster.submit(f"--output={tmp_path}/%j.out", script("train.sbatch"), JOB, cwd=tmp_path)
    shown = cluster.wait(job, AT_ONCE_S)
    assert shown["ExitCode"] == "2:0"
    assert "MPIPS_ROOT=FOLDER" in cluster.output(shown)
    # With MPIPS_ROOT the script finds mpips.
    job = cluster.submit(
        *(f"--output={tmp_path}/%j.out", script("train.sbatch"), "none.toml"),
        cwd=tmp_path,
        env={"MPIPS_ROOT": str(script("").parent)},
    )
    assert "none.toml: cannot be read" in cluster.output(cluster.wait(job, AT_ONCE_S))


def test_an_array_larger_than_its_sweep_says_which_to_submit(
    cluster: Slurm, script: Script, tmp_path: Path
) -> None:
    sweep = tmp_path / "sweep.txt"
    sweep.write_text("# nothing\none.toml\n")
    job = cluster.submit(
        *(f"--output={tmp_path}/%a.out", "--array=1", script("array.sbatch"), sweep)
    )
    assert cluster.wait(f"{job}_1", AT_ONCE_S)["ExitCode"] == "2:0"
    assert (
        "has 1 lines, none for task 1: submit with --array=0-0" in (tmp_path / "1.out").read_text()
    )
