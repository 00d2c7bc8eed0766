"""The memory of groups of workers on each node, for mpips plan."""

from __future__ import annotations

from collections.abc import Sequence

from mpips import _native
from mpips.config.options import SessionOptions
from mpips.model.consistency import BSP
from mpips.model.grouping import (
    Groups,
    grouped_rows,
    grouped_tables,
    listed_groups,
    node_groups,
    units,
)
from mpips.model.placement import Placement
from mpips.model.table import Table
from mpips.mpi.roles import Assignment
from mpips.session.group_memory import group_bytes as memory_of_group
from mpips.session.group_memory import memory_nodes, shared_parts, shares_rows


def group_bytes(
    tables: Sequence[Table], options: SessionOptions, a: Assignment, placement: Placement
) -> list[int]:
    """Return the bytes of shared memory that groups take on each node.

    The plan assumes that topology = "auto" decides for groups, which take more memory, where a dense table
    under BSP lets it: without one it decides for none. A worker whose transport shares no memory is a node of
    its own, with memory of its own for its whole group.

    Args:
        tables: The tables that the program has declared.
        options: Options of the session.
        a: Roles of the ranks.
        placement: Shards of the servers.
    """
    workers = memory_nodes(a, options.transport)
    servers = [a.node_of[rank] for rank in a.servers]
    found = grouped_tables(tables)
    groups: Groups = ()
    subgroups: Groups = ()
    if isinstance(options.topology, tuple):
        groups, subgroups = listed_groups(options.topology, len(workers))
    elif options.topology == "node" or (
        options.topology == "auto" and any(isinstance(t.consistency, BSP) for t in found.values())
    ):
        groups = node_groups(workers)
    mib = options.group_rows_mib if grouped_rows(tables, options.group_rows_mib) else 0
    result = [0] * len(a.node_names)
    if not groups or not (found or mib):
        return result
    node_of = {node: a.node_of[rank] for node, rank in zip(workers, a.workers, strict=True)}
    for level, parts in ((groups, subgroups), (subgroups, ())):
        for group in level:
            shares = shares_rows(group, parts, workers, servers)
            n_bytes = memory_of_group(found, mib, units(group, parts), shares)
            for node in {workers[w] for w in group}:
                result[node_of[node]] += n_bytes
    for node in node_of:
        pulled = shared_parts(found, placement, workers, servers, node)
        n_bytes = _native.SharedPulls.bytes_for(list(pulled.values())) if pulled else 0
        result[node_of[node]] += n_bytes
    return result
