"""Compute what a job needs of its nodes: bytes and memory of every rank, by the job's own functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mpips import _native
from mpips.data import DenseData, SparseData
from mpips.model.common_copy import has_common
from mpips.model.consistency import BSP, common_reduction
from mpips.model.placement import Placement, embedding_memory
from mpips.model.storage import file_bytes
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.mpi.roles import Assignment
from mpips.plan.rows import Rows
from mpips.recovery.replica import find_partners
from mpips.snapshot.copy import ROOM
from mpips.worker.feedback.residuals import residual_layout
from mpips.worker.paths.direct import BOUNCE_BYTES
from mpips.worker.start import NodeBytes

_BOUNCES = 2  # buffers in staging memory for a table whose updates are large


class ServerNeeds(msgspec.Struct, frozen=True):
    """The memory of one server, in bytes except `rows`.

    Attributes:
        rows: Rows of all embedding tables.
        mailboxes: Rings, reply slots and their heads, in shared memory.
        dense: Values, optimizer state and versions of dense tables, in shared memory.
        embedding: Values, optimizer state and keys of rows, in shared memory.
        maps: Maps from key to row, in private memory.
        sums: Sums of a clock's updates to dense tables under BSP; in shared memory if there is a journal.
        journal: The journal that makes applying atomic, in shared memory; 0: there is no journal.
        copy: Copy of the shards from which a checkpoint is written during training, in private memory.
        encoding: Memory in which differences for pulls are encoded, private.
        files: Files of the rows of tables with storage, on the node's disk.
    """

    rows: int
    mailboxes: int
    dense: int
    embedding: int
    maps: int
    sums: int = 0
    journal: int = 0
    copy: int = 0
    encoding: int = 0
    files: int = 0

    @property
    def shared(self) -> int:
        """Bytes in /dev/shm."""
        durable = self.journal + self.sums if self.journal else 0
        return self.mailboxes + self.dense + self.embedding + durable

    @property
    def private(self) -> int:
        """Bytes of private memory of the process."""
        return self.maps + self.copy + self.encoding + (0 if self.journal else self.sums)

    @property
    def parameters(self) -> int:
        """Bytes of parameters and their optimizer state."""
        return self.dense + self.embedding


class NodeNeeds(msgspec.Struct, frozen=True):
    """The memory of one node.

    Attributes:
        name: Name of the node.
        ranks: Number of ranks on it.
        shared: Bytes in /dev/shm.
        memory: Bytes in all, /dev/shm included.
        node_rows: Bytes in /dev/shm that the first look-ahead takes, besides: rows that the node's workers
            read for each other. A job runs without them.
    """

    name: str
    ranks: int
    shared: int
    memory: int
    node_rows: int = 0


class Needs(msgspec.Struct, frozen=True):
    """The needs of the whole job; bytes except `rows`.

    Attributes:
        rows: Rows of each embedding table, by name.
        servers: Memory of each server.
        worker_data: Samples in the memory of one worker.
        worker_staging: Staging memory of one worker.
        program: Memory of a rank before it reads data.
        nodes: Memory of each node.
        checkpoint: Size of a checkpoint's `state.h5`.
        worker_residuals: Residuals of one worker's pushes; in shared memory if there is a journal.
        worker_common: Copies of tables whose pulls are differences, in private memory of one worker.
        checkpoint_residuals: Size of the residuals of all workers in a checkpoint.
    """

    rows: dict[str, Rows]
    servers: list[ServerNeeds]
    worker_data: int
    worker_staging: int
    program: int
    nodes: list[NodeNeeds]
    checkpoint: int
    worker_residuals: int = 0
    worker_common: int = 0
    checkpoint_residuals: int = 0

    @property
    def balance(self) -> float:
        """Bytes of parameters of the fullest server over the mean."""
        held = [server.parameters for server in self.servers]
        return max(held) / (sum(held) / len(held)) if sum(held) else 1.0


def server_needs(
    tables: Sequence[Table],
    placement: Placement,
    rows: Mapping[str, Rows],
    journal: bool = False,
    copies: bool = False,
) -> list[ServerNeeds]:
    """Return the memory of every server.

    Args:
        tables: Tables of the job.
        placement: Their placement on the servers.
        rows: Rows of each embedding table.
        journal: Servers write a journal.
        copies: Checkpoints are written during training.
    """
    result = []
    embeddings = [t for t in tables if isinstance(t, EmbeddingTable)]
    for server, layout in enumerate(placement.layouts):
        parts = [embedding_memory(t, rows[t.name].per_server[server], 1) for t in embeddings]
        dense = layout.total_bytes - layout.tables_offset
        embedding = sum(part.row_bytes + part.key_bytes for part in parts)
        result.append(
            ServerNeeds(
                rows=sum(part.rows for part in parts),
                mailboxes=layout.tables_offset,
                dense=dense,
                embedding=embedding,
                maps=sum(part.map_bytes for part in parts),
                sums=_sum_bytes(tables, placement, server),
                journal=_native.journal_bytes(layout) if journal else 0,
                copy=dense + int(embedding * ROOM) if copies else 0,
                encoding=common_bytes(tables, placement, server),
                files=sum(
                    file_bytes(t.storage, t.row_bytes, rows[t.name].per_server[server])
                    for t in embeddings
                    if t.storage is not None
                ),
            )
        )
    return result


def _sum_bytes(tables: Sequence[Table], placement: Placement, server: int) -> int:
    """Return the bytes of the sums of a clock's updates: one for each worker where backup workers exist."""
    total = 0
    for table in tables:
        if not isinstance(table, DenseTable) or not common_reduction(table.consistency):
            continue
        if table.is_replicated:
            continue
        backup = isinstance(table.consistency, BSP) and bool(table.consistency.backup)
        each = placement.layouts[server].n_workers if backup else 1
        parts = [p for p in placement.dense[table.name] if p.server == server]
        total += 4 * each * sum(p.stop - p.start for p in parts)
    return total


