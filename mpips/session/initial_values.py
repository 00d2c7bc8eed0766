"""Initial values of dense tables, and rows of embedding tables, that only worker 0 has.

It sends every server that server's parts.

Tables belong to groups. Worker 0 makes the values of one group at a time and drops them when all servers have
theirs, so values can be larger than the memory of worker 0. Most programs have all tables in one group.

The transfer of a group goes by rounds. In a round worker 0 sends at most one piece to every server, and then
all ranks meet. So every wait is bounded by the job's timeout, whatever the size of the tables: a deadline
applies to one round, not to the whole transfer. Rows follow behind the groups, table by table, in the same
way, and then the optimizer state of dense tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.errors import ConfigError
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.mpi.one_rank import OneRank

if TYPE_CHECKING:
    from mpips.model.placement import Placement
    from mpips.mpi.cluster import Cluster
    from mpips.mpi.one_rank import Ranks
    from mpips.server.server import Server

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
Values = Callable[[], Float32]
# Returns keys, int64 (n,), each once, and their rows, float32: values (n, dim), or whole rows (n, row_floats)
# with the state of the rule as in EmbeddingTable.row_floats; None: the table has no rows yet.
Rows = Callable[[], tuple[Int64, Float32] | None]
# Returns the states of a dense table's rule, each like its values, and the number of updates that they are
# of; None: the state of a new table.
State = Callable[[], tuple[Sequence[Float32], int] | None]

PIECE = 1 << 24  # elements of a piece, 64 MiB
_TAG = 47
_WHAT = "sending the initial values of worker 0"
_READING = "reading the initial values"
_STORING = "storing the initial rows"


class InitialValues:
    """The initial values of dense tables that a program has on worker 0, by groups of tables.

    Attributes:
        groups: Names of the tables of each group.
    """

    def __init__(
        self,
        groups: Sequence[Mapping[str, Values]],
        tables: Sequence[Table],
        rows: Mapping[str, Rows] | None = None,
        states: Mapping[str, State] | None = None,
    ) -> None:
        """Take functions that return the values of a table, by its name, for each group.

        Args:
            groups: The functions. Each is called once at most, in this order.
            tables: All tables.
            rows: Functions that return the rows of embedding tables, by name; called once at most.
            states: Functions that return the optimizer state of dense tables, by name; called once at most.
        """
        self.groups = [list(group) for group in groups]
        self._functions = groups
        self._rows, self._states = dict(rows or {}), dict(states or {})
        self._embeddings = {t.name: t for t in tables if isinstance(t, EmbeddingTable)}
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

    def take_rows(self) -> Iterator[tuple[str, Int64, Float32]]:
        """Yield name, keys and rows of each embedding table that has rows; see Rows.

        Raises:
            ConfigError: A function returns something else than it should.
        """
        for name, function in self._rows.items():
            found = function()
            if found is None or not len(found[0]):
                continue
            keys, rows = found
            table = self._embeddings[name]
            dim, shapes = table.dim, [(len(keys), n) for n in (table.dim, table.row_floats)]
            if keys.dtype != np.int64 or rows.dtype != np.float32 or rows.shape not in shapes:
                raise ConfigError(
                    f"the initial rows of {name!r} are {rows.dtype} of shape {rows.shape} for {len(keys)} "
                    f"keys of {keys.dtype}: must be float32 of shape ({len(keys)}, {dim}) for keys of int64"
                )
            yield name, np.ascontiguousarray(keys), np.ascontiguousarray(rows)

    def take_states(self) -> Iterator[tuple[str, list[Float32], int]]:
        """Yield name, states and number of updates of each dense table that begins with state; see State.

        Raises:
            ConfigError: A function returns something else than it should.
        """
        for name, function in self._states.items():
            found = function()
            if found is None:
                continue
            states, steps = found
            for state in states:
                if state.shape != self._shapes.get(name) or state.dtype != np.float32:
                    raise ConfigError(
                        f"the initial optimizer state of {name!r} is {state.dtype} of shape {state.shape}: "
                        f"must be float32 of shape {self._shapes.get(name)}"
                    )
            yield name, [np.ascontiguousarray(state) for state in states], steps


class _Piece(NamedTuple):
    """Elements [start, stop) of a flattened table, which are elements [at, ...) of the server's shard."""

    table: int
    start: int
    stop: int
    at: int
    size: int  # elements of the whole shard


