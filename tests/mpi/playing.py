"""Shared parts of the MPI tests: size of the launch, results of a session, data that every rank can make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpips.mpi.launch import launched_size

SIZE = launched_size()


@dataclass
class Played:
    """The results of a session on every rank: `values` by worker, the statistics, `roles` by rank."""

    values: list[Any]
    statistics: dict[str, Any]
    roles: list[str]
    transports: Mapping[str, int]

    def server_total(self, table: str, what: str) -> int:
        """Return a statistic of a table, summed over servers."""
        return sum(server["tables"][table][what] for server in self.statistics["servers"])

    def worker_total(self, what: str) -> int:
        """Return a statistic of pushes, summed over workers."""
        return sum(worker["pushes"][what] for worker in self.statistics["workers"])


Session = Callable[..., Played]


def workers_with(servers: int) -> int:
    """Return the number of workers of this launch with this number of servers."""
    return 1 if SIZE <= 2 else SIZE - 1 - servers


def noise(worker: int, clock: int, length: int) -> np.ndarray:
    """Return float32 values whose sum depends on the order of its terms; equal on all ranks."""
    random = np.random.default_rng([worker, clock, length])
    values = random.normal(size=length) * 10.0 ** random.integers(-4, 5, size=length)
    return values.astype(np.float32)


def counts(worker: int, clock: int, shape: int | tuple[int, ...]) -> np.ndarray:
    """Return small whole numbers in float32, whose sums are exact; equal on all ranks."""
    return np.random.default_rng([worker, clock]).integers(-8, 9, size=shape).astype(np.float32)


def mapped(name: str) -> int:
    """Return the number of this process's mappings of shared memory whose part begins with `name`."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum("/dev/shm/mpips" in line and f"-{name}" in line for line in lines)
