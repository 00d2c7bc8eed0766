"""Decisions at the start of a job: placement = "auto", codecs that are Auto(...), groups of workers.

See mpips.model.auto_placement, auto_codec and grouping for the rules. All ranks measure: copies in memory
and codecs, all at the same time, and messages from each node to the next. The slowest rank and node count.
The decision is arithmetic on numbers that all ranks have received, so it is the same everywhere. A run
directory stores it, and a later attempt of the run with the same tables and as many workers and servers on
its nodes uses it again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from mpips import _native
from mpips.config.options import TRANSPORTS, SessionOptions
from mpips.errors import ConfigError
from mpips.model.auto_codec import (
    CodecSpeed,
    choose_codecs,
    decided_alone,
    encoded,
    listed_codecs,
)
from mpips.model.auto_placement import Site, auto_tables, choose_placement, placed
from mpips.model.codec import Auto, Codec, codec_of, to_config
from mpips.model.grouping import (
    Groups,
    check_grouped,
    choose_groups,
    grouped_rows,
    grouped_tables,
    listed_groups,
    node_groups,
    units,
)
from mpips.model.job_tables import fingerprint
from mpips.model.stages import has_stages
from mpips.mpi.one_rank import OneRank, Ranks
from mpips.rundir.directory import Supervised, read_json, replace_json
from mpips.rundir.files import PlacementChoice
from mpips.transport.region import SHM

if TYPE_CHECKING:
    from mpips.model.table import Table
    from mpips.mpi.cluster import Cluster

_COPY_BYTES = 8 << 20
_MESSAGE_BYTES = 4 << 20
_CODEC_VALUES = 1 << 20
_REPETITIONS = 3
_TAG = 49
_WHAT = "measuring bandwidths for placement = 'auto', Auto codecs or topology = 'auto'"


class Decided(NamedTuple):
    """The decision of start-up.

    Attributes:
        tables: All tables, none with placement "auto" or an Auto codec.
        groups: Workers of each group whose updates are summed before they are sent.
        subgroups: Workers of each subgroup of a group.
        notes: Sentences for people.
    """

    tables: list[Table]
    groups: Groups
    subgroups: Groups
    notes: list[str]


def place_auto(
    ranks: Ranks,
    tables: Sequence[Table],
    options: SessionOptions,
    run: Supervised | None,
    warm: bool,
) -> Decided:
    """Decide about placement = "auto", codecs that are Auto, and groups of workers. Collective; blocks.

    Args:
        ranks: All ranks; with one there is nothing to choose.
        tables: All tables of the job; the same on every rank.
        options: Options of the session; the same on every rank.
        run: The supervised run of which this launch is an attempt.
        warm: The servers of a supervised run leave their memory to the next launch.

    Raises:
        ConfigError: `options.topology` does not fit the job.
    """
    if isinstance(ranks, OneRank):
        return Decided(decided_alone(tables), (), (), [])
    found, cluster = list(tables), ranks
    options = _flat_with_stages(found, options)
    if not auto_tables(found) and not listed_codecs(found) and options.topology == "flat":
        return Decided(found, (), (), [])
    if options.topology not in ("flat", "auto"):
        topology = options.topology
        text = (
            repr(topology) if isinstance(topology, str) else msgspec.json.encode(topology).decode()
        )
        check_grouped(grouped_tables(found), grouped_rows(found, options.sums_rows), text)
    digest = _digest(found, options, cluster)
    choice = _stored(cluster, run, digest, found)
    if choice is not None:
        notes = [f"as before in this run: {r}" for r in choice.reasons]
        return Decided(_applied(found, choice), choice.groups, choice.subgroups, notes)
    choice = _decide(cluster, found, digest, options, warm and run is not None)
    notes = [*choice.reasons, *_store(cluster, run, choice)]
    return Decided(_applied(found, choice), choice.groups, choice.subgroups, notes)


def _flat_with_stages(tables: Sequence[Table], options: SessionOptions) -> SessionOptions:
    """Return options with topology "flat" in place of "auto" where tables belong to stages of the model.

    Raises:
        ConfigError: Another topology is set there.
    """
    if options.topology == "flat" or not has_stages(tables):
        return options
    if options.topology != "auto":
        raise ConfigError(
            f"cluster.topology = {options.topology!r} with tables that belong to stages of the model: a "
            "group sums the updates of workers with different stages; use 'flat'"
        )
    return msgspec.structs.replace(options, topology="flat")


def _decide(
    cluster: Cluster,
    tables: Sequence[Table],
    digest: str,
    options: SessionOptions,
    durable: bool,
) -> PlacementChoice:
    """Measure, and apply the rules. Collective."""
    shares_memory = TRANSPORTS[options.transport].shares_memory
    site, speeds = _measured(cluster, shares_memory, listed_codecs(tables), durable)
    placements = choose_placement(tables, site)
    groups, subgroups, why = _groups(options, placed(tables, placements.replicated), site)
    codecs = choose_codecs(tables, site, speeds)
    reasons = [placements.reason] if auto_tables(tables) else []
    plain = {
        name: {kind: to_config(codec) for kind, codec in chosen.items()}
        for name, chosen in codecs.codecs.items()
    }
    return PlacementChoice(
        digest=digest,
        replicated=placements.replicated,
        reasons=(*reasons, *codecs.reasons, *why),
        codecs=plain,
        groups=groups,
        subgroups=subgroups,
    )


def _groups(
    options: SessionOptions, tables: Sequence[Table], site: Site
) -> tuple[Groups, Groups, list[str]]:
    """Return the groups of workers, their subgroups, and why."""
    topology, n_workers = options.topology, len(site.worker_nodes)
    subgroups: Groups = ()
    if topology == "flat":
        return (), (), []
    if topology == "auto":
        groups, reason = choose_groups(grouped_tables(tables), site)
        return groups, (), [reason]
    if topology == "node":
        groups = node_groups(site.worker_nodes)
        if not groups:
            return (), (), ["topology = 'node': no node has several workers, so none are grouped"]
    else:
        groups, subgroups = listed_groups(topology, n_workers)
    rows = grouped_rows(tables, options.sums_rows)
    if groups and not grouped_tables(tables) and not rows:
        return (
            (),
            (),
            ["topology: flat, since placement = 'auto' has left no dense table on servers"],
        )
    return groups, subgroups, []


def _applied(tables: Sequence[Table], choice: PlacementChoice) -> list[Table]:
    """Return the tables as decided."""

    def codec(name: str, kind: str) -> Codec | None:
        found = codec_of(choice.codecs[name][kind])
        assert not isinstance(found, Auto)
        return found

    return encoded(placed(tables, choice.replicated), codec)


def _nodes(cluster: Cluster, shares_memory: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the node of each worker and of each server. A rank without shared memory is a node."""
    a = cluster.assignment
    node_of = a.node_of if shares_memory else tuple(range(cluster.size))
    return tuple(node_of[rank] for rank in a.workers), tuple(node_of[rank] for rank in a.servers)


