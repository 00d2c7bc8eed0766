"""`mpips submit` on a real Slurm: jobs run as written, and impossible jobs are refused at once."""

from __future__ import annotations

import re
from pathlib import Path

import launcher
from paced_jobs import PACED, wait_at_work
from slurm import Slurm

from mpips.checkpoint import open_checkpoint

MPIPS = launcher.REPOSITORY / ".venv/bin/mpips"
JOB = launcher.REPOSITORY / "jobs/configs/digits.toml"


def test_a_submitted_job_runs_with_its_own_copy(cluster: Slurm, data: Path, tmp_path: Path) -> None:
    job = tmp_path / "mine.toml"
    job.write_text(JOB.read_text())
    done = cluster.run(
        *(MPIPS, "submit", "mine.toml", "--nodes=2", "--ranks-per-node=2", "--time=10"),
        *("--set", "train.epochs=1"),
        *("--set", f"data.train={data}", "--set", f"data.test={data}"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    # A later change of the file does not change this job.
    job.write_text("nonsense")
    number = re.match(r"job (\d+) \(mine\) is submitted", done.stdout)
    assert number is not None, done.stdout
    shown = cluster.wait(number[1])
    output = cluster.output(shown)
    assert shown["JobState"] == "COMPLETED", output
    assert (shown["JobName"], shown["NumNodes"], shown["TimeLimit"]) == ("mine", "2", "00:10:00")
    (folder,) = (tmp_path / "runs").iterdir()
    assert Path(shown["StdOut"]) == folder / f"slurm-{number[1]}.out"
    with open_checkpoint(folder / "checkpoints/latest") as checkpoint:
        assert checkpoint.manifest.step > 0


def test_a_script_is_warned_requeued_and_counts_each_step_once(
    cluster: Slurm, tmp_path: Path
) -> None:
    script = PACED / "counting_script.py"
    done = cluster.run(
        *(MPIPS, "submit", "--nodes=2", "--ranks-per-node=2", "--time=10", "--name=counting"),
        *(script, tmp_path, "--counted"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    number = re.match(r"job (\d+) \(counting\) is submitted: 2 nodes with 2 ranks", done.stdout)
    assert number is not None, done.stdout
    wait_at_work(cluster, int(number[1]), tmp_path)
    cluster.run("scancel", "--batch", "--signal=USR1", number[1])
    shown = cluster.wait(number[1], 100)
    output = cluster.output(shown)
    assert (shown["JobState"], shown["Restarts"]) == ("COMPLETED", "1"), output
    # Both nodes had ranks: none was a spare.
    assert "4 ranks" in output
    assert "is there: back into the queue" in output
    (line,) = [line for line in output.splitlines() if line.startswith("--counted: ")]
    first = re.fullmatch(
        r"--counted: began anew at step (\d+), counted \[200.0, 200.0, 200.0\]", line
    )
    assert first is not None, line
    assert 10 <= int(first[1]) < 200


def test_a_job_larger_than_the_cluster_is_refused_at_once(cluster: Slurm, tmp_path: Path) -> None:
    # sbatch alone would accept the job, which would wait for ever.
    done = cluster.run(MPIPS, "submit", JOB, "--nodes=5", cwd=tmp_path)
    assert done.returncode == 2
    assert "Slurm refuses the job: Requested node configuration is not available" in done.stderr
    assert "main*: 4 nodes of 8 CPUs, at most infinite" in done.stderr
    assert not cluster.run("squeue", "--noheader").stdout
