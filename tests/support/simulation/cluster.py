"""The ranks of a launch as start-up sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

from mpips.mpi import cluster as cluster_module
from mpips.mpi.cluster import Cluster
from mpips.mpi.roles import Assignment
from simulation.comm import Comm


def _unbounded(*_: object) -> AbstractContextManager[None]:
    return nullcontext()


class SimulatedCluster(Cluster):
    """One rank's cluster. Its collective calls are those of mpips, over a communicator of the simulation."""

    def __init__(self, comm: Comm, assignment: Assignment, token: str) -> None:
        self.comm: Any = comm
        self.rank, self.size, self.token = comm.rank, comm.size, token
        self.assignment = assignment
        self._run = None
        self.watchdog: Any = SimpleNamespace(guard=_unbounded, thread_guard=_unbounded)
        self.gate: Any = SimpleNamespace(close=lambda: None, open=lambda: None)
        self._attendance: Any = SimpleNamespace(
            lengthy=_unbounded, wait=lambda request, what: request.Wait()
        )
        # Each node has more ranks than cores, so no wait spins.
        self.topology: Any = SimpleNamespace(
            node_of=assignment.node_of,
            oversubscribed=lambda node: True,
            cores=[1] * len(assignment.node_names),
        )

    def duplicate(self, what: str) -> Any:
        """Return a duplicate of the communicator."""
        return self.comm.duplicate()

    def arrive(
        self, what: str, phase: str = "", meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        """Wait until all ranks have called this."""
        self.comm.gathered(None)


def _exchange(comm: Comm, value: Any, wait: object) -> list[Any]:
    return comm.gathered(value)


def _deliver(comm: Comm, values: Mapping[int, Any], wait: object) -> dict[int, Any]:
    rows = comm.gathered(dict(values))
    return {source: row[comm.rank] for source, row in enumerate(rows) if comm.rank in row}


@contextmanager
def simulated_exchanges() -> Iterator[None]:
    """Within the block clusters exchange values over communicators of the simulation."""
    with (
        mock.patch.object(cluster_module, "exchange", _exchange),
        mock.patch.object(cluster_module, "deliver", _deliver),
    ):
        yield
