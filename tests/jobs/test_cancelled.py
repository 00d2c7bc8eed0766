"""After `scancel` no shared memory is left on any node, and the checkpoints are."""

from __future__ import annotations

from pathlib import Path

import launcher
import processes
import pytest
from paced_jobs import RANKS, Script, latest, start, wait_at_work
from slurm import Slurm

SHAPE = ("--nodes=2", f"--ntasks={RANKS}", "--ntasks-per-node=2")
SAVES = ("--set", "checkpoint.every_steps=5")
# No job ends before it is cancelled.
ENDLESS = (*SAVES, "--set", "train.epochs=100000")
SCRIPTS = {
    "train.sbatch": ENDLESS,
    "train_srun.sbatch": ENDLESS,
    "train_restart.sbatch": ("-n", str(RANKS), *ENDLESS),
    "own.sbatch": ("-n", str(RANKS), *ENDLESS),
}
# A script of a user.
OWN = f"""#!/bin/bash
source {launcher.REPOSITORY}/jobs/env.sh
source {launcher.REPOSITORY}/jobs/watch.sh && watch_job "$MPIPS_FOLDER"
python -m mpips run --folder "$MPIPS_FOLDER" "$@"
"""


def segments(cluster: Slurm) -> dict[str, set[str]]:
    """Return the shared memory on each node that has any, by its host."""
    found = {host: cluster.nodes.segments(i) for i, host in enumerate(cluster.nodes.hosts)}
    return {host: names for host, names in found.items() if names}


def test_a_cancelled_job_leaves_no_memory_on_any_node(
    cluster: Slurm, script: Script, job: Path, tmp_path: Path
) -> None:
    runs = {name: tmp_path / name.partition(".")[0] for name in SCRIPTS}
    own = tmp_path / "own.sbatch"
    own.write_text(OWN)
    numbers = {
        name: start(
            cluster,
            runs[name],
            *SHAPE,
            own if name == own.name else script(name),
            job,
            *more,
            spares=0,
        )
        for name, more in SCRIPTS.items()
    }
    for name, number in numbers.items():
        wait_at_work(cluster, number, runs[name], saved=True)
    used = {host for number in numbers.values() for host in cluster.hosts_of(number)}
    assert set(segments(cluster)) == used

    cluster.run("scancel", *map(str, numbers.values()))
    ends = {name: cluster.wait(number) for name, number in numbers.items()}
    assert {shown["JobState"] for shown in ends.values()} == {"CANCELLED"}
    assert processes.until(lambda: not segments(cluster), 10.0), segments(cluster)
    assert all(latest(folder) is not None for folder in runs.values())
    for name in ("train_restart.sbatch", "own.sbatch"):
        output = cluster.output(ends[name])
        assert "memory removed from the nodes of the job, because Slurm has cancelled it" in output
        assert "did not answer" not in output


@pytest.mark.long
def test_memory_of_a_requeued_job_stays(
    cluster: Slurm, script: Script, job: Path, tmp_path: Path
) -> None:
    """The next allocation may have the same nodes."""
    folder = tmp_path / "run"
    more = ("-n", str(RANKS), *SAVES)
    number = start(cluster, folder, *SHAPE, script("train_restart.sbatch"), job, *more, spares=0)
    wait_at_work(cluster, number, folder, saved=True)
    before = segments(cluster)
    kept = {host: {n for n in names if n.endswith("-mark")} for host, names in before.items()}
    assert any(kept.values())
    assert cluster.run("scontrol", "requeuehold", str(number)).returncode == 0
    cluster.wait_for(number, ["PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT"])
    after = segments(cluster)
    assert all(names <= after.get(host, set()) for host, names in kept.items())
    done = cluster.run("scontrol", "release", str(number))
    assert done.returncode == 0, done.stderr
    shown = cluster.wait(number, 150)
    assert shown["JobState"] == "COMPLETED", cluster.output(shown)
