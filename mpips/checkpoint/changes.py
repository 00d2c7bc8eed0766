"""The changes of a server's shards since the previous checkpoint, and the datasets of a link for them.

A chain is a whole checkpoint, its base, and links that follow it. The file of a link has only what differs
from the previous checkpoint (`mpips.checkpoint.manifest.Link`). Everything in it is a set of rows by key:
the rows of embedding tables, pieces of dense tables by their first element, and the keys of removed rows. So
links are planned, sorted and written like embedding tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips.checkpoint.manifest import PIECE, REMOVED, DatasetEntry, Link, ShardEntry, TableEntry
from mpips.checkpoint.plan import ChainEnd, Hello, TablePlan, cut_range
from mpips.checkpoint.reader import open_checkpoint
from mpips.checkpoint.row_columns import RowColumn
from mpips.checkpoint.shards import DenseShardData, EmbeddingShardData, Keys, ShardData
from mpips.errors import CheckpointError

MOST_CHANGED = 0.5  # share of all bytes that have changed above which a whole checkpoint is written

MOST_LINKS = 100  # checkpoints of a chain, whose files a reader has open

Places = NDArray[np.intp]


@dataclass(frozen=True)
class Changed:
    """The changes in a server's shard of one table since its previous copy.

    Attributes:
        places: Indices of the rows, or of the pieces from the shard's first element on, that are new or
            differ in any bit; intp, ascending.
        removed: Keys of rows that have been removed, int64; empty for a dense table.
    """

    places: Places
    removed: Keys = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(frozen=True)
class Increment:
    """The input of a writer that writes a link in place of a whole checkpoint.

    Attributes:
        place: The last checkpoint of the chain.
        changed: The changes since then, by name of the table; without tables of which the server has no part.
    """

    place: ChainEnd
    changed: Mapping[str, Changed]


@dataclass(frozen=True)
class LinkRows:
    """The rows that a server writes into one table of a link.

    Attributes:
        shard: Rows of the server.
        places: Indices of the rows that are written; None: all of them.
    """

    shard: EmbeddingShardData
    places: Places | None = None

    @property
    def n(self) -> int:
        """Number of rows that are written."""
        return len(self.shard.keys if self.places is None else self.places)


def stored_rows(shards: Sequence[ShardData], increment: Increment) -> dict[str, LinkRows]:
    """Return what this server writes into a link, by name of the link's table. Local.

    Copies the changed pieces of dense tables, and no rows.

    Args:
        shards: Shards of the server, at most one of a table.
        increment: Their changes.

    Raises:
        MemoryError: There is not enough memory for the pieces.
    """
    found: dict[str, LinkRows] = {}
    for shard in shards:
        changed = increment.changed[shard.table]
        if isinstance(shard, DenseShardData):
            found[shard.table] = LinkRows(_pieces(shard, changed.places))
            continue
        found[shard.table] = LinkRows(shard, changed.places)
        none = np.empty((len(changed.removed), 0), np.float32)
        name = shard.table + REMOVED
        found[name] = LinkRows(EmbeddingShardData(name, changed.removed, none))
    return found


def _pieces(shard: DenseShardData, places: Places) -> EmbeddingShardData:
    """Return pieces of a dense shard as rows; elements behind its end are zeros."""

    def rows(array: NDArray[np.float32]) -> NDArray[np.float32]:
        n_full = len(array) // PIECE
        found = np.zeros((len(places), PIECE), np.float32)
        full = places[places < n_full]
        found[: len(full)] = array[: n_full * PIECE].reshape(-1, PIECE)[full]
        if len(full) < len(places):
            rest = array[n_full * PIECE :]
            found[-1, : len(rest)] = rest
        return found

    keys = shard.start + places.astype(np.int64) * PIECE
    states = {name: rows(array) for name, array in shard.state.items()}
    return EmbeddingShardData(shard.table, keys, rows(shard.values), states)


def sizes(shards: Sequence[ShardData], increment: Increment) -> tuple[int, int]:
    """Return the bytes of the changed units of all shards, and of all units. Local."""
    changed, total = 0, 0
    for shard in shards:
        n = len(increment.changed[shard.table].places)
        arrays: list[NDArray[Any] | RowColumn] = [shard.values, *shard.state.values()]
        if isinstance(shard, DenseShardData):
            each = sum(array.dtype.itemsize for array in arrays)
            changed += min(n * PIECE, len(shard.values)) * each
            total += len(shard.values) * each
        else:
            arrays += [a for a in (shard.keys, shard.steps, shard.uses) if a is not None]
            each = sum(a.dtype.itemsize * int(np.prod(a.shape[1:], dtype=np.int64)) for a in arrays)
            changed += n * each
            total += len(shard.keys) * each
    return changed, total


def can_continue(folder: Path, place: ChainEnd) -> bool:
    """Return True if the last checkpoint of a chain, and all that it continues, can be opened. Blocking."""
    path = folder / place.last.name
    try:
        with open_checkpoint(path) as checkpoint:
            # A compaction may have made the last one whole.
            return place.last.xxh3 in (checkpoint.manifest_xxh3, checkpoint.manifest.replaces)
    except CheckpointError:
        return False


def common_place(hellos: Sequence[Hello]) -> ChainEnd | None:
    """Return the place that all servers continue; None if they write whole tables. Pure.

    The base is that of server 0, which makes chains whole in the background (`mpips.checkpoint.folding`).
    """
    place = hellos[0].place
    if place is None:
        return None
    if any(hello.place is None or hello.place.last != place.last for hello in hellos):
        return None
    changed = sum(hello.changed_bytes for hello in hellos)
    total = sum(hello.total_bytes for hello in hellos)
    return place if changed <= MOST_CHANGED * total else None


def link_of(place: ChainEnd, tables: Sequence[TableEntry]) -> Link:
    """Return the link that continues a place, with these tables in its file."""
    return Link(
        index=place.index + 1,
        base=place.base,
        previous=place.last,
        piece=PIECE,
        tables=tuple(tables),
    )


def describe(server: int, stored: Mapping[str, LinkRows]) -> dict[str, ShardEntry]:
    """Return the numbers of rows that a server writes into a link, by name of the link's table."""
    return {
        name: ShardEntry(server=server, version=0, rows=rows.n) for name, rows in stored.items()
    }


