"""The decision about tables with placement = "auto" at the start of a job; see mpips.model.auto_placement.

All ranks measure: copies in memory, all at the same time, and messages from each node to the next. The
slowest rank and node count. The decision is arithmetic on numbers that all ranks have received, so it is the
same everywhere. A run directory stores it, and a later attempt of the run with the same tables and as many
workers and servers on its nodes uses it again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpips.config.options import TRANSPORTS, SessionOptions
from mpips.errors import ConfigError
from mpips.model.auto_placement import Choice, Site, auto_tables, choose_placement, placed
from mpips.model.table import Table, fingerprint, replicated_tables
from mpips.mpi.cluster import Cluster
from mpips.rundir.directory import Supervised, read_json, replace_json
from mpips.rundir.files import PlacementChoice
from mpips.transport.region import SHM

_COPY_BYTES = 8 << 20
_MESSAGE_BYTES = 4 << 20
_REPETITIONS = 3
_TAG = 49
_WHAT = "measuring bandwidths for placement = 'auto'"
_WARM = (
    "placement = 'auto': all tables on servers, since this run continues in memory after a failure, which "
    "replicated tables do not"
)


def place_auto(
    cluster: Cluster,
    tables: Sequence[Table],
    options: SessionOptions,
    run: Supervised | None,
    warm: bool,
) -> tuple[list[Table], list[str]]:
    """Decide about the tables whose placement is "auto". Collective; blocks.

    Args:
        cluster: All ranks.
        tables: All tables of the job; the same on every rank.
        options: Options of the session; the same on every rank.
        run: The supervised run of which this launch is an attempt.
        warm: The servers of a supervised run leave their memory to the next launch.

    Returns:
        All tables, none with "auto"; and notes for people.
    """
    if not auto_tables(tables):
        return list(tables), []
    # A job that has replicated tables anyway does not continue in memory.
    if warm and run is not None and not replicated_tables(tables):
        return placed(tables, ()), [_WARM]
    nodes = _nodes(cluster, TRANSPORTS[options.transport].shares_memory)
    digest = _digest(tables, nodes)
    stored = _stored(cluster, run, digest)
    if stored is None:
        choice = choose_placement(tables, _measured(cluster, *nodes))
        notes = [choice.reason, *_store(cluster, run, digest, choice)]
        return placed(tables, choice.replicated), notes
    count = f"{len(stored)} of {len(auto_tables(tables))} tables replicated"
    return placed(tables, stored), [f"placement = 'auto': {count}, as the run has decided before"]


def _nodes(cluster: Cluster, shares_memory: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the node of each worker and of each server. A rank without shared memory is a node."""
    a = cluster.assignment
    node_of = a.node_of if shares_memory else tuple(range(cluster.size))
    return tuple(node_of[rank] for rank in a.workers), tuple(node_of[rank] for rank in a.servers)


def _digest(tables: Sequence[Table], nodes: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
    """Return a digest of what a decision depends on but for the bandwidths."""
    workers, servers = nodes
    counts = sorted((workers.count(n), servers.count(n)) for n in {*workers, *servers})
    text = fingerprint(list(tables), repr(counts))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _stored(cluster: Cluster, run: Supervised | None, digest: str) -> list[str] | None:
    """Return the tables that an earlier attempt has replicated; None if none has decided. Collective."""

    def read() -> list[str] | None:
        if run is None or not cluster.is_scheduler:
            return None
        try:
            found = read_json(run.folder.placement_file, PlacementChoice)
        except ConfigError:
            return None  # a damaged file is replaced: values do not depend on the decision
        return list(found.replicated) if found is not None and found.digest == digest else None

    if run is None:
        return None
    rows = cluster.agree("reading placement.json", read)
    return next((row for row in rows if row is not None), None)


def _store(cluster: Cluster, run: Supervised | None, digest: str, choice: Choice) -> list[str]:
    """Write the decision into the run directory; return notes for people. Collective."""

    def write() -> str:
        if run is None or not cluster.is_scheduler:
            return ""
        value = PlacementChoice(digest=digest, replicated=choice.replicated, reason=choice.reason)
        try:
            replace_json(run.folder.placement_file, value, durable=True)
        except OSError as error:
            path = run.folder.placement_file
            return f"{path}: cannot be written ({error.strerror}): a restart decides about placement anew"
        return ""

    return (
        [n for n in cluster.agree("writing placement.json", write) if n] if run is not None else []
    )


def _measured(
    cluster: Cluster, worker_nodes: tuple[int, ...], server_nodes: tuple[int, ...]
) -> Site:
    """Measure the bandwidths. Collective; takes some milliseconds."""
    cluster.arrive(_WHAT)
    memory = _copy_rate()
    network = _message_rate(cluster, worker_nodes, server_nodes)

    def report() -> list[Any]:
        return [memory, network, _free_bytes() if cluster.worker is not None else None]

    rows = cluster.agree(_WHAT, report)
    return Site(
        worker_nodes,
        server_nodes,
        min(row[0] for row in rows),
        min((row[1] for row in rows if row[1] is not None), default=float("inf")),
        min((row[2] for row in rows if row[2] is not None), default=0),
    )


def _copy_rate() -> float:
    """Return the bytes per second that this process reads and writes while it copies."""
    source, target = np.ones(_COPY_BYTES, np.uint8), np.zeros(_COPY_BYTES, np.uint8)
    best = float("inf")
    for _ in range(_REPETITIONS):
        start = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - start)
    return 2 * _COPY_BYTES / best


def _message_rate(
    cluster: Cluster, worker_nodes: Sequence[int], server_nodes: Sequence[int]
) -> float | None:
    """Return the bytes per second from this node to the next; None on other ranks. Collective."""
    a = cluster.assignment
    first: dict[int, int] = {}
    for node, rank in zip((*worker_nodes, *server_nodes), (*a.workers, *a.servers), strict=True):
        first.setdefault(node, rank)
    ring = list(first.values())
    best = None
    if len(ring) > 1 and cluster.rank in ring:
        place = ring.index(cluster.rank)
        after, before = ring[(place + 1) % len(ring)], ring[place - 1]
        sent, received = np.ones(_MESSAGE_BYTES, np.uint8), np.zeros(_MESSAGE_BYTES, np.uint8)
        seconds = float("inf")
        for _ in range(_REPETITIONS):
            start = time.perf_counter()
            requests = [
                cluster.comm.Irecv(received, before, _TAG),
                cluster.comm.Isend(sent, after, _TAG),
            ]
            for request in requests:
                cluster.complete(_WHAT, request)
            seconds = min(seconds, time.perf_counter() - start)
        best = _MESSAGE_BYTES / seconds
    cluster.arrive(_WHAT)
    return best


def _free_bytes() -> int:
    """Return the free shared memory of this node."""
    try:
        space = os.statvfs(SHM)
    except OSError:
        return 0
    return space.f_frsize * space.f_bavail