def send_values(
    ranks: Ranks,
    tables: Sequence[Table],
    placement: Placement,
    initial: InitialValues,
    server: Server | None,
) -> None:
    """Set tables on all servers to the values and rows that worker 0 has. Collective over all ranks; blocks.

    Args:
        ranks: All ranks.
        tables: All tables of the job.
        placement: Shards of each server.
        initial: The values, on the rank of worker 0; ignored on other ranks. Other dense tables have the
            values of their `init`.
        server: This rank's server, new; None on other ranks.

    Raises:
        MpipsError: A group's values could not be made. Raised on all ranks.
    """
    if isinstance(ranks, OneRank):
        assert server is not None
        _store_values(tables, initial, server)
        return
    cluster = ranks
    first = cluster.assignment.workers[0]
    groups = cluster.agree(_WHAT, lambda: initial.groups if cluster.rank == first else [])[first]
    for number, names in enumerate(groups):
        values: dict[str, Float32] = {}

        def take(number: int = number, values: dict[str, Float32] = values) -> None:
            if cluster.worker == 0:
                values.update(initial.take(number))

        cluster.agree(_READING, take, lengthy=True)
        _send_group(cluster, tables, placement, set(names), values, server)
    _send_rows(cluster, tables, placement, initial, server)
    _send_states(cluster, tables, placement, initial, server)


def _store_values(tables: Sequence[Table], initial: InitialValues, server: Server) -> None:
    """Set the tables of the only server, which is on this rank, without copies of their values."""
    indices = {table.name: i for i, table in enumerate(tables)}
    for group in range(len(initial.groups)):
        for name, values in initial.take(group).items():
            server.core.set_dense(indices[name], values.reshape(-1))
    for name, keys, rows in initial.take_rows():
        table = tables[indices[name]]
        assert isinstance(table, EmbeddingTable)
        store_rows(server, indices[name], table, keys, rows)
    for name, states, steps in initial.take_states():
        for slot, state in enumerate(states):
            server.core.set_dense_state(indices[name], slot, state.reshape(-1))
        server.core.set_steps_before(indices[name], steps)


def _send_states(
    cluster: Cluster,
    tables: Sequence[Table],
    placement: Placement,
    initial: InitialValues,
    server: Server | None,
) -> None:
    """Send the optimizer state of dense tables, one table after the other. Collective; blocks."""
    first = cluster.assignment.workers[0]
    indices = {table.name: i for i, table in enumerate(tables)}
    states = initial.take_states()
    while True:
        sending: list[list[Float32]] = []

        def take(sending: list[list[Float32]] = sending) -> tuple[str, int, int] | None:
            found = next(states, None) if cluster.worker == 0 else None
            if found is None:
                return None
            name, arrays, steps = found
            sending.append(arrays)
            return name, len(arrays), steps

        head = cluster.agree(_READING, take, lengthy=True)[first]
        if head is None:
            return
        name, n_states, steps = head
        for slot in range(n_states):
            values = {name: sending[0][slot]} if sending else {}
            _send_group(cluster, tables, placement, {name}, values, server, slot)
        if server is not None:
            server.core.set_steps_before(indices[name], steps)


