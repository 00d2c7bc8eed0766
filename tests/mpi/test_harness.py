"""Tests of tests/mpi/conftest.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mpi4py import MPI


@pytest.mark.two_ranks
def test_comm_holds_all_ranks_and_is_not_the_world(comm: MPI.Intracomm) -> None:
    from mpi4py import MPI

    assert comm.size == MPI.COMM_WORLD.size
    assert MPI.Comm.Compare(comm, MPI.COMM_WORLD) == MPI.CONGRUENT


def test_parallel_assert_passes_where_all_ranks_agree(
    comm: MPI.Intracomm, parallel_assert: Callable[..., None]
) -> None:
    parallel_assert(comm, comm.allreduce(1) == comm.size, "lost a rank")


@pytest.mark.two_ranks
def test_parallel_assert_fails_on_all_ranks_and_names_the_false_one(
    comm: MPI.Intracomm, parallel_assert: Callable[..., None]
) -> None:
    last = comm.size - 1
    with pytest.raises(AssertionError, match=f"rank {last}: of {comm.size}"):
        parallel_assert(comm, comm.rank != last, f"of {comm.size}")
    comm.Barrier()
