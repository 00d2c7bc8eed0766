"""Where each table lies: shards of dense tensors, owners of keys, and the layout of every region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mpips import _native
from mpips.errors import ConfigError
from mpips.model.optimizer import PythonRule
from mpips.model.partition import Partition
from mpips.model.table import DenseTable, EmbeddingTable, Table

AREA_FROM_BYTES = 256 << 10  # pushes to shards from this size on go into a remote worker's area
MOST_NUMBERED = 1 << 16  # workers, or tables, of one job


@dataclass(frozen=True)
class ShardRange:
    """Elements [start, stop) of a flattened tensor on one server."""

    server: int
    start: int
    stop: int


@dataclass(frozen=True)
class Placement:
    """Everything about who holds what; the same on every rank."""

    n_servers: int
    dense: dict[str, list[ShardRange]]
    partitioners: dict[str, _native.Partitioner]
    layouts: list[_native.Layout]


@dataclass(frozen=True)
class EmbeddingSizes:
    """What the rows of one embedding table take on one server, in bytes.

    Attributes:
        rows: Number of rows.
        row_bytes: Values and optimizer state of all rows, in shared memory.
        key_bytes: The rows' keys, in shared memory.
        map_bytes: The map from key to row. While it grows it takes half as much again.
    """

    rows: int
    row_bytes: int
    key_bytes: int
    map_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.row_bytes + self.key_bytes + self.map_bytes


def embedding_memory(table: EmbeddingTable, n_rows: int, n_servers: int) -> EmbeddingSizes:
    """Plan the memory of the fullest server for a table of `n_rows` rows. Pure arithmetic.

    Servers hold equal shares, as hashed keys do nearly. Memory that a server takes ahead of the rows
    to come, a sixteenth and 64 MiB at most, is not counted.
    """
    rows = -(-n_rows // n_servers)
    rule = table.optimizer
    stride = table.dim * (1 + rule.n_state)
    if not isinstance(rule, PythonRule) and rule.native().uses_step:
        stride += 1
    return EmbeddingSizes(
        rows=rows,
        row_bytes=rows * stride * 4,
        key_bytes=rows * 8,
        map_bytes=_native.RowMap.bytes_for(rows),
    )


def _dense_ranges(tables: Sequence[Table], n_servers: int) -> dict[str, list[ShardRange]]:
    groups: list[tuple[Partition, dict[str, int]]] = []
    for table in tables:
        if not isinstance(table, DenseTable):
            continue
        partition = as_partition(table)
        for known, sizes in groups:
            if known == partition:
                sizes[table.name] = table.n_elements
                break
        else:
            groups.append((partition, {table.name: table.n_elements}))
    return {
        name: [ShardRange(piece.server, piece.start, piece.stop) for piece in pieces]
        for partition, sizes in groups
        for name, pieces in partition.place(sizes, n_servers).pieces.items()
    }


def as_partition(table: Table) -> Partition:
    """The partition of a table as a value."""
    assert isinstance(table.partition, Partition)
    return table.partition


def _check_slots(tables: Sequence[Table], geometry: _native.RingGeometry) -> None:
    for table in tables:
        if not isinstance(table, EmbeddingTable):
            continue
        needed = 8 + 2 * 4 * table.dim + _native.LINE_BYTES
        if needed > geometry.slot_bytes:
            raise ConfigError(
                f"table {table.name!r}: a row of {table.dim} floats needs ring slots of at least "
                f"{-(-needed // 1024)} KiB; slot_kib = {geometry.slot_bytes // 1024}"
            )


def _check_counts(n_workers: int, n_tables: int) -> None:
    """Refuse more workers or tables than a record's header can number (16 bits each)."""
    for name, n in (("workers", n_workers), ("tables", n_tables)):
        if n > MOST_NUMBERED:
            raise ConfigError(f"a job takes at most {MOST_NUMBERED:,} {name}, not {n:,}")


def area_bytes(shards: Sequence[int], n_remote: int, limit: int) -> int:
    """Bytes of the area that each of a server's remote workers gets for its large dense pushes.

    Two of the longest pushes, so that one travels while the other is applied; less where `limit` is
    short, and nothing where not even one push of any table would fit.

    Args:
        shards: Bytes of the server's part of each dense table.
        n_remote: Workers on other nodes.
        limit: Bytes for all of them together.
    """
    large = [n for n in shards if n >= AREA_FROM_BYTES]
    if not large or n_remote == 0:
        return 0
    page = 4096
    share = min(2 * -(-max(large) // page) * page, limit // n_remote // page * page)
    return share if share >= min(large) else 0


def place(
    tables: Sequence[Table],
    n_servers: int,
    n_workers: int,
    n_slots: int,
    slot_bytes: int,
    remote: Sequence[Sequence[int]] = (),
    remote_staging_bytes: int = 0,
) -> Placement:
    """Split all tables over the servers and lay out the regions. Pure arithmetic.

    Args:
        tables: All of the job.
        n_servers: Number of servers.
        n_workers: Number of workers.
        n_slots: Records of a ring.
        slot_bytes: Of one record.
        remote: For each server the workers that reach it over a network; none if left out.
        remote_staging_bytes: What their areas may take on one server.

    Raises:
        ConfigError: A row does not fit into a ring slot; there are too many workers or tables.
    """
    _check_counts(n_workers, len(tables))
    embeddings = [t for t in tables if isinstance(t, EmbeddingTable)]
    geometry = _native.RingGeometry(n_slots, slot_bytes, bool(embeddings))
    _check_slots(tables, geometry)
    dense = _dense_ranges(tables, n_servers)
    layouts = []
    for server in range(n_servers):
        extents = [
            (i, part.stop - part.start, table.optimizer.n_state)
            for i, table in enumerate(tables)
            for part in dense.get(table.name, [])
            if part.server == server
        ]
        far = remote[server] if remote else ()
        area = area_bytes([4 * n for _, n, _ in extents], len(far), remote_staging_bytes)
        areas = [area if worker in far else 0 for worker in range(n_workers)]
        layouts.append(_native.Layout(n_workers, len(tables), geometry, extents, areas))
    partitioners = {t.name: as_partition(t).partitioner(n_servers) for t in embeddings}
    return Placement(n_servers, dense, partitioners, layouts)
