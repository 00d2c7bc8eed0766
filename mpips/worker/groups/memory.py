"""The memory of groups of workers: layouts and sizes, for start-up and for `mpips plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mpips import _native
from mpips.config.options import TRANSPORTS
from mpips.model.common_copy import has_common
from mpips.model.consistency import BSP
from mpips.model.grouping import Groups, grouped_tables, listed_groups, node_groups
from mpips.worker.groups.row_areas import areas_bytes

if TYPE_CHECKING:
    from mpips.config.options import SessionOptions
    from mpips.model.placement import Placement
    from mpips.model.table import DenseTable, Table
    from mpips.mpi.roles import Assignment


def memory_nodes(a: Assignment, transport: str) -> list[int]:
    """Return the node of each worker; one without shared memory is a node of its own, below 0."""
    shares = TRANSPORTS[transport].shares_memory
    return [a.node_of[rank] if shares else -1 - rank for rank in a.workers]


def group_layout(
    tables: Mapping[int, DenseTable], level_units: Sequence[Sequence[int]], has_rows: bool = False
) -> _native.NodeLayout:
    """Return the layout of the memory of one level of a group on one node, without that for rows.

    Args:
        tables: Dense tables whose updates it sums, by index.
        level_units: Its workers on all nodes, of each unit those of which one contributes in a clock.
        has_rows: It also sums rows: then a last table without elements stands for the ends of clocks.
    """
    sizes = [table.n_elements for table in tables.values()] + [0] * has_rows
    place_of = {w: place for place, unit in enumerate(level_units) for w in unit}
    places = [place_of[worker] for worker in sorted(place_of)]
    # One push of each worker: it adds up those of a clock in its own.
    return _native.NodeLayout(len(places), [(n, 0) for n in sizes], 1, False, places)


def area_bytes(rows_mib: int, level_units: Sequence[Sequence[int]]) -> int:
    """Return the size of the area for the rows of one contribution in one clock.

    Args:
        rows_mib: `BufferShares.group_rows_mib`.
        level_units: As for `group_layout`. The sums of a unit have room for the rows of all its workers.
    """
    return max(len(unit) for unit in level_units) * rows_mib << 19


def row_bytes(rows_mib: int, level_units: Sequence[Sequence[int]]) -> int:
    """Return the bytes for rows in the memory of one level of a group on one node; see `area_bytes`."""
    return areas_bytes(len(level_units), area_bytes(rows_mib, level_units))


def planned_groups(
    declared: Sequence[Table], options: SessionOptions, a: Assignment
) -> tuple[Groups, Groups]:
    """Return the groups of workers that a plan assumes, and their subgroups.

    The plan assumes that topology = "auto" decides for groups, which take more memory, where a dense table
    under BSP lets it: without one it decides for none.

    Raises:
        ConfigError: The options list a worker that does not exist, or one twice.
    """
    workers = memory_nodes(a, options.transport)
    if isinstance(options.topology, tuple):
        return listed_groups(options.topology, len(workers))
    sums_dense = any(
        isinstance(table.consistency, BSP) for table in grouped_tables(declared).values()
    )
    if options.topology == "node" or (options.topology == "auto" and sums_dense):
        return node_groups(workers), ()
    return (), ()


def level_bytes(
    tables: Mapping[int, DenseTable],
    rows_mib: int,
    level_units: Sequence[Sequence[int]],
) -> int:
    """Return the bytes of the memory of one level of a group on one node.

    Args:
        tables: Dense tables whose updates it sums, by index.
        rows_mib: `BufferShares.group_rows_mib`; also 0 for a group that sums no rows.
        level_units: As for `group_layout`.
    """
    dense = group_layout(tables, level_units, rows_mib > 0).total_bytes
    return dense + row_bytes(rows_mib, level_units)


def shared_parts(
    tables: Mapping[int, DenseTable],
    placement: Placement,
    worker_nodes: Sequence[int],
    server_nodes: Sequence[int],
    node: int,
) -> dict[tuple[int, int], int]:
    """Return the parts of tables that the workers of a node pull once, by table and server.

    Where pulls are differences, each worker needs a copy of its own, and pulls by itself. Under SSP and ASP
    there is no one value of a clock to share.

    Args:
        tables: Tables whose updates groups sum, by index.
        placement: Shards of the servers.
        worker_nodes: Node of each worker.
        server_nodes: Node of each server.
        node: The node.

    Returns:
        Number of values of each part on a server of another node; {} for a node with one worker.
    """
    if worker_nodes.count(node) < 2:
        return {}
    return {
        (index, part.server): part.stop - part.start
        for index, table in tables.items()
        for part in placement.dense[table.name]
        if isinstance(table.consistency, BSP)
        and server_nodes[part.server] != node
        and not has_common(table)
    }
