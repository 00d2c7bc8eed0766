"""The only rank of a job that has all roles in one process; the counterpart of mpips.mpi.cluster.Cluster.

It makes no MPI call. Steps that several ranks take together are calls here, and their errors are raised as
they are.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from mpips.mpi import launch
from mpips.mpi.roles import Assignment
from mpips.rundir.files import RankPlace
from mpips.transport.region import new_token

if TYPE_CHECKING:
    from mpips.mpi.cluster import Cluster

Value = TypeVar("Value")
Ranks: TypeAlias = "Cluster | OneRank"  # all ranks of a job


class OneRank:
    """The rank that is scheduler, server 0 and worker 0.

    Attributes:
        token: Part of the names of the job's memory.
        assignment: All roles, on rank 0.
        n_cores: Number of cores of this process.
        comm: None: there are no messages.
    """

    rank, size = 0, 1
    server = worker = local_worker = 0
    is_scheduler = True
    comm = None

    def __init__(self) -> None:
        """Make a token."""
        self.token = new_token()
        self.n_cores = launch.n_cores()
        self.assignment = Assignment((0,), (socket.gethostname(),), 0, (0,), (0,))

    @property
    def places(self) -> list[RankPlace]:
        """Role, host and process of this rank."""
        a = self.assignment
        return [RankPlace(rank=0, role=a.roles_of(0), host=a.node_names[0], pid=os.getpid())]

    def name_of(self, rank: int) -> str:
        """Return the name of the rank for errors, which are about its worker."""
        return f"worker {self.assignment.worker_of[rank]}"

    def lengthy(self) -> AbstractContextManager[None]:
        """Return an empty block: no other rank waits."""
        return nullcontext()

    def agree(self, what: str, work: Callable[[], Value], lengthy: bool = False) -> list[Value]:
        """Call `work` and return its result; see Cluster.agree."""
        return [work()]

    def arrive(
        self,
        what: str,
        phase: str = "start-up",
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        """Return: no other rank has to come."""