def plan_link(
    tables: Sequence[TableEntry], hellos: Sequence[Hello], block_bytes: int
) -> list[TablePlan]:
    """Return the plan of a link. Pure: all servers get the same plan.

    Args:
        tables: Manifest entries of the whole tables.
        hellos: First messages of all servers, by server.
        block_bytes: Bytes of a block.
    """
    plans = []
    for table in tables:
        plans.append(
            _plan(_changed_entry(table, _count(hellos, table.name)), len(hellos), block_bytes)
        )
        if table.kind == "embedding":
            n = _count(hellos, table.name + REMOVED)
            plans.append(_plan(_removed_entry(table, n), len(hellos), block_bytes))
    return plans


def _count(hellos: Sequence[Hello], name: str) -> int:
    return sum(hello.stored[name].rows for hello in hellos if name in hello.stored)


def _plan(entry: TableEntry, n_servers: int, block_bytes: int) -> TablePlan:
    n = entry.shape[0]
    size = max(1, block_bytes // sum(dataset.unit_bytes for dataset in entry.datasets))
    cuts = [n * r // n_servers for r in range(n_servers + 1)]
    blocks = [cut_range((cuts[r], cuts[r + 1]), size) for r in range(n_servers)]
    return TablePlan(entry, blocks)


def _changed_entry(table: TableEntry, n: int) -> TableEntry:
    """Return the entry of a link for the rows or pieces of a table that have changed."""
    if table.kind == "embedding":
        datasets = [msgspec.structs.replace(d, shape=(n, *d.shape[1:])) for d in table.datasets]
        shape = (n, *table.shape[1:])
    else:
        shape = (n, PIECE)
        datasets = [msgspec.structs.replace(d, shape=shape, unit=PIECE) for d in table.datasets]
        datasets.insert(0, _keys_entry(table.group, n))
    kind = "embedding" if table.kind == "embedding" else "pieces"
    return msgspec.structs.replace(table, kind=kind, shape=shape, datasets=tuple(datasets))


def _removed_entry(table: TableEntry, n: int) -> TableEntry:
    """Return the entry of a link for the keys of removed rows."""
    group = table.group + REMOVED
    return msgspec.structs.replace(
        table,
        name=table.name + REMOVED,
        group=group,
        kind="removed",
        shape=(n,),
        state=(),
        datasets=(_keys_entry(group, n),),
    )


def _keys_entry(group: str, n: int) -> DatasetEntry:
    return DatasetEntry(path=f"{group}/keys", role="keys", dtype="int64", shape=(n,), unit=1)
