"""Allocations of a job: warned in time, requeued while there is progress, and ended when there is none.

The ranks are imitated (programs/warned); Slurm, its signals, the launchers and the scripts are real.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import processes
import pytest
import slurm
from slurm import Slurm

Script = Callable[[str], Path]
WARNED = Path(__file__).parent / "programs/warned"


def warned_job(folder: Path, allocations: int, saves: bool = True) -> Path:
    """Write a job for programs/warned, which ends after so many allocations."""
    path = folder / f"job-{allocations}-{saves}.json"
    path.write_text(json.dumps({"allocations": allocations, "saves": saves}))
    return path


def start(cluster: Slurm, folder: Path, *argv: str | Path, **env: str) -> int:
    """Submit a script with imitated ranks; `folder` is its run folder."""
    imitated = {"PYTHONPATH": str(WARNED), "MPIPS_FOLDER": str(folder)}
    return cluster.submit(f"--output={folder}-%j.out", *argv, env=imitated | env)


def warn(
    cluster: Slurm,
    job: int | str,
    folder: Path,
    n_ranks: int,
    *how: str,
    allocation: int = 0,
) -> None:
    """Warn a job as Slurm does, or else as `how`, once all ranks of this allocation are ready for it."""
    files = [folder / f"checkpoints/ready-{allocation}-{rank}" for rank in range(n_ranks)]
    ready = processes.until(lambda: all(f.exists() for f in files) or ended(cluster, job), 60.0)
    assert ready, "ranks are not ready"
    assert not ended(cluster, job), cluster.output(cluster.show(job))
    cluster.run("scancel", *(how or ("--batch", "--signal=USR1")), str(job))


def ended(cluster: Slurm, job: int | str) -> bool:
    return cluster.show(job)["JobState"] in slurm.ENDED


@pytest.mark.parametrize("name", ["train.sbatch", "train_srun.sbatch"])
def test_a_warned_job_continues_in_another_allocation(
    name: str, cluster: Slurm, script: Script, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    job = start(
        *(cluster, run, "--nodes=2", "--ntasks-per-node=2", script(name), warned_job(tmp_path, 3))
    )
    warn(cluster, job, run, 4)
    # Not to the ranks: launchers kill these when they receive a TERM themselves.
    warn(cluster, job, run, 4, "--batch", "--signal=TERM", allocation=1)
    shown = cluster.wait(job)
    output = cluster.output(shown)
    assert (shown["JobState"], shown["Restarts"]) == ("COMPLETED", "2"), output
    for step in range(2):
        assert f"checkpoint step-{step:012} is there: back into the queue" in output
    assert output.count("4 ranks on") == 3, "all allocations write into one file"
    assert ", allocation 3, " in output


@pytest.mark.parametrize("name", ["train.sbatch", "train_srun.sbatch"])
def test_a_cancelled_job_is_not_requeued(
    name: str, cluster: Slurm, script: Script, tmp_path: Path
) -> None:
    """Slurm signals the ranks as well, which save and ask for a requeue where the launcher lets them."""
    run = tmp_path / "run"
    job = start(
        *(cluster, run, "--nodes=1", "--ntasks-per-node=2", script(name), warned_job(tmp_path, 2))
    )
    warn(cluster, job, run, 2, "--quiet")
    shown = cluster.wait(job)
    output = cluster.output(shown)
    assert (shown["JobState"], shown["Restarts"]) == ("CANCELLED", "0"), output
    assert "after Slurm has cancelled the job: not requeued; to continue, submit it again" in output
    assert f"MPIPS_FOLDER={run}" in output
    assert "mpips job: done" not in output


def test_a_job_without_progress_is_not_requeued(
    cluster: Slurm, script: Script, tmp_path: Path
) -> None:
    stuck, empty, limited = (tmp_path / name for name in ("stuck", "empty", "limited"))
    # Pretend that this allocation began at the checkpoint that it writes.
    (stuck / "checkpoints").mkdir(parents=True)
    (stuck / "requeued-at").write_text("step-000000000000\n")
    one = ("--nodes=1", "--ntasks-per-node=1", script("train.sbatch"))
    jobs = {
        stuck: start(cluster, stuck, *one, warned_job(tmp_path, 9)),
        empty: start(cluster, empty, *one, warned_job(tmp_path, 9, saves=False)),
        limited: start(cluster, limited, *one, warned_job(tmp_path, 9), MPIPS_MAX_REQUEUES="0"),
    }
    ends = {
        stuck: ("1:0", "not requeued: this allocation wrote nothing newer than step-000000000000"),
        empty: ("1:0", "there is no checkpoint in"),
        limited: ("75:0", f"submit it again with MPIPS_FOLDER={limited}"),
    }
    for folder, job in jobs.items():
        warn(cluster, job, folder, 1)
    for folder, (code, sentence) in ends.items():
        shown = cluster.wait(jobs[folder])
        output = cluster.output(shown)
        assert (shown["ExitCode"], shown["Restarts"]) == (code, "0"), output
        assert sentence in output


def test_only_the_warned_task_of_an_array_is_requeued(
    cluster: Slurm, script: Script, tmp_path: Path
) -> None:
    sweep = tmp_path / "sweep.txt"
    sweep.write_text(f"{warned_job(tmp_path, 1)}\n{warned_job(tmp_path, 2)}\n")
    job = cluster.submit(
        *(f"--output={tmp_path}/%a.out", "--array=0-1", "--ntasks-per-node=1"),
        *(script("array.sbatch"), sweep),
        cwd=tmp_path,
        env={"PYTHONPATH": str(WARNED), "MPIPS_ROOT": str(script("").parent)},
    )
    folder = tmp_path / f"runs/sweep-{job}_1"
    warn(cluster, f"{job}_1", folder, 1)
    shown = [cluster.wait(f"{job}_{task}") for task in range(2)]
    assert [s["JobState"] for s in shown] == ["COMPLETED"] * 2, (tmp_path / "1.out").read_text()
    assert [s["Restarts"] for s in shown] == ["0", "1"]
    assert "back into the queue" in (tmp_path / "1.out").read_text()


def test_slurm_warns_before_the_time_limit(cluster: Slurm, script: Script, tmp_path: Path) -> None:
    run = tmp_path / "run"
    # One minute is the shortest limit, and Slurm checks limits twice a minute.
    job = start(
        *(cluster, run, "--time=1", "--signal=B:USR1@40", "--nodes=1", "--ntasks-per-node=2"),
        *(script("train.sbatch"), warned_job(tmp_path, 2)),
        MPIPS_WARNING_S="40",
    )
    shown = cluster.wait(job, 90)
    output = cluster.output(shown)
    assert (shown["JobState"], shown["Restarts"]) == ("COMPLETED", "1"), output
    assert (run / "checkpoints/warned-0-1").exists(), "Slurm itself has warned the job"
