"""Start-up of the memory in which look-aheads of a node's workers find rows that others have read."""

from __future__ import annotations

from mpips import _native
from mpips.model.table import EmbeddingTable
from mpips.session.group_memory import memory_nodes
from mpips.session.parts import Parts
from mpips.session.sharing import share
from mpips.transport.region import HELD_ROWS
from mpips.worker.held_rows import HeldRowsPart


def connect_held_rows(p: Parts) -> None:
    """Set `p.held_rows`. Collective; blocks.

    Nodes with several workers have the memory, if a server is elsewhere and the job has embedding tables.

    Raises:
        MpipsError: The first error of any rank; all ranks raise it.
    """
    dims = [table.dim for table in p.tables if isinstance(table, EmbeddingTable)]
    if not dims or not p.options.lookahead_mib:
        return
    c, a = p.cluster, p.cluster.assignment
    nodes = memory_nodes(a, p.options.transport)
    servers = [a.node_of[rank] for rank in a.servers]
    keys = [
        node if nodes.count(node) > 1 and any(n != node for n in servers) else None
        for node in nodes
    ]
    if not any(key is not None for key in keys):
        return
    n_bytes = [nodes.count(node) * p.options.lookahead_mib << 20 for node in nodes]
    memory, firsts = share(
        p, HELD_ROWS, "making the memory of look-aheads", keys, n_bytes, takes_pages=False
    )
    if c.worker is None or memory is None or firsts.count(firsts[c.worker]) < 2:
        return
    node = nodes[c.worker]
    rows = _native.HeldRows(memory, n_bytes[c.worker], max(dims), c.worker, len(a.workers))
    remote = frozenset(s for s, n in enumerate(servers) if n != node)
    p.held_rows = HeldRowsPart(rows, memory, n_bytes[c.worker], remote)
