"""Statistics of a job from the entries of its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from mpips.scheduler.job_statistics import JobStatistics


def complete_statistics(
    servers: Iterable[Mapping[str, Any]],
    workers: Iterable[Mapping[str, Any]],
    scheduler: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the statistics of a job as its first worker has them.

    Args:
        servers: Entries of the servers, by index.
        workers: Entries of the workers, by index.
        scheduler: Statistics of the scheduler.
    """
    found = JobStatistics()
    for i, entry in enumerate(servers):
        found.add_server(i, msgspec.json.encode(entry))
    for i, entry in enumerate(workers):
        found.add_worker(i, msgspec.json.encode(entry))
    plain: dict[str, Any] = msgspec.json.decode(found.complete(scheduler))
    return plain
