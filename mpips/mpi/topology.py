"""Who shares a node: MPI's answer, not a guess from host names."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from mpips.mpi.exchange import exchange


@dataclass(frozen=True)
class Topology:
    """Nodes of a communicator, the same on every rank.

    Attributes:
        node_of: Node index of each rank; nodes are numbered by their lowest rank.
        node_names: Host name of each node.
        pids: Process id of each rank.
        cores: Cores of each node.
        pid_spaces: PID namespace of each rank; a pid means something only within its own. Containers may
            give every rank another.
    """

    node_of: tuple[int, ...]
    node_names: tuple[str, ...]
    pids: tuple[int, ...]
    cores: tuple[int, ...]
    pid_spaces: tuple[int, ...]

    def sees(self, rank: int, other: int) -> bool:
        """True if a rank can look at the process of another by its pid."""
        return (
            self.node_of[rank] == self.node_of[other]
            and self.pid_spaces[rank] == self.pid_spaces[other]
        )

    def oversubscribed(self, node: int) -> bool:
        """True if a node has more ranks than cores."""
        return self.node_of.count(node) > self.cores[node]


def pid_space() -> int:
    """The number of this process's PID namespace; 0 where the kernel does not tell."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def find_topology(comm: MPI.Intracomm, wait: Callable[[MPI.Request], object]) -> Topology:
    """Ask MPI which ranks share memory. Collective over `comm`; start-up only. `wait`: see `exchange`."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    first = np.array([comm.Get_rank()], np.int64)
    node.Bcast(first, root=0)
    node.Free()
    mine = (int(first[0]), socket.gethostname(), os.getpid(), os.cpu_count() or 1, pid_space())
    rows = exchange(comm, mine, wait)
    firsts = sorted({row[0] for row in rows})
    return Topology(
        node_of=tuple(firsts.index(row[0]) for row in rows),
        node_names=tuple(rows[r][1] for r in firsts),
        pids=tuple(row[2] for row in rows),
        cores=tuple(rows[r][3] for r in firsts),
        pid_spaces=tuple(row[4] for row in rows),
    )
