"""What the MPI tests share: the size of the launch, what a session gave, data that everybody can make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpips.mpi.launch import launched_size

SIZE = launched_size()


@dataclass
class Played:
    """A session as every rank knows it: `values` by worker, the statistics, `roles` by rank."""

    values: list[Any]
    statistics: dict[str, Any]
    roles: list[str]
    transports: list[list[str]]

    def server_total(self, table: str, what: str) -> int:
        """A statistic of a table, summed over servers."""
        return sum(server["tables"][table][what] for server in self.statistics["servers"])

    def worker_total(self, what: str) -> int:
        """A statistic of pushes, summed over workers."""
        return sum(worker["pushes"][what] for worker in self.statistics["workers"])


Session = Callable[..., Played]


def workers_with(servers: int) -> int:
    """Workers of this launch with so many servers."""
    return 1 if SIZE <= 2 else SIZE - 1 - servers


def noise(worker: int, clock: int, length: int) -> np.ndarray:
    """float32 whose sum depends on the order of its terms; the same for everyone who asks."""
    random = np.random.default_rng([worker, clock, length])
    values = random.normal(size=length) * 10.0 ** random.integers(-4, 5, size=length)
    return values.astype(np.float32)


def counts(worker: int, clock: int, shape: int | tuple[int, ...]) -> np.ndarray:
    """Small whole numbers in float32, whose sums are exact; the same for everyone who asks."""
    return np.random.default_rng([worker, clock]).integers(-8, 9, size=shape).astype(np.float32)
