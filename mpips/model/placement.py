"""Placement of tables on servers: shards of dense tensors, owners of keys, the layout of each region."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from mpips import _native
from mpips.errors import ConfigError
from mpips.model.partition import Partition
from mpips.model.row_limits import check_servers, most_rows, set_bytes, sketch_bytes, use_bytes
from mpips.model.shared_scales import scale_tables, shared_codec
from mpips.model.stages import n_stages, servers_of
from mpips.model.storage import PLACE_BYTES, frames
from mpips.model.table import DenseTable, EmbeddingTable, Table, native_pull_codec

# bytes; dense pushes to shards of this size or larger go into the rendezvous buffer of a remote worker
AREA_FROM_BYTES = 256 << 10
MOST_NUMBERED = 1 << 16  # workers, or tables, that the header of a record can number
MOST_SLOTS, MOST_SLOT_BYTES = 32, 128 << 10  # of a ring whose size is not configured
RINGS_BYTES = 512 << 20  # of all such rings of a server together,
LEAST_RING_BYTES = 64 << 10  # unless a ring would be smaller than this
_LEAST_SLOT_BYTES, _FAIR_SLOT_BYTES = 4 << 10, 16 << 10
_CURSOR_BYTES = (
    16 << 10
)  # a slot takes a worker's position in a checkpoint, with the cursor of its program
_FEW_SLOTS = 8


class ShardRange(msgspec.Struct, frozen=True):
    """Elements [start, stop) of a flattened tensor on one server."""

    server: int
    start: int
    stop: int


class Placement(msgspec.Struct, frozen=True):
    """The server of every part of every table; equal on all ranks.

    Attributes:
        n_servers: Number of servers.
        dense: The shards of each dense table by its name, sorted by `start`.
        partitioners: The map from key to server of each embedding table by its name.
        layouts: The layout of each server's region.
    """

    n_servers: int
    dense: dict[str, list[ShardRange]]
    partitioners: dict[str, _native.Partitioner]
    layouts: list[_native.Layout]


class EmbeddingSizes(msgspec.Struct, frozen=True):
    """Memory of the rows of one embedding table on one server.

    Attributes:
        rows: Number of rows.
        row_bytes: Bytes of values and optimizer state of the rows in memory, of uses and places of all rows,
            of the counts of keys without a row, and of the sets of a limit.
        key_bytes: Bytes of the keys of the rows, in shared memory.
        map_bytes: Bytes of the map from key to row. While the map grows it takes half as much again.
    """

    rows: int
    row_bytes: int
    key_bytes: int
    map_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes of rows, keys and map together."""
        return self.row_bytes + self.key_bytes + self.map_bytes


