"""Start-up of groups of workers: their memory, messages within a group, and pulls that a node shares.

The memory is new in every launch; its words begin with the places at which the workers continue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.model.grouping import Groups, grouped_rows, grouped_tables, units
from mpips.model.optimizer import SGD
from mpips.mpi.contributions import Contributions
from mpips.transport.region import PULLS, SUBGROUP_SUMS, SUMS
from mpips.worker.groups.memory import (
    area_bytes,
    group_layout,
    level_bytes,
    memory_nodes,
    planned_groups,
    shared_parts,
)
from mpips.worker.groups.node_pulls import NodePulls
from mpips.worker.groups.part import GroupPart
from mpips.worker.groups.row_areas import RowAreas
from mpips.worker.groups.rows import GroupRows
from mpips.worker.sharing import share
from mpips.worker.start import JobStart, NodeBytes, Planned

_TAGS = (51, 52, 53)  # of messages within groups
_SUBGROUP_TAGS = (54, 55, 56)


def memory(job: Planned) -> list[NodeBytes]:
    """Return the memory that groups take on each node.

    See `planned_groups`. A worker whose transport shares no memory is a node of its own, with memory of its
    own for its whole group.
    """
    a, options = job.assignment, job.options
    workers = memory_nodes(a, options.transport)
    servers = [a.node_of[rank] for rank in a.servers]
    found = grouped_tables(job.declared)
    groups, subgroups = planned_groups(job.declared, options, a)
    mib = job.shares.group_rows_mib if grouped_rows(job.declared, options.sums_rows) else 0
    result = [0] * len(a.node_names)
    if not groups or not (found or mib):
        return [NodeBytes()] * len(result)
    node_of = {node: a.node_of[rank] for node, rank in zip(workers, a.workers, strict=True)}
    for level, parts in ((groups, subgroups), (subgroups, ())):
        for group in level:
            n_bytes = level_bytes(found, mib, units(group, parts))
            for node in {workers[w] for w in group}:
                result[node_of[node]] += n_bytes
    for node in node_of:
        pulled = shared_parts(found, job.placement, workers, servers, node)
        n_bytes = _native.SharedPulls.bytes_for(list(pulled.values())) if pulled else 0
        result[node_of[node]] += n_bytes
    return [NodeBytes(n) for n in result]


def connect(p: JobStart) -> None:
    """Set `p.made.grouped` and `p.made.node_pulls`. Collective; blocks.

    Raises:
        MpipsError: The first error of any rank; all ranks raise it.
    """
    if not p.groups:
        return
    upper = _Levels(p, p.groups, p.subgroups, SUMS, _TAGS).connect()
    p.made.grouped = upper
    if p.subgroups:
        lower = _Levels(p, p.subgroups, (), SUBGROUP_SUMS, _SUBGROUP_TAGS).connect()
        if lower is not None:
            p.made.grouped = replace(lower, upper=upper)
    _connect_pulls(p)


def _nodes(p: JobStart) -> list[int]:
    return memory_nodes(p.cluster.assignment, p.options.transport)


@dataclass(frozen=True)
class _Levels:
    """The levels of one kind of a job: those of all groups, or those of all subgroups.

    Attributes:
        p: Start of the job.
        groups: The workers of each level.
        subgroups: Subgroups of these workers, each of which contributes once.
        part: First part of the names of its memory.
        tags: Tags of its messages.
    """

    p: JobStart
    groups: Groups
    subgroups: Groups
    part: str
    tags: tuple[int, int, int]

    def _of(self, worker: int) -> tuple[int, ...] | None:
        """Return the workers of a worker's level; None for one that is in none."""
        return next((group for group in self.groups if worker in group), None)

    @property
    def _rows_mib(self) -> int:
        return self.p.shares.group_rows_mib if self.p.grouped_rows else 0

    def _bytes(self, group: Sequence[int]) -> int:
        parts = units(group, self.subgroups)
        return level_bytes(self.p.grouped_tables, self._rows_mib, parts)

    def connect(self) -> GroupPart | None:
        """Return the level of this rank's worker; None if it has none. Collective; blocks."""
        p, c, nodes = self.p, self.p.cluster, _nodes(self.p)
        of = [self._of(worker) for worker in range(len(nodes))]
        keys = [None if group is None else (group, nodes[w]) for w, group in enumerate(of)]
        n_bytes = [0 if group is None else self._bytes(group) for group in of]
        memory, firsts = share(
            p, self.part, "making the memory of groups of workers", keys, n_bytes
        )
        group = of[c.worker] if c.worker is not None else None
        found = None
        if group is not None:
            assert memory is not None
            found = self._part_of(group, memory, firsts)
        # Nobody reads the words before they are set.
        c.arrive("setting the words of groups of workers")
        return found

    def _part_of(
        self, group: tuple[int, ...], memory: _native.SharedMemory, firsts: Sequence[int]
    ) -> GroupPart:
        """Make this worker's end of its level, and set the words of the memory if it is the first there."""
        p, worker, places = self.p, self.p.cluster.worker, self.p.saving.places
        assert worker is not None
        parts, mib = units(group, self.subgroups), self._rows_mib
        local = [i for i, w in enumerate(group) if firsts[w] == firsts[worker]]
        begins = [places[w].clock for w in group if not places[w].finished] if places else []
        base = min(begins, default=0)
        layout = group_layout(p.grouped_tables, parts, mib > 0)
        names = [t.name for t in p.grouped_tables.values()] + ["rows"] * (mib > 0)
        rows = self._rows_of(group, memory, layout) if mib else None
        start = places[worker].clock if places else 0
        reduction = _native.Reduction(
            memory,
            layout,
            group.index(worker),
            local,
            # Updates are added up as they are: servers divide the sum of all groups.
            [(name, SGD().native(), False, 0, True) for name in names],
            p.oversubscribed,
            (start, base, False, False),
        )
        if firsts[worker] == worker:
            _set_words(p, memory, layout, reduction, group, local, base)
        return GroupPart(
            p.grouped_tables,
            group,
            group.index(worker),
            memory,
            layout,
            reduction,
            _contributions(p, reduction, memory, layout, group, firsts, rows, self.tags),
            p.warm,
            bool(places) and places[worker].finished,
            rows,
            tuple(tuple(map(group.index, unit)) for unit in parts) if self.subgroups else (),
        )

    def _rows_of(
        self, group: Sequence[int], memory: _native.SharedMemory, layout: _native.NodeLayout
    ) -> GroupRows:
        """Return this worker's end of the sums of rows."""
        parts, worker = units(group, self.subgroups), self.p.cluster.worker
        assert worker is not None
        place_of = {w: place for place, unit in enumerate(parts) for w in unit}
        areas = RowAreas(
            memory,
            layout.total_bytes,
            area_bytes(self._rows_mib, parts),
            tuple(place_of[w] for w in group),
        )
        return GroupRows(areas, self.p.grouped_rows, group.index(worker), len(group))


def _set_words(
    p: JobStart,
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
    p: JobStart,
    reduction: _native.Reduction,
    memory: _native.SharedMemory,
    layout: _native.NodeLayout,
    group: Sequence[int],
    firsts: Sequence[int],
    rows: GroupRows | None,
    tags: tuple[int, int, int],
) -> Contributions | None:
    """Return the messages to and from workers of the level on other nodes; None without such workers."""
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
        tags=tags,
        enter=c.gate.close,
    )


def _connect_pulls(p: JobStart) -> None:
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
    p.made.node_pulls = NodePulls(pulls, {key: i for i, key in enumerate(found)})
