"""Start-up of replicated tables: the memory of each node, its values, and messages between nodes.

In a run that continues in memory, the tables come from the launch before (mpips.recovery.node_tables).
Otherwise servers have the values, state and counts of updates with which the job starts, whether from a
checkpoint, from worker 0 or from an initialiser. They send them to one worker of each node, which puts them
into the memory that it makes there. Workers that cannot share memory, since the transport is
another one or /dev/shm is not the same, are nodes of their own here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.config.options import TRANSPORTS
from mpips.errors import RegionError
from mpips.model.table import DenseTable, replicated_tables
from mpips.mpi.contributions import Contributions
from mpips.mpi.one_rank import OneRank
from mpips.recovery.node_tables import memory_name
from mpips.transport.region import as_region_error, attach
from mpips.worker.replicated.memory import (
    array_of,
    local_part,
    make_memory,
    make_reduction,
    node_layout,
)
from mpips.worker.replicated.part import ReplicatedPart
from mpips.worker.start import JobStart, NodeBytes, Planned

Float32 = NDArray[np.float32]

PIECE = 1 << 24  # elements of a piece, 64 MiB
_TAG = 48
_WHAT = "sending the values of replicated tables"


def memory(job: Planned) -> list[NodeBytes]:
    """Return the memory of the replicated tables on each node with workers: values, state and all pushes.

    Where it outlives a launch, a restart has that of the launch before beside its own.
    """
    found, a = replicated_tables(job.tables), job.assignment
    n_bytes = node_layout(found, job.n_workers, job.warm).first_bytes if found else 0
    used = {a.node_of[rank] for rank in a.workers}
    each = 2 * n_bytes if job.warm else n_bytes
    return [NodeBytes(each if node in used else 0) for node in range(len(a.node_names))]


def connect(p: JobStart) -> None:
    """Set `p.made.replicated` where the job has replicated tables. Collective; blocks.

    Raises:
        MpipsError: The first error of any rank; all ranks raise it.
    """
    if isinstance(p.ranks, OneRank):
        assert p.server is not None
        stores = p.saving.folder is not None
        p.made.replicated = local_part(p.tables, p.placement, p.regions, [p.server], stores)
    elif found := replicated_tables(p.tables):
        p.made.replicated = _connect(p, found)


def _connect(p: JobStart, found: dict[int, DenseTable]) -> ReplicatedPart | None:
    """Return this rank's part of the replicated tables; None if it has no worker. Collective; blocks."""
    c = p.cluster
    layout = node_layout(found, len(c.assignment.workers), p.warm)
    memory, groups = _share_memory(p, layout)
    firsts = [group[0] for group in groups]
    continues = p.node_tables is not None and bool(p.node_tables.places)
    if continues:
        steps = [0] * len(found)  # the memory has them
        _continue_tables(p, firsts, memory)
    else:
        steps = _send_values(p, found, firsts, memory, layout)
    if p.node_tables is not None:
        _set_words(p, memory, groups, None if continues else steps)
    if c.worker is None:
        return None
    assert memory is not None
    local = next(group for group in groups if c.worker in group)
    nodes = p.node_tables
    start = nodes.start_of(c.worker) if nodes is not None else (0, 0, False, False)
    reduction = make_reduction(
        found, memory, layout, c.worker, local, steps, p.oversubscribed, start
    )
    contributions = _contributions(p, found, groups, reduction, memory, layout)
    shards = [p.placement.dense[table.name] for table in found.values()]
    stores = p.saving.folder is not None
    receivers = {w: _receiver(w, local) for group in groups if group != local for w in group}
    return ReplicatedPart(
        found, shards, memory, layout, reduction, contributions, stores, receivers, start[3]
    )


