"""Initial values of dense tables that only worker 0 has: it sends every server that server's parts.

The transfer goes by rounds. In a round worker 0 sends at most one piece to every server, and then all ranks
meet. So every wait is bounded by the job's timeout, whatever the size of the tables: a deadline applies to
one round, not to the whole transfer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpips.model.placement import Placement
from mpips.model.table import DenseTable, Table
from mpips.mpi.cluster import Cluster
from mpips.server.server import Server

Float32 = NDArray[np.float32]

PIECE = 1 << 24  # elements of a piece, 64 MiB
_TAG = 47
_WHAT = "sending the initial values of worker 0"


class _Piece(NamedTuple):
    """Elements [start, stop) of a flattened table, which are elements [at, ...) of the server's shard."""

    table: int
    start: int
    stop: int
    at: int
    size: int  # elements of the whole shard


def send_values(
    cluster: Cluster,
    tables: Sequence[Table],
    placement: Placement,
    values: Mapping[str, Float32],
    server: Server | None,
) -> None:
    """Set dense tables on all servers to the values that worker 0 has. Collective over all ranks; blocks.

    Args:
        cluster: All ranks.
        tables: All tables of the job.
        placement: Shards of each server.
        values: On the rank of worker 0: float32 arrays of the tables' shapes by name, C-contiguous. Other
            dense tables have the values of their `init`. Ignored on other ranks.
        server: This rank's server, new; None on other ranks.
    """
    servers = cluster.assignment.servers
    first = cluster.assignment.workers[0]
    sent = set(cluster.agree(_WHAT, lambda: sorted(values) if cluster.rank == first else [])[first])
    pieces = [list(_pieces(tables, placement, s, sent)) for s in range(len(servers))]
    shard = np.empty(0, np.float32)
    for n in range(max(map(len, pieces), default=0)):
        requests = []
        mine = server is not None and n < len(pieces[server.index])
        if cluster.worker == 0:
            for s, own in enumerate(pieces):
                if n < len(own):
                    piece = own[n]
                    flat = values[tables[piece.table].name].reshape(-1)
                    part = flat[piece.start : piece.stop]
                    requests.append(cluster.comm.Isend(part, servers[s], _TAG))
        if server is not None and mine:
            piece = pieces[server.index][n]
            if piece.at == 0:
                shard = np.empty(piece.size, np.float32)
            target = shard[piece.at : piece.at + piece.stop - piece.start]
            requests.append(cluster.comm.Irecv(target, first, _TAG))
        for request in requests:
            cluster.complete(_WHAT, request)
        if server is not None and mine and piece.at + piece.stop - piece.start == piece.size:
            server.core.set_dense(piece.table, shard)
        cluster.arrive(_WHAT)


def _pieces(
    tables: Sequence[Table], placement: Placement, server: int, sent: Set[str]
) -> Iterator[_Piece]:
    """Yield the pieces of a server's shards of the tables in `sent`, in the order in which they are sent."""
    for i, table in enumerate(tables):
        if not isinstance(table, DenseTable) or table.name not in sent:
            continue
        for part in placement.dense[table.name]:
            if part.server != server:
                continue
            size = part.stop - part.start
            for at in range(0, size, PIECE):
                yield _Piece(i, part.start + at, part.start + min(at + PIECE, size), at, size)
