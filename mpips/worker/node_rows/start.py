"""Start-up of the memory in which the workers of a node find rows that others have read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpips import _native
from mpips.model.table import EmbeddingTable, Table
from mpips.transport.region import NODE_ROWS
from mpips.worker.groups.memory import memory_nodes
from mpips.worker.node_rows.part import NodeRowsPart
from mpips.worker.sharing import share
from mpips.worker.start import JobStart, NodeBytes, Planned

if TYPE_CHECKING:
    from mpips.mpi.roles import Assignment


def memory(job: Planned) -> list[NodeBytes]:
    """Return the memory of each node, of which pages are taken at its first use."""
    a = job.assignment
    each = node_rows_bytes(job.tables, job.options.transport, a, job.shares.node_rows_mib)
    found = [NodeBytes()] * len(a.node_names)
    for rank, n_bytes in zip(a.workers, each, strict=True):
        found[a.node_of[rank]] = NodeBytes(later=n_bytes)
    return found


def sharing_workers(tables: Sequence[Table], transport: str, a: Assignment) -> list[int]:
    """Return the workers that may read rows for others of their node, ascending.

    They have another worker on the node and a server elsewhere, and the job has embedding tables.
    """
    if not any(isinstance(table, EmbeddingTable) for table in tables):
        return []
    nodes = memory_nodes(a, transport)
    n_workers, servers = Counter(nodes), {a.node_of[rank] for rank in a.servers}
    return [w for w, node in enumerate(nodes) if n_workers[node] > 1 and servers - {node}]


def node_rows_bytes(
    tables: Sequence[Table], transport: str, a: Assignment, rows_mib: int
) -> list[int]:
    """Return the bytes of the memory that each worker shares with the others of its node; 0: it has none.

    Its pages are taken when it is first used: by a look-ahead, or by a pull of a worker in a group.

    Args:
        tables: Tables of the job.
        transport: `cluster.transport`.
        a: Roles of the ranks.
        rows_mib: `BufferShares.node_rows_mib`.
    """
    nodes = memory_nodes(a, transport)
    sharing = sharing_workers(tables, transport, a)
    n_workers, found = Counter(nodes[w] for w in sharing), [0] * len(nodes)
    for w in sharing:
        found[w] = n_workers[nodes[w]] * rows_mib << 20
    return found


def connect(p: JobStart) -> None:
    """Set `p.made.node_rows`, where `node_rows_bytes` gives the node such memory. Collective; blocks.

    Raises:
        MpipsError: The first error of any rank; all ranks raise it.
    """
    c, a = p.ranks, p.ranks.assignment
    n_bytes = node_rows_bytes(p.tables, p.options.transport, a, p.shares.node_rows_mib)
    if not any(n_bytes):
        return
    nodes = memory_nodes(a, p.options.transport)
    keys = [node if n else None for node, n in zip(nodes, n_bytes, strict=True)]
    memory, firsts = share(
        p,
        NODE_ROWS,
        "making the memory of rows that a node reads once",
        keys,
        n_bytes,
        takes_pages=False,
    )
    if c.worker is None or memory is None or firsts.count(firsts[c.worker]) < 2:
        return
    longest = max(table.dim for table in p.tables if isinstance(table, EmbeddingTable))
    rows = _native.NodeRows(memory, n_bytes[c.worker], longest, c.worker, len(a.workers))
    node = nodes[c.worker]
    remote = frozenset(s for s, rank in enumerate(a.servers) if a.node_of[rank] != node)
    p.made.node_rows = NodeRowsPart(rows, memory, n_bytes[c.worker], remote)