def _continue_tables(
    p: JobStart, firsts: Sequence[int], memory: _native.SharedMemory | None
) -> None:
    """Fill the new memory of each node from that of the launch before. Collective; blocks.

    Args:
        p: The parts of this rank.
        firsts: The worker of each node that has made its memory.
        memory: Memory of this worker's node; None on other ranks.
    """
    c, a, nodes = p.cluster, p.cluster.assignment, p.node_tables
    assert nodes is not None
    first = c.worker in firsts
    filled: _native.SharedMemory | None = memory if first else None

    def fill() -> tuple[bool, list[tuple[int, int]]]:
        nonlocal filled
        if not nodes.provides:
            return False, []
        if c.rank == nodes.source and filled is None:
            # This rank has old memory and no worker that makes new memory.
            filled = _native.SharedMemory.anonymous(nodes.layout.total_bytes, 0)
        if filled is not None:
            nodes.write(filled)
        return True, nodes.ranges()

    found = c.agree("continuing with replicated tables", fill, lengthy=True)
    receivers = [a.workers[w] for w in firsts if not found[a.workers[w]][0]]
    pieces = [
        (at, min(at + 4 * PIECE, start + n_bytes))
        for start, n_bytes in found[nodes.source][1]
        for at in range(start, start + n_bytes, 4 * PIECE)
    ]
    for start, stop in pieces if receivers else ():
        requests = []
        if c.rank == nodes.source:
            assert filled is not None
            part = filled.view(start, stop - start, False)
            requests = [c.comm.Isend(part, rank, _TAG) for rank in receivers]
        elif c.rank in receivers:
            assert memory is not None
            if stop > nodes.layout.first_bytes:
                with as_region_error():
                    memory.commit(start, stop - start)
            requests = [c.comm.Irecv(memory.view(start, stop - start, True), nodes.source, _TAG)]
        for request in requests:
            c.complete(_WHAT, request)
        c.arrive(_WHAT)
    nodes.forget()


def _set_words(
    p: JobStart,
    memory: _native.SharedMemory | None,
    groups: Sequence[tuple[int, ...]],
    steps: Sequence[int] | None,
) -> None:
    """Set the words of durable memory before the workers use it. Collective.

    Args:
        p: The parts of this rank.
        memory: Memory of this worker's node; None on other ranks.
        groups: The workers of each node.
        steps: Number of updates of each table before the start; None: the memory has them.
    """
    nodes = p.node_tables
    assert nodes is not None

    def set_words() -> None:
        group = next((group for group in groups if group[0] == p.cluster.worker), None)
        if group is None or memory is None:
            return
        if steps is not None:
            _native.set_start_versions(memory, nodes.layout, list(steps))
        _native.set_local_workers(memory, nodes.layout, list(group), nodes.base)

    p.cluster.agree("setting words of replicated tables", set_words)


def _share_memory(
    p: JobStart, layout: _native.NodeLayout
) -> tuple[_native.SharedMemory | None, list[tuple[int, ...]]]:
    """Make or attach the memory of this worker's node. Collective.

    Returns:
        The memory, None on other ranks; the workers that share each memory, ascending.
    """
    c, a = p.cluster, p.cluster.assignment
    shares = TRANSPORTS[p.options.transport].shares_memory
    node_of = [a.node_of[rank] for rank in a.workers]
    what = "making the memory of replicated tables"

    def first_of(worker: int) -> int:
        return node_of.index(node_of[worker]) if shares else worker

    def name_of(worker: int) -> str:
        return memory_name(worker, p.generation) if p.warm else f"r{worker}"

    def make_own(worker: int) -> _native.SharedMemory:
        made = make_memory(p.regions, name_of(worker), layout)
        if p.node_tables is not None:
            p.node_tables.note_made(name_of(worker))
        return made

    def make() -> _native.SharedMemory | None:
        if c.worker is None or first_of(c.worker) != c.worker:
            return None
        return make_own(c.worker)

    memory: _native.SharedMemory | None = None

    def begin() -> None:
        nonlocal memory
        memory = make()

    def join() -> int:
        nonlocal memory
        if c.worker is None:
            return -1
        if memory is not None:
            return c.worker
        first = first_of(c.worker)
        try:
            memory = attach(c.token, name_of(first), layout.total_bytes)
        except RegionError:
            # Containers on one node may have a /dev/shm each.
            memory, first = make_own(c.worker), c.worker
        return first

    c.agree(what, begin)
    found = c.agree(what, join)
    groups: dict[int, list[int]] = {}
    for worker, rank in enumerate(a.workers):
        groups.setdefault(found[rank], []).append(worker)
    apart = [w for w, rank in enumerate(a.workers) if found[rank] != first_of(w)]
    if apart:
        p.notes.append(
            f"worker {apart[0]} cannot use the shared memory of its node: its updates of replicated tables "
            "travel as messages"
        )
    return memory, [tuple(group) for group in groups.values()]


