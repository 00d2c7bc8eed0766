"""The statistics of a job: the entry of every rank that has finished, and their totals.

The entries of all ranks together grow with the number of ranks. So they go to one rank, that of the first
worker, and stay on the scheduler's. All other ranks get the totals, whose size does not depend on the number
of ranks, and add their own entry.

    first worker, scheduler   {"totals": ..., "scheduler": ..., "servers": [...], "workers": [...]}
    every other rank          {"totals": ..., "scheduler": ..., "own": entry of this rank}

The totals have the keys of the entries: {"servers": {"number": ..., "tables": ...}, "workers":
{"number": ..., "pushes": ...}}.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

# Values of which the totals contain the greatest; of other numbers they contain the sum.
_GREATEST = frozenset(("clock", "version", "max_staleness", "longest_copy_s", "longest_hold_s"))
_INDICES = frozenset(("server", "worker"))  # numbers of servers and workers, which have no total
# The last checkpoint, which is equal on all servers, and decisions on numbers that follow measurements: from
# server 0.
_OF_THE_JOB = ("checkpoint", "bounds", "backups", "switch")


class JobStatistics:
    """Collects the statistics of all servers and workers. One per job, on the scheduler's rank."""

    def __init__(self) -> None:
        """Begin without entries."""
        self._servers: dict[int, bytes] = {}
        self._workers: dict[int, bytes] = {}
        self._totals: dict[str, dict[str, Any]] = {
            "servers": {"number": 0},
            "workers": {"number": 0},
        }

    def add_server(self, server: int, entry: bytes) -> None:
        """Add the statistics of a server of this index, as JSON."""
        self._servers[server] = entry
        plain = msgspec.json.decode(entry)
        of_the_job = {key: plain.pop(key, None) for key in _OF_THE_JOB}
        self._add("servers", plain)
        if server == 0:
            known = {key: value for key, value in of_the_job.items() if value is not None}
            self._totals["servers"].update(known)

    def add_worker(self, worker: int, entry: bytes) -> None:
        """Add the statistics of a worker of this index, as JSON."""
        self._workers[worker] = entry
        plain = msgspec.json.decode(entry)
        plain.pop("without_clock", None)  # text, in the entries of workers only
        self._add("workers", plain)

    def _add(self, role: str, entry: Mapping[str, Any]) -> None:
        total = self._totals[role]
        total["number"] += 1
        _add(total, entry)

    def brief(self, scheduler: Mapping[str, Any]) -> bytes:
        """Return the statistics for most ranks as JSON: totals, and the scheduler's own."""
        return msgspec.json.encode({"totals": self._totals, "scheduler": scheduler})

    def complete(self, scheduler: Mapping[str, Any]) -> bytes:
        """Return the statistics with the entries of all servers and workers, by index, as JSON."""
        return msgspec.json.encode(
            {
                "totals": self._totals,
                "servers": [msgspec.Raw(self._servers[i]) for i in sorted(self._servers)],
                "workers": [msgspec.Raw(self._workers[i]) for i in sorted(self._workers)],
                "scheduler": scheduler,
            }
        )


def _add(total: dict[str, Any], entry: Mapping[str, Any]) -> None:
    """Add an entry to a total, key by key."""
    for key, value in entry.items():
        if key in _INDICES:
            continue
        if isinstance(value, dict):
            _add(total.setdefault(key, {}), value)
        elif isinstance(value, list):
            before = total.get(key) or [0] * len(value)
            total[key] = [a + b for a, b in zip(before, value, strict=True)]
        elif key in _GREATEST:
            total[key] = max(total.get(key, value), value)
        else:
            total[key] = total.get(key, 0) + value


def last_checkpoint(statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry on the checkpoint at the end of a job, on any rank; {} if the job had none.

    Args:
        statistics: Statistics of the job, as in `Outcome.statistics`.
    """
    found: dict[str, Any] = statistics["totals"]["servers"].get("checkpoint") or {}
    return found


def is_saved(statistics: Mapping[str, Any]) -> bool:
    """Return False if the checkpoint at the end of a job failed, else True; a job may have none.

    Args:
        statistics: Statistics of the job, as in `Outcome.statistics`.
    """
    return "error" not in last_checkpoint(statistics)
