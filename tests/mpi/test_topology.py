"""The nodes of ranks, and which rank can see which process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mpi4py import MPI


def test_pids_mean_something_within_their_own_namespace_only(
    comm: MPI.Intracomm, parallel_assert: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mpi4py import MPI

    from mpips.mpi import topology

    # Let every second rank have a PID namespace of its own, as in a container.
    monkeypatch.setattr(topology, "pid_space", lambda: 7 + comm.rank % 2)
    found = topology.find_topology(comm, MPI.Request.Wait)
    expected = [(comm.rank - other) % 2 == 0 for other in range(comm.size)]
    seen = [found.sees(comm.rank, other) for other in range(comm.size)]
    parallel_assert(comm, seen == expected, f"{seen}")


def test_ranks_of_one_namespace_see_each_other(
    comm: MPI.Intracomm, parallel_assert: Callable[..., None]
) -> None:
    from mpi4py import MPI

    from mpips.mpi.topology import find_topology, pid_space

    found = find_topology(comm, MPI.Request.Wait)
    parallel_assert(comm, pid_space() > 0, "no namespace")
    parallel_assert(comm, all(found.sees(comm.rank, r) for r in range(comm.size)), "unseen")