class _Piece(NamedTuple):
    """Elements [start, stop) of values or a state of a flattened table, from one server."""

    table: int
    table_index: int  # in the job
    slot: int
    start: int
    stop: int
    at: int  # first element in the server's shard


def _pieces(p: JobStart, tables: Mapping[int, DenseTable], server: int) -> Iterator[_Piece]:
    """Yield what a server sends, in order."""
    for place, (index, table) in enumerate(tables.items()):
        for part in p.placement.dense[table.name]:
            if part.server != server:
                continue
            for slot in range(1 + table.optimizer.n_state):
                for start in range(part.start, part.stop, PIECE):
                    stop = min(start + PIECE, part.stop)
                    yield _Piece(place, index, slot, start, stop, start - part.start)


def _send_values(
    p: JobStart,
    tables: Mapping[int, DenseTable],
    receivers: Sequence[int],
    memory: _native.SharedMemory | None,
    layout: _native.NodeLayout,
) -> list[int]:
    """Send values and state from the servers to these workers, by rounds as `send_values`. Collective.

    Returns:
        The number of updates of each table before the start.
    """
    c, a, server = p.cluster, p.cluster.assignment, p.server
    counts = c.agree(
        _WHAT, lambda: [server.core.steps(index) for index in tables] if server is not None else []
    )
    pieces = [list(_pieces(p, tables, s)) for s in range(len(a.servers))]
    for n in range(max(map(len, pieces), default=0)):
        requests = []
        if server is not None and n < len(pieces[server.index]):
            piece = pieces[server.index][n]
            values = server.core.dense_array(piece.table_index, piece.slot)
            part = values[piece.at : piece.at + piece.stop - piece.start]
            requests += [c.comm.Isend(part, a.workers[w], _TAG) for w in receivers]
        if c.worker in receivers:
            assert memory is not None
            for s, own in enumerate(pieces):
                if n < len(own):
                    piece = own[n]
                    n_elements = list(tables.values())[piece.table].n_elements
                    array = array_of(memory, layout, piece.table, piece.slot, n_elements)
                    target = array[piece.start : piece.stop]
                    requests.append(c.comm.Irecv(target, a.servers[s], _TAG))
        for request in requests:
            c.complete(_WHAT, request)
        c.arrive(_WHAT)
    # A server without a part of a table knows no count.
    return [max(counts[rank][k] for rank in a.servers) for k in range(len(tables))]


def _contributions(
    p: JobStart,
    tables: Mapping[int, DenseTable],
    groups: Sequence[tuple[int, ...]],
    reduction: _native.Reduction,
    memory: _native.SharedMemory,
    layout: _native.NodeLayout,
) -> Contributions | None:
    """Return the messages to and from workers of other nodes; None if there is one node."""
    c, a = p.cluster, p.cluster.assignment
    if len(groups) == 1 or p.tree_comm is None or c.worker is None:
        return None
    me = c.worker
    others = [group for group in groups if me not in group]
    mine = next(group for group in groups if me in group)
    sizes = [table.n_elements for table in tables.values()]

    def room(worker: int, table: int, number: int) -> NDArray[np.uint8]:
        at = layout.contribution(worker, table, number)
        if number:
            with as_region_error():
                memory.commit(at, 4 * sizes[table])
        return memory.view(at, 4 * sizes[table], True)

    return Contributions(
        p.tree_comm,
        dict(enumerate(a.workers)),
        [_receiver(me, group) for group in others],
        [w for group in others for w in group if _receiver(w, mine) == me],
        reduction,
        room,
        ([c.name_of(rank) for rank in a.workers], [table.name for table in tables.values()]),
        answers=layout.durable,
        enter=c.gate.close,
    )


def _receiver(sender: int, group: Sequence[int]) -> int:
    """Return the worker of a node that receives from a worker of another one."""
    return group[sender % len(group)]