def embedding_memory(table: EmbeddingTable, n_rows: int, n_servers: int) -> EmbeddingSizes:
    """Compute the memory of the fullest server for a table of `n_rows` rows; arithmetic only.

    The result assumes equal shares on all servers, which hashed keys nearly have. A server also allocates
    memory ahead of further rows, at most a sixteenth and at most 64 MiB, which is not counted. A table with
    MaxRows or MaxBytes has no more rows than these allow.
    """
    rows = -(-min(n_rows, most_rows(table.evict, table.row_bytes) or n_rows) // n_servers)
    in_memory, place_bytes = rows, 0
    if table.storage is not None:
        in_memory, place_bytes = (
            min(rows, frames(table.storage, table.row_bytes)),
            rows * PLACE_BYTES,
        )
    return EmbeddingSizes(
        rows=rows,
        row_bytes=in_memory * table.row_bytes
        + rows * use_bytes(table.evict)
        + place_bytes
        + sketch_bytes(table.admit)
        + set_bytes(table.evict, table.row_bytes),
        key_bytes=rows * 8,
        map_bytes=_native.RowMap.bytes_for(rows),
    )


def _dense_ranges(tables: Sequence[Table], n_servers: int) -> dict[str, list[ShardRange]]:
    """Return the shards of each dense table; tables with equal partitions and servers are placed together."""
    n = n_stages(tables)
    groups: list[tuple[Partition, range, dict[str, int]]] = []
    for table in tables:
        if not isinstance(table, DenseTable):
            continue
        partition, servers = as_partition(table), servers_of(table.stage, n, n_servers)
        for known, its, sizes in groups:
            if known == partition and its == servers:
                sizes[table.name] = table.n_elements
                break
        else:
            groups.append((partition, servers, {table.name: table.n_elements}))
    found = {
        name: [ShardRange(servers[piece.server], piece.start, piece.stop) for piece in pieces]
        for partition, servers, sizes in groups
        for name, pieces in partition.place(sizes, len(servers)).pieces.items()
    }
    for table in tables:
        codec = native_pull_codec(table)
        if isinstance(table, DenseTable) and codec is not None:
            found[table.name] = _cut_at_blocks(found[table.name], codec.block)
    for index, scales in scale_tables(tables).items():
        name, block = tables[index].name, shared_codec(tables[index]).block
        codec = native_pull_codec(tables[index])
        unit = block if codec is None else math.lcm(block, codec.block)
        found[name] = _cut_at_blocks(found[name], unit)
        found[tables[scales].name] = [
            ShardRange(part.server, part.start // block, -(-part.stop // block))
            for part in found[name]
        ]
    return found


def _cut_at_blocks(shards: Sequence[ShardRange], block: int) -> list[ShardRange]:
    """Return shards that are cut at multiples of `block`.

    The blocks of a codec of pulls, or of shared scales, are then the same on any number of servers, and so
    are the values.
    """
    result = []
    start, end = 0, shards[-1].stop
    for shard in shards:
        stop = end if shard is shards[-1] else min(round(shard.stop / block) * block, end)
        if stop > start:
            result.append(ShardRange(shard.server, start, stop))
            start = stop
    return result


def shard_sizes(tables: Sequence[Table], n_servers: int) -> list[list[int]]:
    """Return the float32 elements of each part of a dense table, for each server."""
    found: list[list[int]] = [[] for _ in range(n_servers)]
    for parts in _dense_ranges(tables, n_servers).values():
        for part in parts:
            found[part.server].append(part.stop - part.start)
    return found


def as_partition(table: Table) -> Partition:
    """Return the partition of a table, which its constructor has made a value."""
    assert isinstance(table.partition, Partition)
    return table.partition


def _row_slot(table: EmbeddingTable) -> int:
    """Return the bytes of the smallest slot that takes a row of a table with its key and base."""
    return 8 + 2 * 4 * table.dim + _native.LINE_BYTES


def ring_geometry(
    tables: Sequence[Table],
    longest_shard: int,
    n_workers: int,
    n_slots: int | None,
    slot_bytes: int,
    rings_bytes: int = RINGS_BYTES,
) -> _native.RingGeometry:
    """Return the geometry of the rings of a job, the same for all pairs of worker and server.

    A size that is chosen here is as large as pushes can use: slots of 128 KiB, or less if all tables are
    dense and small. The rings of all workers at a server take `rings_bytes` at most, so they shrink with more
    workers, though not below LEAST_RING_BYTES each.

    Args:
        tables: All tables of the job.
        longest_shard: float32 elements of the largest part of a dense table on a server.
        n_workers: Number of workers.
        n_slots: Slots of a ring; None: chosen here.
        slot_bytes: Bytes of a slot; 0: chosen here.
        rings_bytes: Bytes of the rings of all workers at one server, for what is chosen here.

    Raises:
        ConfigError: A row does not fit into a slot of `slot_bytes`.
    """
    embeddings = [t for t in tables if isinstance(t, EmbeddingTable)]
    least = max([_LEAST_SLOT_BYTES, *(-(-_row_slot(t) // 64) * 64 for t in embeddings)])

    slots, size = n_slots or MOST_SLOTS, slot_bytes
    if not slot_bytes:
        # A record has a header, and with base values twice the shard.
        used = 2 * 4 * longest_shard + _native.LINE_BYTES
        size = MOST_SLOT_BYTES if embeddings else min(MOST_SLOT_BYTES, max(used, _CURSOR_BYTES))
        size = max(least, -(-size // 64) * 64)
    most = max(LEAST_RING_BYTES, rings_bytes // max(n_workers, 1))
    sizes = _shrinking(slots, size, 2 if n_slots is None else slots, size if slot_bytes else least)
    for slots, size in sizes:
        found = _native.RingGeometry(slots, size, bool(embeddings))
        if found.mailbox_bytes <= most:
            break
    _check_slots(embeddings, found)
    return found


def _shrinking(
    slots: int, size: int, least_slots: int, least_size: int
) -> Iterator[tuple[int, int]]:
    """Yield numbers and sizes of slots, from the given ones to the least ones.

    Several records shall be in flight, so slots become smaller first, then fewer, then as small as possible.
    """
    yield slots, size
    steps = ((_FEW_SLOTS, _FAIR_SLOT_BYTES), (least_slots, least_size))
    for n, n_bytes in steps:
        while size > max(n_bytes, least_size):
            size = max(n_bytes, least_size, size // 2 // 64 * 64)
            yield slots, size
        while slots > max(n, least_slots):
            slots -= 1
            yield slots, size


def _check_slots(tables: Sequence[EmbeddingTable], geometry: _native.RingGeometry) -> None:
    """Refuse embedding tables of which not one row with its key and base fits into a slot."""
    for table in tables:
        needed = _row_slot(table)
        if needed > geometry.slot_bytes:
            raise ConfigError(
                f"table {table.name!r}: a row of {table.dim} floats does not fit into a ring slot, "
                f"slot_kib = {geometry.slot_bytes // 1024}; set slot_kib to {-(-needed // 1024)} or more"
            )


def _check_counts(n_workers: int, n_tables: int) -> None:
    """Refuse more workers or tables than the header of a record can number (16 bits each)."""
    for name, n in (("workers", n_workers), ("tables", n_tables)):
        if n > MOST_NUMBERED:
            raise ConfigError(f"{n:,} {name}: a job takes at most {MOST_NUMBERED:,} {name}")


def area_bytes(shards: Sequence[int], n_remote: int, limit: int) -> int:
    """Return the size of the rendezvous buffer of each remote worker of one server.

    A buffer holds two of the longest pushes, so that one travels while the other is applied. If `limit` is
    smaller, the workers share it equally.

    Args:
        shards: Bytes of the server's shard of each dense table.
        n_remote: Number of workers on other nodes.
        limit: Bytes of all buffers together.

    Returns:
        Bytes, a multiple of the page size; 0 if not even one push of any table would fit.
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
    n_slots: int | None,
    slot_bytes: int,
    near: Sequence[Sequence[int]] | None = None,
    remote_staging_bytes: int = 0,
    rings_bytes: int = RINGS_BYTES,
) -> Placement:
    """Split all tables over the servers and lay out the regions; arithmetic only.

    Args:
        tables: All tables of the job.
        n_servers: Number of servers.
        n_workers: Number of workers.
        n_slots: Slots of a ring; None: see `ring_geometry`.
        slot_bytes: Bytes of a slot; 0: see `ring_geometry`.
        near: For each server the workers that use its shared memory, ascending; None: all do.
        remote_staging_bytes: Bytes of all rendezvous buffers of one server.
        rings_bytes: Bytes of all rings of one server; see `ring_geometry`.

    Raises:
        ConfigError: A row does not fit into a ring slot, there are too many workers or tables, or too many
            servers for the limit of a table's rows.
    """
    _check_counts(n_workers, len(tables))
    embeddings = [t for t in tables if isinstance(t, EmbeddingTable)]
    for limited in embeddings:
        check_servers(limited.name, limited.evict, limited.row_bytes, n_servers)
    dense = _dense_ranges(tables, n_servers)
    extents: list[list[tuple[int, int, int, _native.Codec | None]]] = [[] for _ in range(n_servers)]
    for i, table in enumerate(tables):
        codec = native_pull_codec(table)
        for part in dense.get(table.name, []):
            n_state = table.optimizer.n_state
            extents[part.server].append((i, part.stop - part.start, n_state, codec))
    longest = max((n for held in extents for _, n, _, _ in held), default=0)
    geometry = ring_geometry(tables, longest, n_workers, n_slots, slot_bytes, rings_bytes)
    layouts = []
    for server, held in enumerate(extents):
        here = range(n_workers) if near is None else near[server]
        area = area_bytes(
            [4 * n for _, n, _, _ in held], n_workers - len(here), remote_staging_bytes
        )
        # A layout needs the list of workers without an area only if others have one.
        without = here if area else ()
        layouts.append(_native.Layout(n_workers, len(tables), geometry, held, area, without))
    partitioners = {t.name: as_partition(t).partitioner(n_servers) for t in embeddings}
    return Placement(n_servers, dense, partitioners, layouts)