def _send_rows(
    cluster: Cluster,
    tables: Sequence[Table],
    placement: Placement,
    initial: InitialValues,
    server: Server | None,
) -> None:
    """Send the rows of embedding tables, one table after the other. Collective over all ranks; blocks."""
    first = cluster.assignment.workers[0]
    indices = {table.name: i for i, table in enumerate(tables)}
    rows = initial.take_rows()
    while True:
        sending: list[_RowsByServer] = []

        def take(sending: list[_RowsByServer] = sending) -> tuple[str, int, list[int]] | None:
            found = next(rows, None) if cluster.worker == 0 else None
            if found is None:
                return None
            sending.append(_RowsByServer(*found, placement.partitioners[found[0]]))
            return found[0], found[2].shape[1], sending[0].counts

        head = cluster.agree(_READING, take, lengthy=True)[first]
        if head is None:
            return
        name, n_floats, counts = head
        table = tables[indices[name]]
        assert isinstance(table, EmbeddingTable)
        most = max(1, PIECE // (n_floats * len(counts)))  # rows of a piece
        for at in range(0, max(counts), most):
            piece = at, at + most
            _send_piece(cluster, indices[name], table, n_floats, counts, piece, sending, server)


def store_rows(
    server: Server, index: int, table: EmbeddingTable, keys: Int64, rows: Float32
) -> None:
    """Store rows of a table at a server before the start: values, or whole rows; see Rows."""
    if rows.shape[1] == table.dim:
        server.core.set_rows(index, keys, rows)
    else:
        server.core.load_rows(index, keys, rows)


class _RowsByServer:
    """The rows of one table, with the server of each.

    Attributes:
        counts: Number of rows of each server.
    """

    def __init__(
        self, name: str, keys: Int64, rows: Float32, partitioner: _native.Partitioner
    ) -> None:
        try:
            owners = partitioner.owners(keys)
        except KeyError as error:
            raise ConfigError(
                f"the initial rows of table {name!r}: {error.args[0]}; choose a partition that takes all "
                "their keys, such as HashPartition"
            ) from None
        self._keys, self._rows = keys, rows
        self._order = np.argsort(owners, kind="stable")
        self.counts: list[int] = np.bincount(owners, minlength=partitioner.n_servers).tolist()

    def part(self, server: int, start: int, stop: int) -> tuple[Int64, Float32]:
        """Return keys and rows [start, stop) of a server."""
        begin = sum(self.counts[:server])
        own = self._order[begin : begin + self.counts[server]][start:stop]
        return self._keys[own], self._rows[own]


def _send_piece(
    cluster: Cluster,
    index: int,
    table: EmbeddingTable,
    n_floats: int,
    counts: Sequence[int],
    piece: tuple[int, int],
    sending: Sequence[_RowsByServer],
    server: Server | None,
) -> None:
    """Send rows [start, stop) of each server, which stores them. Collective over all ranks; blocks."""
    first, start = cluster.assignment.workers[0], piece[0]
    requests, held = [], []
    for rows in sending:  # on worker 0
        for s, rank in enumerate(cluster.assignment.servers):
            if start < counts[s]:
                held.append(rows.part(s, *piece))
                requests += [cluster.comm.Isend(part, rank, _TAG) for part in held[-1]]
    n = max(0, min(counts[server.index], piece[1]) - start) if server is not None else 0
    keys, values = np.empty(n, np.int64), np.empty((n, n_floats), np.float32)
    if n:
        requests += [cluster.comm.Irecv(part, first, _TAG) for part in (keys, values)]
    for request in requests:
        cluster.complete(_WHAT, request)

    def store() -> None:
        if server is not None and n:
            store_rows(server, index, table, keys, values)

    cluster.agree(_STORING, store)


def _send_group(
    cluster: Cluster,
    tables: Sequence[Table],
    placement: Placement,
    sent: Set[str],
    values: Mapping[str, Float32],
    server: Server | None,
    slot: int | None = None,
) -> None:
    """Send values of the tables in `sent`, or the state `slot` of their rules. Collective; blocks."""
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
            if slot is None:
                server.core.set_dense(piece.table, shard)
            else:
                server.core.set_dense_state(piece.table, slot, shard)
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
