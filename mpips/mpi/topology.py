"""The nodes of the ranks, as MPI reports them, not guessed from host names."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import msgspec
import numpy as np
from mpi4py import MPI

from mpips.mpi.exchange import exchange


class Topology(msgspec.Struct, frozen=True):
    """Nodes of a communicator, equal on all ranks.

    Attributes:
        node_of: Node index of each rank; nodes are numbered in the order of their lowest rank.
        node_names: Host name of each node.
        pids: Process id of each rank.
        cores: Number of cores of each node.
        pid_spaces: PID namespace of each rank. A process id is valid only within its namespace; containers
            may give each rank a namespace of its own.
    """

    node_of: tuple[int, ...]
    node_names: tuple[str, ...]
    pids: tuple[int, ...]
    cores: tuple[int, ...]
    pid_spaces: tuple[int, ...]

    def sees(self, rank: int, other: int) -> bool:
        """Return True if `rank` can find the process of `other` by its process id."""
        return (
            self.node_of[rank] == self.node_of[other]
            and self.pid_spaces[rank] == self.pid_spaces[other]
        )

    def visible_to(self, rank: int) -> list[int]:
        """Return the ranks whose processes `rank` can find by their process ids."""
        return [other for other in range(len(self.pids)) if self.sees(rank, other)]

    def oversubscribed(self, node: int) -> bool:
        """Return True if a node has more ranks than cores."""
        return self.node_of.count(node) > self.cores[node]


def pid_space() -> int:
    """Return the number of this process's PID namespace; 0 where the kernel does not show it."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def find_topology(comm: MPI.Intracomm, wait: Callable[[MPI.Request], object]) -> Topology:
    """Ask MPI which ranks share memory, and return the nodes.

    Collective over `comm`, blocking; start-up only.

    Args:
        comm: Communicator of the job's ranks.
        wait: Waits for a request; see `exchange`.
    """
    # A node is named by its lowest rank.
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    first = np.array([comm.Get_rank()], np.int64)
    node.Bcast(first, root=0)
    node.Free()
    mine = (int(first[0]), socket.gethostname(), os.getpid(), os.cpu_count() or 1, pid_space())
    rows = exchange(comm, mine, wait)
    firsts = sorted({row[0] for row in rows})
    node_at = {first: node for node, first in enumerate(firsts)}
    return Topology(
        node_of=tuple(node_at[row[0]] for row in rows),
        node_names=tuple(rows[r][1] for r in firsts),
        pids=tuple(row[2] for row in rows),
        cores=tuple(rows[r][3] for r in firsts),
        pid_spaces=tuple(row[4] for row in rows),
    )
