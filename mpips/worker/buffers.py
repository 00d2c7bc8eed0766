"""Division of the shared memory that buffers take on a node: the one source for start-up, plan and doctor.

Five kinds of buffers are in shared memory beside the tables. Each has a default size.

    rings               of all workers at one server             512 MiB at most
    rendezvous buffers  of one server, for workers elsewhere     256 MiB at most
    staging memory      of one worker                           1024 MiB
    rows of groups      of one worker in a group                  16 MiB
    rows of a node      of one worker that has others beside it   16 MiB

With `cluster.node_buffers_mib` the sizes are the largest ones with which no node exceeds this budget. They
are points of one path, whose parameter is `level`:

    0 to UNIT           all sizes grow in proportion, from the least ones with which a job can run
    UNIT to 2 UNIT      staging memory grows beyond what updates of the tables fill
    2 UNIT              the defaults
    beyond              all sizes grow in proportion

Sizes that the options state stay as they are. Every size grows with the level, and so does the need of a
node: a bisection finds the level. All of it is arithmetic on whole numbers that all ranks have, so it is the
same on all ranks, and in a plan. Memory that has the size of tables, such as journals, copies and the sums of
groups, belongs to the tables and not to the budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from mpips import _native
from mpips.errors import ConfigError
from mpips.model.buffers import BufferShares
from mpips.model.grouping import Groups, grouped_rows, units
from mpips.model.placement import (
    AREA_FROM_BYTES,
    RINGS_BYTES,
    area_bytes,
    ring_geometry,
    shard_sizes,
)
from mpips.model.table import Table
from mpips.mpi.roles import Assignment, alone
from mpips.terminal.units import binary_size
from mpips.worker.groups.memory import memory_nodes, row_bytes
from mpips.worker.node_rows.start import sharing_workers

if TYPE_CHECKING:
    from mpips.config.options import SessionOptions

UNIT = 1 << 10
_MOST = UNIT << 14  # level at which the search ends
_RENDEZVOUS_BYTES = 256 << 20
_STAGING_MIB, _GROUP_ROWS_MIB, _NODE_ROWS_MIB = 1024, 16, 16
# Updates take half of the staging memory, with two buffers for each table. A script of torch allocates three
# buffers for each.
_STAGED_COPIES = 4


class NodeBuffers(NamedTuple):
    """The most that the buffers of one node take, in bytes of shared memory.

    Attributes:
        rings: Rings of all workers at the node's servers, with reply slots and heads.
        rendezvous: Rendezvous buffers of the node's servers for workers on other nodes.
        staging: Staging memory of the node's workers.
        group_rows: Memory of groups for rows that are pushed, of all groups with workers on the node.
        node_rows: Memory for rows that the node's workers read for each other; taken at its first use.
    """

    rings: int
    rendezvous: int
    staging: int
    group_rows: int
    node_rows: int

    @property
    def total(self) -> int:
        """Bytes of all buffers together."""
        return sum(self)


def buffers_alone(
    declared: Sequence[Table], tables: Sequence[Table], options: SessionOptions
) -> JobBuffers:
    """Return the buffers of a job of one process; arguments as for `JobBuffers`."""
    return JobBuffers(declared, tables, options, alone("this node"), ((), ()))


class _Server(NamedTuple):
    """A server, as far as its rendezvous buffers depend on it.

    Attributes:
        n_remote: Workers that do not use its shared memory.
        large: Bytes of the smallest and of the largest of its parts that have such buffers; () for none.
    """

    n_remote: int
    large: tuple[int, ...]


class _Node(NamedTuple):
    """A node, as far as its buffers depend on it; many nodes of a job are equal.

    Attributes:
        servers: Its servers, sorted.
        n_workers: Number of its workers.
        group_rows: Bytes of the rows of its groups for each MiB of a worker.
        n_sharing: Workers that read rows for each other.
    """

    servers: tuple[_Server, ...]
    n_workers: int
    group_rows: int
    n_sharing: int


class JobBuffers:
    """The buffers of a job before it starts. Arithmetic only; the same on all ranks.

    Attributes:
        names: Name of each node.
    """

    def __init__(
        self,
        declared: Sequence[Table],
        tables: Sequence[Table],
        options: SessionOptions,
        a: Assignment,
        groups: tuple[Groups, Groups],
        has_partners: bool = False,
    ) -> None:
        """Take the job; what needs buffers on a node is counted when it is first asked for.

        Args:
            declared: All tables of the job as the program declares them.
            tables: All tables as servers have them.
            options: Options of the session.
            a: Roles of the ranks.
            groups: Groups of workers and their subgroups, as decided or as planned.
            has_partners: Servers have replicas. All updates then go through rings, so there are neither
                rendezvous buffers nor staging memory.
        """
        self._declared, self._tables, self._options = declared, list(tables), options
        self._assignment, self._groups = a, groups
        self.names, self._n_workers = a.node_names, len(a.workers)
        self._is_staged = not has_partners

    # Jobs without a budget need none of these.

    @cached_property
    def _shards(self) -> list[list[int]]:
        return shard_sizes(self._tables, len(self._assignment.servers))

    @cached_property
    def _tight_mib(self) -> int:
        """MiB of staging memory that updates of the tables, and a script of torch, can fill."""
        dense = sum(4 * n for held in self._shards for n in held)
        return min(_STAGING_MIB, -(-_STAGED_COPIES * dense >> 20))

    @cached_property
    def _nodes(self) -> list[_Node]:
        return _nodes(
            self._declared,
            self._tables,
            self._options,
            self._assignment,
            self._groups,
            self._shards,
        )

    def shares(self) -> BufferShares:
        """Return the sizes of the buffers.

        Raises:
            ConfigError: The budget is smaller than the least sizes need, or a row does not fit into a slot
                of a stated size.
        """
        budget_mib = self._options.node_buffers_mib
        if budget_mib is None:
            return self._at(2 * UNIT)
        budget = budget_mib << 20
        if self._most(0) > budget:
            raise ConfigError(self._too_small())
        low, high = 0, _MOST + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._most(middle) <= budget else (low, middle)
        return self._at(low)

    def least(self) -> tuple[int, str]:
        """Return the least budget with which the job can start, in MiB, and the node that needs it."""
        n_bytes, node = self._fullest(self._at(0))
        return -(-n_bytes >> 20), self.names[node]

    def of_node(self, node: int, shares: BufferShares) -> NodeBuffers:
        """Return what buffers of these sizes take on a node."""
        return self._needs(self._nodes[node], shares)

    def fullest(self, shares: BufferShares) -> int:
        """Return the first of the nodes whose buffers take most."""
        return self._fullest(shares)[1]

    def describe(self, node: int, shares: BufferShares) -> Iterator[tuple[str, int, str]]:
        """Yield name, bytes and reason of each kind of buffers that a node has, for people."""
        kind, needs = self._nodes[node], self.of_node(node, shares)
        ring = self._geometry(shares)
        servers, workers = _count(len(kind.servers), "server"), _count(kind.n_workers, "worker")
        remote = max((s.n_remote for s in kind.servers), default=0)
        reasons = (
            f"{servers}: {ring.n_slots} slots of {binary_size(ring.slot_bytes)} for each of "
            f"{_count(self._n_workers, 'worker')}",
            f"{servers}: large pushes of {_count(remote, 'worker')} elsewhere",
            f"{shares.staging_mib} MiB for each of {workers}, taken when it is used",
            f"{shares.group_rows_mib} MiB for each worker of a group",
            f"{shares.node_rows_mib} MiB for each of {_count(kind.n_sharing, 'worker')}, taken at first use",
        )
        names = (
            "rings",
            "rendezvous buffers",
            "staging memory",
            "rows of groups",
            "rows of the node",
        )
        for name, n_bytes, reason in zip(names, needs, reasons, strict=True):
            if n_bytes:
                yield name, n_bytes, reason

    def _at(self, level: int) -> BufferShares:
        """Return the sizes at a level of the path."""
        options, is_tight = self._options, level < 2 * UNIT
        scale = min(level, UNIT) if is_tight else level - UNIT  # in units of 1 / UNIT
        staging_mib = _STAGING_MIB * scale // UNIT
        if is_tight:
            tight = self._tight_mib
            staging_mib = tight * scale // UNIT
            staging_mib += (_STAGING_MIB - tight) * max(0, level - UNIT) // UNIT
        group_rows_mib = max(1, _GROUP_ROWS_MIB * scale // UNIT)
        if options.staging_mib is not None:
            staging_mib = options.staging_mib
        if options.group_rows_mib is not None:
            group_rows_mib = options.group_rows_mib
        return BufferShares(
            n_slots=options.ring_slots,
            slot_bytes=options.slot_bytes,
            rings=RINGS_BYTES * scale // UNIT,
            rendezvous=_RENDEZVOUS_BYTES * scale // UNIT if self._is_staged else 0,
            staging_mib=max(1, staging_mib) if self._is_staged else 0,
            group_rows_mib=group_rows_mib,
            node_rows_mib=_NODE_ROWS_MIB * scale // UNIT,
        )

    def _geometry(self, shares: BufferShares) -> _native.RingGeometry:
        return ring_geometry(
            self._tables,
            max((n for held in self._shards for n in held), default=0),
            self._n_workers,
            shares.n_slots,
            shares.slot_bytes,
            shares.rings,
        )

    def _mailboxes(self, shares: BufferShares) -> int:
        """Return the bytes of the rings of all workers at one server, with all that is beside them."""
        geometry = self._geometry(shares)
        return _native.Layout(self._n_workers, len(self._tables), geometry, []).tables_offset

    def _needs(
        self, node: _Node, shares: BufferShares, mailboxes: int | None = None
    ) -> NodeBuffers:
        rings = self._mailboxes(shares) if mailboxes is None else mailboxes
        return NodeBuffers(
            len(node.servers) * rings,
            sum(
                s.n_remote * area_bytes(s.large, s.n_remote, shares.rendezvous)
                for s in node.servers
            ),
            node.n_workers * shares.staging,
            node.group_rows * shares.group_rows_mib,
            node.n_sharing * shares.node_rows_mib << 20,
        )

    def _fullest(self, shares: BufferShares) -> tuple[int, int]:
        """Return the bytes of the node whose buffers take most, and the first such node."""
        mailboxes = self._mailboxes(shares)
        sizes = {kind: self._needs(kind, shares, mailboxes).total for kind in set(self._nodes)}
        n_bytes = max(sizes.values())
        return n_bytes, next(k for k, kind in enumerate(self._nodes) if sizes[kind] == n_bytes)

    def _most(self, level: int) -> int:
        return self._fullest(self._at(level))[0]

    def _too_small(self) -> str:
        least_mib, name = self.least()
        parts = self.describe(self.names.index(name), self._at(0))
        largest, n_bytes, reason = max(parts, key=lambda part: part[1])
        return (
            f"cluster.node_buffers_mib = {self._options.node_buffers_mib} is too small for this job: set it "
            f"to {least_mib} or more ({name} needs that at least; the largest part is {largest}, "
            f"{binary_size(n_bytes)}: {reason})"
        )


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' if n != 1 else ''}"


def _nodes(
    declared: Sequence[Table],
    tables: Sequence[Table],
    options: SessionOptions,
    a: Assignment,
    groups: tuple[Groups, Groups],
    shards: Sequence[Sequence[int]],
) -> list[_Node]:
    """Return each node of the job."""
    near = a.near_workers(options.transport)
    servers: list[list[_Server]] = [[] for _ in a.node_names]
    for index, rank in enumerate(a.servers):
        large = [4 * n for n in shards[index] if 4 * n >= AREA_FROM_BYTES]
        ends = (min(large), max(large)) if large else ()
        servers[a.node_of[rank]].append(_Server(len(a.workers) - len(near[index]), ends))
    workers = Counter(a.node_of[rank] for rank in a.workers)
    sharing = Counter(
        a.node_of[a.workers[w]] for w in sharing_workers(tables, options.transport, a)
    )
    pushed = _group_rows(declared, options, a, groups)
    return [
        _Node(tuple(sorted(servers[k])), workers[k], pushed[k], sharing[k])
        for k in range(len(a.node_names))
    ]


def _group_rows(
    declared: Sequence[Table],
    options: SessionOptions,
    a: Assignment,
    groups: tuple[Groups, Groups],
) -> Counter[int]:
    """Return the bytes for rows of groups on each node for each MiB of a worker."""
    found: Counter[int] = Counter()
    if not grouped_rows(declared, options.sums_rows):
        return found
    nodes = memory_nodes(a, options.transport)
    for level, parts in ((groups[0], groups[1]), (groups[1], ())):
        for group in level:
            n_bytes = row_bytes(1, units(group, parts))
            # A worker whose transport shares no memory has memory of its own for its whole group.
            for node in {nodes[w]: a.node_of[a.workers[w]] for w in group}.values():
                found[node] += n_bytes
    return found