def staging_bytes(tables: Sequence[Table], staging: int) -> int:
    """Return the staging bytes of a worker for its large updates, if a server is on its node.

    Args:
        tables: Tables of the job.
        staging: Bytes of its staging memory, of which updates take half at most.
    """
    served = [t for t in tables if isinstance(t, DenseTable) and not t.is_replicated]
    large = [4 * t.n_elements for t in served]
    wanted = _BOUNCES * sum(size for size in large if size > BOUNCE_BYTES)
    return min(wanted, staging // 2)


def common_bytes(tables: Sequence[Table], placement: Placement, server: int | None = None) -> int:
    """Return the bytes of the copies of tables whose pulls are differences; of one server's parts, or all."""
    return sum(
        4 * (part.stop - part.start)
        for table in tables
        if has_common(table)
        for part in placement.dense[table.name]
        if server in (None, part.server)
    )


def residual_bytes(tables: Sequence[Table], placement: Placement, journal: bool) -> int:
    """Return the bytes of the residuals of one worker: two halves if they outlive a launch."""
    return residual_layout(tables, placement, 2 if journal else 1)[1]


def data_bytes(data: Any) -> int:
    """Return the bytes of samples in memory; 0 for None, and for samples of a task that have no `n_bytes`."""
    if not isinstance(data, SparseData | DenseData):
        return int(getattr(data, "n_bytes", 0))
    arrays = (
        (data.indptr, data.indices, data.values, data.labels)
        if isinstance(data, SparseData)
        else (data.x, data.labels)
    )
    return sum(array.nbytes for array in arrays)


def node_needs(
    a: Assignment,
    servers: Sequence[ServerNeeds],
    data: int,
    staging: int,
    program: int,
    partner: bool = False,
    copies: int = 0,
    parts: Sequence[NodeBytes] = (),
) -> list[NodeNeeds]:
    """Return the memory of every node: programs, tables of servers, data and staging of workers.

    While an attempt starts after a failure, the replicas of `partner` exist twice, which is not counted.

    Args:
        a: Roles of the ranks.
        servers: Memory of each server.
        data: Bytes of samples of a worker.
        staging: Bytes of staging of a worker.
        program: Bytes of a rank before it reads data.
        partner: Each node holds the replicas of the shards of another one.
        copies: Bytes of a worker for copies of tables whose pulls are differences.
        parts: Memory of each node for the parts of tables (mpips.worker.parts); (): none.
    """
    result = []
    node_of = [a.node_of[rank] for rank in a.servers]
    partners = find_partners(node_of) if partner else {}
    for k, name in enumerate(a.node_names):
        mine = [server for server, node in zip(servers, node_of, strict=True) if node == k]
        replicas = [servers[i] for i, j in partners.items() if node_of[j] == k]
        part = parts[k] if parts else NodeBytes()
        n_workers = sum(a.node_of[rank] == k for rank in a.workers)
        shared = sum(s.shared for s in mine + replicas) + (n_workers * staging if mine else 0)
        shared += part.shared
        private = sum(s.private for s in mine) + sum(s.maps for s in replicas)
        private += n_workers * (data + copies) + part.private
        ranks = a.node_of.count(k)
        memory = shared + private + ranks * program
        result.append(NodeNeeds(name, ranks, shared, memory, part.later))
    return result


def steps_per_epoch(n_samples: int, n_workers: int, batch_size: int) -> int:
    """Return the steps of every worker in an epoch, as `mpips.data.Loader` makes them."""
    return math.ceil(math.ceil(n_samples / n_workers) / batch_size)
