"""train_restart.sbatch after the loss of a node: it continues on a spare or other nodes, with equal bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from paced_jobs import RANKS, Ended, Script, assert_same, end, latest, start, wait_at_work
from private_slurm import private_slurm
from slurm import Slurm

# Two nodes have the ranks, and --exclusive excludes other jobs from them.
SHAPE = ("--ntasks-per-node=2", "--exclusive")
MORE = ("-n", str(RANKS), "--set", "checkpoint.every_steps=5")


@pytest.fixture(scope="module")
def own_slurm() -> Iterator[Slurm]:
    """A Slurm of six nodes, of which the tests lose some."""
    with pytest.MonkeyPatch.context() as patch:
        yield from private_slurm(patch, 6)


@pytest.fixture(scope="module")
def ended(
    own_slurm: Slurm, script: Script, job: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, Ended]:
    """The ends of two jobs that lost their second node while training: one has a spare node, one has none."""
    folder = tmp_path_factory.mktemp("lost")
    numbers = {}
    for spares in (1, 0):
        nodes = f"--nodes={2 + spares}"
        arguments = (*SHAPE, nodes, script("train_restart.sbatch"), job, *MORE)
        numbers[spares] = start(own_slurm, folder / f"spares{spares}", *arguments, spares=spares)
        own_slurm.wait_for(numbers[spares], ["RUNNING"])
    for spares, number in numbers.items():
        wait_at_work(own_slurm, number, folder / f"spares{spares}", saved=True)
        hosts = own_slurm.hosts_of(number)
        own_slurm.lose(own_slurm.nodes.hosts.index(hosts[1]))
    return {spares: end(own_slurm, number) for spares, number in numbers.items()}


def test_a_spare_replaces_a_lost_node_within_the_allocation(
    ended: dict[int, Ended], undisturbed: Path
) -> None:
    job = ended[1]
    assert (job.state, job.restarts) == ("COMPLETED", 0), job.output
    assert " is left out: " in job.output
    assert "mpips run: spare " in job.output
    assert_same(latest(job.folder), undisturbed)


def test_without_enough_nodes_the_job_continues_in_another_allocation(
    ended: dict[int, Ended], undisturbed: Path
) -> None:
    job = ended[0]
    assert (job.state, job.restarts) == ("COMPLETED", 1), job.output
    assert "1 of 2 hosts are left" in job.output
    assert "other nodes may do better" in job.output
    assert_same(latest(job.folder), undisturbed)
