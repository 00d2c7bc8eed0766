"""Initial values of dense tables that only worker 0 has: it sends every server that server's parts.

Tables belong to groups. Worker 0 makes the values of one group at a time and drops them when all servers have
theirs, so values can be larger than the memory of worker 0. Most programs have all tables in one group.

The transfer of a group goes by rounds. In a round worker 0 sends at most one piece to every server, and then
all ranks meet. So every wait is bounded by the job's timeout, whatever the size of the tables: a deadline
applies to one round, not to the whole transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpips.errors import ConfigError
from mpips.model.table import DenseTable, Table

if TYPE_CHECKING:
    from mpips.model.placement import Placement
    from mpips.mpi.cluster import Cluster
    from mpips.server.server import Server

Float32 = NDArray[np.float32]
Values = Callable[[], Float32]

PIECE = 1 << 24  # elements of a piece, 64 MiB
_TAG = 47
_WHAT = "sending the initial values of worker 0"
_READING = "reading the initial values"


class InitialValues:
    """The initial values of dense tables that a program has on worker 0, by groups of tables.

    Attributes:
        groups: Names of the tables of each group.
    """

    def __init__(self, groups: Sequence[Mapping[str, Values]], tables: Sequence[Table]) -> None:
        """Take functions that return the values of a table, by its name, for each group.

        Args:
            groups: The functions. Each is called once at most, in this order.
            tables: All tables.
        """
        self.groups = [list(group) for group in groups]
        self._functions = groups
        self._shapes = {t.name: t.shape for t in tables if isinstance(t, DenseTable)}

    def take(self, group: int) -> dict[str, Float32]:
        """Return the values of a group's tables by name: float32, of the tables' shapes, C-contiguous.

        Raises:
            ConfigError: A function returns something else than it should.
        """
        found = {}
        for name, function in self._functions[group].items():
            array, shape = function(), self._shapes.get(name)
            right = array.shape == shape and array.dtype == np.float32
            if not right or not array.flags.c_contiguous:
                raise ConfigError(
                    f"the initial values of {name!r} are {array.dtype} of shape {array.shape}: must be "
                    f"float32 of shape {shape}, C-contiguous"
                )
            found[name] = array
        return found


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
    initial: InitialValues,
    server: Server | None,
) -> None:
    """Set dense tables on all servers to the values that worker 0 has. Collective over all ranks; blocks.

    Args:
        cluster: All ranks.
        tables: All tables of the job.
        placement: Shards of each server.
        initial: The values, on the rank of worker 0; ignored on other ranks. Other dense tables have the
            values of their `init`.
        server: This rank's server, new; None on other ranks.

    Raises:
        MpipsError: A group's values could not be made. Raised on all ranks.
    """
    first = cluster.assignment.workers[0]
    groups = cluster.agree(_WHAT, lambda: initial.groups if cluster.rank == first else [])[first]
    for number, names in enumerate(groups):
        values: dict[str, Float32] = {}

        def take(number: int = number, values: dict[str, Float32] = values) -> None:
            if cluster.worker == 0:
                values.update(initial.take(number))

        cluster.agree(_READING, take, lengthy=True)
        _send_group(cluster, tables, placement, set(names), values, server)


def _send_group(
    cluster: Cluster,
    tables: Sequence[Table],
    placement: Placement,
    sent: Set[str],
    values: Mapping[str, Float32],
    server: Server | None,
) -> None:
    """Send the values of the tables in `sent`. Collective over all ranks; blocks."""
    servers = cluster.assignment.servers
    first = cluster.assignment.workers[0]
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
