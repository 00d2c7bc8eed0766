"""Start-up of groups of workers: their memory, messages within a group, and pulls that a node shares.

The memory is new in every launch; its words begin with the places at which the workers continue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.config.options import TRANSPORTS
from mpips.model.common_copy import has_common
from mpips.model.consistency import BSP
from mpips.model.optimizer import SGD
from mpips.model.placement import Placement
from mpips.model.table import DenseTable
from mpips.mpi.contributions import Contributions
from mpips.mpi.roles import Assignment
from mpips.session.parts import Parts
from mpips.session.sharing import share
from mpips.transport.region import PULLS, SUMS
from mpips.worker.group_part import GroupPart
from mpips.worker.group_rows import GroupRows
from mpips.worker.node_pulls import NodePulls
from mpips.worker.row_areas import RowAreas, areas_bytes
from mpips.worker.row_pulls import SharedRowsPart

_TAGS = (51, 52, 53)  # of messages within groups


def group_layout(
    tables: Mapping[int, DenseTable], n_members: int, has_rows: bool = False
) -> _native.NodeLayout:
    """Return the layout of the memory of a group on one node, without that for rows.

    Args:
        tables: Dense tables whose updates it sums, by index.
        n_members: Number of its workers, on all nodes.
        has_rows: It also sums rows: then a last table without elements stands for the ends of clocks.
    """
    sizes = [table.n_elements for table in tables.values()] + [0] * has_rows
    # One push of each worker: it adds up those of a clock in its own.
    return _native.NodeLayout(n_members, [(n, 0) for n in sizes], 1)


def area_bytes(rows_mib: int) -> int:
    """Return the size of the area for the rows of one worker in one clock; `rows_mib`: of the options."""
    return rows_mib << 19


def shares_rows(group: Sequence[int], nodes: Sequence[int], server_nodes: Sequence[int]) -> bool:
    """Return True if a group pulls rows once: all of it is on one node, and a server is elsewhere.

    Args:
        group: Workers of the group.
        nodes: Node of each worker.
        server_nodes: Node of each server.
    """
    node = nodes[group[0]]
    return all(nodes[w] == node for w in group) and any(n != node for n in server_nodes)


def group_bytes(
    tables: Mapping[int, DenseTable], rows_mib: int, n_members: int, shares: bool
) -> int:
    """Return the bytes of the memory of a group on one node.

    Args:
        tables: Dense tables whose updates it sums, by index.
        rows_mib: `cluster.group_rows_mib`; 0 also where the group sums no rows.
        n_members: Number of its workers, on all nodes.
        shares: It pulls rows once, if it sums rows.
    """
    dense = group_layout(tables, n_members, rows_mib > 0).total_bytes
    pushed = areas_bytes(n_members, area_bytes(rows_mib))
    return dense + pushed + (shared_bytes(rows_mib, n_members) if shares else 0)


def shared_bytes(rows_mib: int, n_members: int) -> int:
    """Return the bytes of the rows that a group pulls once."""
    return n_members * rows_mib << 20


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


def connect_groups(p: Parts) -> None:
    """Set `p.grouped` and `p.shared_pulls`. Collective; blocks.

    Raises:
        MpipsError: The first error of any rank; all ranks raise it.
    """
    if not p.groups:
        return
    _connect_group(p)
    _connect_pulls(p)


def memory_nodes(a: Assignment, transport: str) -> list[int]:
    """Return the node of each worker; one without shared memory is a node of its own, below 0."""
    shares = TRANSPORTS[transport].shares_memory
    return [a.node_of[rank] if shares else -1 - rank for rank in a.workers]


def _nodes(p: Parts) -> list[int]:
    return memory_nodes(p.cluster.assignment, p.options.transport)


def _group_of(p: Parts, worker: int | None) -> tuple[int, ...] | None:
    return next((group for group in p.groups if worker in group), None)


def _connect_group(p: Parts) -> None:
    c, a, nodes = p.cluster, p.cluster.assignment, _nodes(p)
    n_workers = len(a.workers)
    of = [_group_of(p, worker) for worker in range(n_workers)]
    has_rows = bool(p.grouped_rows)
    mib = p.options.group_rows_mib if has_rows else 0
    servers = [a.node_of[rank] for rank in a.servers]
    keys = [None if group is None else (group, nodes[w]) for w, group in enumerate(of)]
    n_bytes = [
        0
        if group is None
        else group_bytes(p.grouped_tables, mib, len(group), shares_rows(group, nodes, servers))
        for group in of
    ]
    memory, firsts = share(p, SUMS, "making the memory of groups of workers", keys, n_bytes)
    group = _group_of(p, c.worker)
    if c.worker is not None and group is not None:
        assert memory is not None
        local = [i for i, w in enumerate(group) if firsts[w] == firsts[c.worker]]
        places = p.saving.places
        base = (
            min((places[w].clock for w in group if not places[w].finished), default=0)
            if places
            else 0
        )
        layout = group_layout(p.grouped_tables, len(group), has_rows)
        names = [t.name for t in p.grouped_tables.values()] + ["rows"] * has_rows
        rows = shared = None
        if has_rows:
            areas = RowAreas(memory, layout.total_bytes, area_bytes(mib))
            rows = GroupRows(areas, p.grouped_rows, group.index(c.worker), len(group))
            if shares_rows(group, nodes, servers) and len(local) == len(group):
                shared = _shared_rows(p, memory, layout, group, servers)
        start = places[c.worker].clock if places else 0
        reduction = _native.Reduction(
            memory,
            layout,
            group.index(c.worker),
            local,
            # Updates are added up as they are: servers divide the sum of all groups.
            [(name, SGD().native(), False, 0, True) for name in names],
            p.oversubscribed,
            (start, base, False, False),
        )
        if firsts[c.worker] == c.worker:
            _set_words(p, memory, layout, reduction, group, local, base)
        p.grouped = GroupPart(
            p.grouped_tables,
            group,
            group.index(c.worker),
            memory,
            layout,
            reduction,
            _contributions(p, reduction, memory, layout, group, firsts, rows),
            p.warm,
            bool(places) and places[c.worker].finished,
            rows,
            shared,
        )
    # Nobody reads the words before they are set.
    c.arrive("setting the words of groups of workers")


def _shared_rows(
    p: Parts,
    memory: _native.SharedMemory,
    layout: _native.NodeLayout,
    group: Sequence[int],
    server_nodes: Sequence[int],
) -> SharedRowsPart:
    """Return this worker's end of the rows that its group pulls once."""
    worker, mib = p.cluster.worker, p.options.group_rows_mib
    assert worker is not None
    node = p.cluster.assignment.node_of[p.cluster.rank]
    rows = _native.SharedRows(
        memory,
        layout.total_bytes + areas_bytes(len(group), area_bytes(mib)),
        shared_bytes(mib, len(group)),
        max(table.dim for table in p.grouped_rows.values()),
        group.index(worker),
        len(group),
        p.oversubscribed,
    )
    return SharedRowsPart(rows, tuple(s for s, n in enumerate(server_nodes) if n != node))


