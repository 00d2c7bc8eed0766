"""How many ranks a launcher says it started, from its environment alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mpips.cluster.launch import launched_rank, launched_size, local_size, n_cores, node_cores

OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_RANK": "4"}
MPICH = {"PMI_SIZE": "8", "PMI_RANK": "3"}
SLURM_PMIX = {"SLURM_STEP_ID": "0", "PMIX_RANK": "2", "SLURM_STEP_NUM_TASKS": "12"}


@pytest.mark.parametrize(
    ("env", "size", "rank"),
    [
        ({}, 1, 0),
        (OPEN_MPI, 6, 4),
        (MPICH, 8, 3),
        (SLURM_PMIX, 12, 2),
        # Inside sbatch, before srun: one process, whatever the allocation.
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "64", "SLURM_PROCID": "0"}, 1, 0),
        # srun without an MPI plugin starts processes that know nothing of each other.
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "12", "SLURM_PROCID": "5"}, 1, 0),
        # mpirun inside a Slurm step: mpirun's numbers count.
        ({**SLURM_PMIX, **OPEN_MPI}, 6, 4),
        ({"OMPI_COMM_WORLD_SIZE": "", "PMI_SIZE": "x"}, 1, 0),
    ],
)
def test_the_most_specific_launcher_tells_size_and_rank(
    env: dict[str, str], size: int, rank: int
) -> None:
    assert launched_size(env) == size
    assert launched_rank(env) == rank


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, 1),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 3),
        ({"MPI_LOCALNRANKS": "4"}, 4),
        ({"SLURM_NTASKS_PER_NODE": "8"}, 8),
        ({"SLURM_NTASKS_PER_NODE": "8(x2)"}, 1),
    ],
)
def test_ranks_on_this_node_come_from_the_launcher(env: dict[str, str], expected: int) -> None:
    assert local_size(env) == expected


def test_a_process_may_use_no_more_cores_than_its_node_has() -> None:
    assert 1 <= n_cores() <= node_cores()


def test_mpi_sleeps_until_it_is_loaded() -> None:
    """A library that imports mpi4py (h5py built with MPI) does not start it; load_mpi does."""
    code = (
        "from mpips.cluster.launch import load_mpi\n"
        "from mpips.hdf5 import keep_mpi_asleep\n"
        "keep_mpi_asleep()\n"
        "from mpi4py import MPI\n"
        "assert not MPI.Is_initialized()\n"
        "assert load_mpi().Get_size() == 1\n"
        "assert MPI.Query_thread() == MPI.THREAD_SERIALIZED\n"
        "keep_mpi_asleep()\n"
        "assert MPI.Is_initialized()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