def _digest(tables: Sequence[Table], options: SessionOptions, cluster: Cluster) -> str:
    """Return a digest of what makes a decision void: other tables, another topology, other numbers of ranks.

    A decision stays when the ranks spread over nodes differently, for example after the loss of a node: the
    memory in which the run continues is of these codecs.
    """
    a = cluster.assignment
    topology = "" if options.topology == "flat" else f" {options.topology}"
    text = fingerprint(list(tables), f"{len(a.workers)} {len(a.servers)}{topology}")
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _fits(choice: PlacementChoice, tables: Sequence[Table], n_workers: int) -> bool:
    """Return False for a decision that was changed so that it cannot be applied."""
    try:
        _applied(tables, choice)
        nested = [units(group, choice.subgroups) for group in choice.groups]
        return listed_groups(nested, n_workers) == (choice.groups, choice.subgroups)
    except (ConfigError, KeyError):
        return False


def _stored(
    cluster: Cluster, run: Supervised | None, digest: str, tables: Sequence[Table]
) -> PlacementChoice | None:
    """Return the decision of an earlier attempt, or None. Collective."""
    n_workers = len(cluster.assignment.workers)

    def read() -> dict[str, Any] | None:
        if run is None or not cluster.is_scheduler:
            return None
        try:
            found = read_json(run.folder.placement_file, PlacementChoice)
        except ConfigError:
            return None  # damaged: decide anew
        if found is None or found.digest != digest or not _fits(found, tables, n_workers):
            return None
        plain: dict[str, Any] = msgspec.to_builtins(found)
        return plain

    if run is None:
        return None
    rows = cluster.agree("reading placement.json", read)
    row = next((row for row in rows if row is not None), None)
    return None if row is None else msgspec.convert(row, PlacementChoice)


