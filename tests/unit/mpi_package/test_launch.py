"""Size and rank of a launch from the environment alone, and the start of MPI."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mpips.mpi.launch import (
    asked_threads,
    launched_rank,
    launched_size,
    local_size,
    lonely_tasks,
    n_cores,
    node_cores,
)

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
        # Inside sbatch, before srun: one process, with any allocation.
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "64", "SLURM_PROCID": "0"}, 1, 0),
        # srun without an MPI plugin starts independent processes.
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "12", "SLURM_PROCID": "5"}, 1, 5),
        # mpirun inside a Slurm step: mpirun's variables have priority.
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


STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "1"}


@pytest.mark.parametrize(
    ("env", "n"),
    [
        (STEP, 3),
        # An allocation alone is not a launch: the batch script is one process.
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "64", "SLURM_PROCID": "0"}, 1),
        # The launcher knows of MPI; load_mpi checks the size later.
        ({**STEP, "PMIX_RANK": "1"}, 1),
        ({**STEP, "PMI_RANK": "1", "PMI_SIZE": "3"}, 1),
        ({**STEP, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, 1),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1"}, 1),
    ],
)
def test_tasks_of_srun_without_mpi_are_counted(env: dict[str, str], n: int) -> None:
    assert lonely_tasks(env) == n


SCRIPT = "import mpips; mpips.run(lambda w: print('ran'), [mpips.DenseTable('w', (1,))])"


@pytest.mark.parametrize(
    "program",
    [
        ["-m", "mpips", "train", "mlp", "--train", "digits", "--set", "train.epochs=1"],
        ["-c", SCRIPT],
    ],
)
def test_copies_of_a_job_that_srun_started_refuse_to_run(program: list[str]) -> None:
    env = {**os.environ, **STEP, "SLURM_PROCID": "0"}
    done = subprocess.run(
        [sys.executable, *program], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 69
    assert done.stdout == ""
    assert "rank 0 of 1" in done.stderr
    assert "srun --mpi=pmix" in done.stderr
    assert done.stderr.count("\n") == 1


def test_hdf5_brings_no_second_mpi_library() -> None:
    """A parallel HDF5 may be linked with another libmpi than that of mpi4py, found in other folders."""
    code = (
        "from mpips.checkpoint.structure import hdf5_kind\n"
        "from mpips.mpi.launch import load_mpi\n"
        "hdf5_kind()\n"
        "load_mpi()\n"
        "from pathlib import Path\n"
        "paths = {line.split()[-1] for line in open('/proc/self/maps')}\n"
        "print(*{p for p in paths if Path(p).name.startswith('libmpi.so')})\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert len(done.stdout.split()) <= 1, done.stdout


@pytest.mark.parametrize(
    ("value", "threads"), [("", 0), ("4", 4), ("8,2", 8), (" 3 ", 3), ("0", 0), ("many", 0)]
)
def test_threads_are_those_that_were_asked_for(value: str, threads: int) -> None:
    assert asked_threads({"OMP_NUM_THREADS": value}) == threads
    assert asked_threads({}) == 0


def test_a_process_may_use_no_more_cores_than_its_node_has() -> None:
    assert 1 <= n_cores() <= node_cores()


def test_mpi_sleeps_until_it_is_loaded() -> None:
    """A library that imports mpi4py (h5py built with MPI) does not start it; load_mpi does."""
    code = (
        "from mpips.mpi.launch import load_mpi\n"
        "from mpips.data.hdf5 import keep_mpi_asleep\n"
        "keep_mpi_asleep()\n"
        "from mpi4py import MPI\n"
        "assert not MPI.Is_initialized()\n"
        "assert load_mpi().Get_size() == 1\n"
        "assert MPI.Query_thread() == MPI.THREAD_SERIALIZED\n"
        "keep_mpi_asleep()\n"
        "assert MPI.Is_initialized()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_hdf5_takes_the_mpi_that_mpi4py_knows() -> None:
    """Without the path that mpirun sets, HDF5 by itself would load the system's MPI."""
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    version = "from mpi4py import MPI; print(MPI.Get_library_version())"
    hdf5 = "from mpips.data.hdf5 import load_hdf5; load_hdf5('this test'); "
    alone, after_hdf5 = (
        subprocess.run(
            [sys.executable, "-c", f"import mpi4py; mpi4py.rc.initialize = False; {code}{version}"],
            env=env,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for code in ("", hdf5)
    )
    assert after_hdf5 == alone
