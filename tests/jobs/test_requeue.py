"""Training across allocations of a Slurm job: the result has the same bits as without any disturbance.

All jobs run at the same time, since they mostly wait. Each is disturbed while it trains.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from paced_jobs import RANKS, Ended, Script, assert_same, end, latest, start, wait_at_work
from slurm import Slurm

SHAPE = ("--nodes=3", f"--ntasks={RANKS}", "--ntasks-per-node=2")
# Arguments of scancel that warn each job: USR1 to the script, as before the time limit, or TERM to the ranks,
# as Slurm sends it to the steps of a preempted job. (test_allocations warns srun by USR1.)
WARNED = {
    "train.sbatch": ("--batch", "--signal=USR1"),
    "train_srun.sbatch": ("--signal=TERM",),
    "train_restart.sbatch": ("--batch", "--signal=USR1"),
}
BY_HAND = "by-hand"


@pytest.fixture(scope="module")
def disturbed(
    shared_slurm: Slurm, script: Script, job: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Ended]]:
    """The ends of three jobs that were warned in their first allocation, and of one that was requeued."""
    cluster, folder = shared_slurm, tmp_path_factory.mktemp("allocations")
    runs = {name: folder / name.partition(".")[0] for name in (*WARNED, BY_HAND)}
    numbers = {
        name: start(
            *(
                cluster,
                runs[name],
                *SHAPE,
                script("train.sbatch" if name == BY_HAND else name),
                job,
            ),
            *(("-n", str(RANKS)) if "restart" in name else ()),
            *(("--set", "checkpoint.every_steps=5") if name == BY_HAND else ()),
        )
        for name in runs
    }
    for name, number in numbers.items():
        wait_at_work(cluster, number, runs[name], saved=name == BY_HAND)
        if name == BY_HAND:
            done = cluster.run("scontrol", "requeue", str(number))
            assert done.returncode == 0, done.stderr
        else:
            cluster.run("scancel", *WARNED[name], str(number))
    yield {name: end(cluster, number) for name, number in numbers.items()}
    cluster.cancel_all()


@pytest.mark.parametrize("name", WARNED)
def test_a_warned_training_continues_with_the_same_bits(
    name: str, disturbed: dict[str, Ended], undisturbed: Path
) -> None:
    ended = disturbed[name]
    assert (ended.state, ended.restarts) == ("COMPLETED", 1), ended.output
    assert "is there: back into the queue" in ended.output
    assert "mpips: leaving: SIG" in ended.output
    assert_same(latest(ended.folder), undisturbed)


def test_a_training_requeued_by_hand_continues_with_the_same_bits(
    disturbed: dict[str, Ended], undisturbed: Path
) -> None:
    ended = disturbed[BY_HAND]
    assert (ended.state, ended.restarts) == ("COMPLETED", 1), ended.output
    assert "back into the queue" not in ended.output
    assert_same(latest(ended.folder), undisturbed)