def _store(cluster: Cluster, run: Supervised | None, choice: PlacementChoice) -> list[str]:
    """Write the decision into the run directory; return notes for people. Collective."""

    def write() -> str:
        if run is None or not cluster.is_scheduler:
            return ""
        path = run.folder.placement_file
        try:
            replace_json(path, choice, durable=True)
        except OSError as error:
            return f"{path}: cannot be written ({error.strerror}): a restart decides anew"
        return ""

    if run is None:
        return []
    return [note for note in cluster.agree("writing placement.json", write) if note]


def _measured(
    cluster: Cluster, shares_memory: bool, codecs: Sequence[Codec], durable: bool
) -> tuple[Site, dict[Codec, CodecSpeed]]:
    """Measure bandwidths and codecs. Collective; takes some milliseconds."""
    worker_nodes, server_nodes = _nodes(cluster, shares_memory)
    cluster.arrive(_WHAT)
    network = _message_rate(cluster, worker_nodes, server_nodes)

    def report() -> list[Any]:
        # All ranks do this at the same time, as in a step.
        room = _room(cluster, shares_memory) if cluster.worker is not None else None
        return [_copy_rate(), network, room, [_codec_speed(codec) for codec in codecs]]

    rows = cluster.agree(_WHAT, report)
    site = Site(
        worker_nodes,
        server_nodes,
        min(row[0] for row in rows),
        min((row[1] for row in rows if row[1] is not None), default=float("inf")),
        min((row[2] for row in rows if row[2] is not None), default=0),
        durable,
    )
    slowest = {
        codec: CodecSpeed(min(row[3][i][0] for row in rows), min(row[3][i][1] for row in rows))
        for i, codec in enumerate(codecs)
    }
    return site, slowest


def _codec_speed(codec: Codec) -> tuple[float, float]:
    """Return the values per second that this process encodes and decodes."""
    native, n = codec.native(), _CODEC_VALUES
    values = np.linspace(-1, 1, n, dtype=np.float32)
    best = [float("inf"), float("inf")]
    for _ in range(_REPETITIONS):
        start = time.perf_counter()
        codes = _native.encode(native, values, 0, n, 1)
        middle = time.perf_counter()
        _native.decode(native, codes, 0, values)
        best = [min(best[0], middle - start), min(best[1], time.perf_counter() - middle)]
    return n / best[0], n / best[1]


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


def _room(cluster: Cluster, shares_memory: bool) -> int:
    """Return the free shared memory of this node, for each copy of the replicated tables that lies there."""
    try:
        space = os.statvfs(SHM)
    except OSError:
        return 0
    a = cluster.assignment
    here = a.node_of[cluster.rank]
    copies = 1 if shares_memory else sum(a.node_of[rank] == here for rank in a.workers)
    return space.f_frsize * space.f_bavail // copies
