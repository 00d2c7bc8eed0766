"""Look-ups by processes outside the job, such as `mpips serve`: what a server publishes for them.

A server of a supervised run makes a small shared-memory file while it serves, `ask{server}-{generation}`. A
process of the same user on its node writes requests into it, and the server answers them between two records
(native/src/server/look_up_port.hpp). So a row is never torn, and neither eviction nor a table that grows is
visible. The values of dense tables are read from the region itself, where version words guard each block.

A file begins with a text in JSON, `LookUpText`, which describes the tables: a client needs nothing of the job
file. Clients map these files and the region without the locks by which a launch finds out that memory is in
use (mpips.transport.region), so they do not keep the next launch from taking the region over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import msgspec

from mpips import _native
from mpips.errors import RegionError
from mpips.model.placement import Placement, as_partition
from mpips.model.shared_scales import scale_tables
from mpips.model.table import DenseTable, EmbeddingTable, Table, replicated_tables
from mpips.server.server import Server
from mpips.terminal.screen import say
from mpips.transport.region import LOOK_UPS, Regions

N_SLOTS = 4  # requests that wait at a server at a time
MOST_KEYS = 1024  # of one request to a server
ROWS_BYTES = 256 << 10  # of one answer, unless a single row is larger


class LookUpTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table in the memory of the servers.

    Attributes:
        index: Its index in the job.
        name: Its name.
        kind: "dense" or "embedding".
        shape: Shape of a dense table; of an embedding table (dim,).
        hash_buckets: Buckets of an embedding table of fixed size; 0: each key has a row of its own.
        partition: Partition of an embedding table, as `Partition.to_config` returns it.
        shards: Server, first element and end of each shard of a dense table.
    """

    index: int
    name: str
    kind: Literal["dense", "embedding"]
    shape: tuple[int, ...]
    hash_buckets: int = 0
    partition: dict[str, Any] = {}
    shards: tuple[tuple[int, int, int], ...] = ()


class LookUpText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a server.

    Attributes:
        generation: Number of the attempt.
        server: Index of the server.
        n_servers: Number of servers.
        region: Name of the file in /dev/shm that has the dense shards.
        tables: All tables that servers hold in memory, equal on all servers. Replicated ones are missing,
            because workers have them, and those with storage.
        places: Offsets in the region of the version words and of the values of each dense shard here.
    """

    generation: int
    server: int
    n_servers: int
    region: str
    tables: tuple[LookUpTable, ...]
    places: dict[str, tuple[int, int]]


def part_of(server: int, generation: int) -> str:
    """Return the part name of a server's file."""
    return f"{LOOK_UPS}{server}-{generation}"


def described(tables: Sequence[Table], placement: Placement) -> tuple[LookUpTable, ...]:
    """Return the tables whose values servers hold in memory, all of them."""
    absent = {*replicated_tables(tables), *scale_tables(tables).values()}
    found = []
    for i, table in enumerate(tables):
        if i in absent or (isinstance(table, EmbeddingTable) and table.storage is not None):
            continue
        if isinstance(table, EmbeddingTable):
            partition = as_partition(table).to_config()
            found.append(
                LookUpTable(
                    index=i,
                    name=table.name,
                    kind="embedding",
                    shape=(table.dim,),
                    hash_buckets=table.hash_buckets,
                    partition=partition,
                )
            )
            continue
        shards = tuple((s.server, s.start, s.stop) for s in placement.dense[table.name])
        found.append(
            LookUpTable(index=i, name=table.name, kind="dense", shape=table.shape, shards=shards)
        )
    return tuple(found)


def text_of(
    server: Server, tables: Sequence[Table], placement: Placement, generation: int
) -> LookUpText:
    """Return the text of a server."""
    places = {}
    for i, table in enumerate(tables):
        if isinstance(table, DenseTable) and any(
            part.server == server.index for part in placement.dense[table.name]
        ):
            versions, values, _ = server.layout.dense_offsets(i)
            places[table.name] = (versions, values)
    return LookUpText(
        generation=generation,
        server=server.index,
        n_servers=placement.n_servers,
        region=server.region.name,
        tables=described(tables, placement),
        places=places,
    )


@contextmanager
def answering(
    server: Server,
    tables: Sequence[Table],
    placement: Placement,
    regions: Regions,
    generation: int,
) -> Iterator[None]:
    """Let a server answer look-ups during the block. Not collective.

    Without room in /dev/shm the job works as well: it prints a warning and answers none.

    Args:
        server: The server, whose `serve` the block calls.
        tables: All tables of the job as servers have them.
        placement: Their placement.
        regions: Makes the file.
        generation: Number of the attempt.
    """
    text = msgspec.json.encode(text_of(server, tables, placement, generation))
    dims = [table.dim for table in tables if isinstance(table, EmbeddingTable)]
    sizes = (N_SLOTS, MOST_KEYS, max([ROWS_BYTES, *(4 * dim for dim in dims)]))
    part = part_of(server.index, generation)
    try:
        memory = regions.create(part, _native.look_up_bytes(*sizes, text))
    except RegionError as error:
        say(f"mpips: warning: server {server.index} answers no look-ups (mpips serve): {error}")
        memory = None
    server.core.set_look_ups(memory, *sizes, text)
    try:
        yield
    finally:
        # Clients see at once that the server has ended, and not by a time limit.
        server.core.set_look_ups(None, *sizes, text)
        if memory is not None:
            regions.unlink_part(part)