def _set_words(
    p: Parts,
    memory: _native.SharedMemory,
    layout: _native.NodeLayout,
    reduction: _native.Reduction,
    group: Sequence[int],
    local: Sequence[int],
    base: int,
) -> None:
    """Set the words of new memory: where each worker of the group continues."""
    _native.set_local_workers(memory, layout, list(local), base)
    for number, worker in enumerate(group):
        if not p.saving.places:
            continue
        place = p.saving.places[worker]
        if place.clock:
            reduction.note_tick(number, place.clock - 1)
            reduction.note_sent(number, place.clock)
        if place.finished:
            reduction.note_finish(number, place.clock)


def _contributions(
    p: Parts,
    reduction: _native.Reduction,
    memory: _native.SharedMemory,
    layout: _native.NodeLayout,
    group: Sequence[int],
    firsts: Sequence[int],
    rows: GroupRows | None,
) -> Contributions | None:
    """Return the messages to and from workers of the group on other nodes; None if there are none."""
    c, a = p.cluster, p.cluster.assignment
    assert c.worker is not None
    shares: dict[int, list[int]] = {}
    for number, worker in enumerate(group):
        shares.setdefault(firsts[worker], []).append(number)
    if len(shares) == 1 or p.tree_comm is None:
        return None
    me, mine = list(group).index(c.worker), shares[firsts[c.worker]]
    others = [numbers for first, numbers in shares.items() if first != firsts[c.worker]]
    sizes = [table.n_elements for table in p.grouped_tables.values()]

    def room(worker: int, table: int, number: int) -> NDArray[np.uint8]:
        if rows is not None and table == len(sizes):
            return rows.room(worker, number)
        return memory.view(layout.contribution(worker, table, number), 4 * sizes[table], True)

    def receiver(sender: int, numbers: Sequence[int]) -> int:
        return numbers[sender % len(numbers)]

    return Contributions(
        p.tree_comm,
        {number: a.workers[worker] for number, worker in enumerate(group)},
        [receiver(me, numbers) for numbers in others],
        [n for numbers in others for n in numbers if receiver(n, mine) == me],
        reduction,
        room,
        ([c.name_of(a.workers[w]) for w in group], [t.name for t in p.grouped_tables.values()]),
        tags=_TAGS,
        enter=c.gate.close,
    )


def _connect_pulls(p: Parts) -> None:
    """Make the memory of the values that the workers of a node pull once. Collective; blocks."""
    c, a, nodes = p.cluster, p.cluster.assignment, _nodes(p)
    servers = [a.node_of[rank] for rank in a.servers]
    parts = {
        node: shared_parts(p.grouped_tables, p.placement, nodes, servers, node)
        for node in dict.fromkeys(nodes)
    }
    n_bytes = [_native.SharedPulls.bytes_for(list(parts[node].values())) for node in nodes]
    keys = [node if parts[node] else None for node in nodes]
    memory, firsts = share(p, PULLS, "making the memory of shared pulls", keys, n_bytes)
    if c.worker is None or memory is None or firsts.count(firsts[c.worker]) < 2:
        return
    found = parts[nodes[c.worker]]
    pulls = _native.SharedPulls(
        memory, list(found.values()), c.worker, len(a.workers), p.oversubscribed
    )
    p.shared_pulls = NodePulls(pulls, {key: i for i, key in enumerate(found)})
