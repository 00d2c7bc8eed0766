"""The plan of a checkpoint: which server writes what. All servers compute the same plan from all shards.

A server writes the elements of its own shards of a dense table. The rows of an embedding table are divided by
their position in the order of all keys: server r of k writes rows [n r / k, n (r+1) / k).

Everything is written in blocks of bounded size, and in rounds. In each round every server has at most one
block of a dataset. So the servers progress together, and wait for each other no more than this needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mpips.checkpoint.manifest import DATASET_DTYPES, DatasetEntry, LinkRef, ShardEntry, TableEntry
from mpips.checkpoint.shards import (
    EmbeddingShardData,
    ManifestHead,
    ShardData,
    counts_steps,
    notes_uses,
    partition_of,
    settings_of,
)
from mpips.errors import CheckpointError
from mpips.model.common_copy import stored_states
from mpips.model.consistency import Switch, estimates_backup, is_adaptive
from mpips.model.initializer import Initializer
from mpips.model.row_limits import limit_config
from mpips.model.table import DenseTable, EmbeddingTable, Table

# Keys of a consistency model in a manifest: numbers that were in force at the cut.
IN_FORCE = "bound_in_force"  # of SSP("auto")
BACKUP = "backup_in_force"  # of BSP(backup="auto")
THRESHOLD = "threshold_in_force"  # of Reject("auto"): the greatest one of a server
SWITCH = "switch_in_force"  # clock of the run of a Switch that is decided on
BLOCK_BYTES = 8 << 20  # bytes of a block, over all datasets of a table


class ChainEnd(msgspec.Struct, frozen=True):
    """The last checkpoint of a chain, which the next link continues.

    Attributes:
        index: Number of links behind the base; 0: it is the base.
        base: The base.
        last: The last checkpoint.
    """

    index: int
    base: LinkRef
    last: LinkRef


class Hello(msgspec.Struct):
    """The first message of a server to the others.

    Attributes:
        run: Run id, generation and step, which must be equal on all servers.
        hdf5: Kind of the server's h5py: "parallel" (with MPI, and the server may use it), "serial" or "none".
        shards: Shards of the server by name of the table.
        applied: Sequence number of the last applied record, by worker.
        bound, backup, thresholds, switch: See ServerState.
        place: Last checkpoint of the chain that the server can continue; None: it cannot.
        stored: Rows that the server writes into a link, by name of the link's table.
        changed_bytes: Bytes of the rows and pieces that have changed.
        total_bytes: Bytes of all rows and elements.
    """

    run: tuple[str, int, int]
    hdf5: str
    shards: dict[str, list[ShardEntry]]
    applied: list[int]
    bound: int = -1
    backup: int = -1
    thresholds: dict[str, int] = {}
    switch: int = -1
    place: ChainEnd | None = None
    stored: dict[str, ShardEntry] = {}
    changed_bytes: int = 0
    total_bytes: int = 0


class TablePlan(msgspec.Struct, frozen=True):
    """The plan of one table.

    Attributes:
        entry: Its manifest entry; offsets and checksums are added later.
        blocks: For each server, the ranges [start, stop) that it writes, in units of the datasets.
    """

    entry: TableEntry
    blocks: list[list[tuple[int, int]]]

    @property
    def name(self) -> str:
        """Name of the table."""
        return self.entry.name

    @property
    def n_rounds(self) -> int:
        """Number of rounds: the greatest number of blocks of any server."""
        return max(map(len, self.blocks))

    @property
    def is_embedding(self) -> bool:
        """True for rows by key: an embedding table, or a table of a link."""
        return self.entry.kind != "dense"

    def block(self, server: int, number: int) -> tuple[int, int] | None:
        """Return the range that a server writes in round `number`, or None."""
        mine = self.blocks[server]
        return mine[number] if number < len(mine) else None


def describe_shards(server: int, shards: Sequence[ShardData]) -> dict[str, list[ShardEntry]]:
    """Return the manifest entries of this server's shards, by name of the table."""
    found: dict[str, list[ShardEntry]] = {}
    for shard in shards:
        if isinstance(shard, EmbeddingShardData):
            n = len(shard.keys)
            low = int(shard.keys.min()) if n else None
            high = int(shard.keys.max()) if n else None
            entry = ShardEntry(server=server, version=shard.version, rows=n, low=low, high=high)
        else:
            stop = shard.start + len(shard.values)
            entry = ShardEntry(server=server, version=shard.version, start=shard.start, stop=stop)
        found.setdefault(shard.table, []).append(entry)
    return found


def plan_tables(
    head: ManifestHead, hellos: Sequence[Hello], block_bytes: int = BLOCK_BYTES
) -> list[TablePlan]:
    """Return the plan of every table. Pure: all servers get the same plan, or the same error.

    Args:
        head: Description of the job.
        hellos: First messages of all servers, by server.
        block_bytes: Bytes of a block.

    Raises:
        CheckpointError: Servers have different runs or steps, or elements of a tensor are missing or held
            twice.
    """
    for server, hello in enumerate(hellos):
        if hello.run != hellos[0].run:
            raise CheckpointError(
                f"servers do not write the same checkpoint: server 0 has (run, generation, step) = "
                f"{hellos[0].run}, server {server} has {hello.run}"
            )
    plans = [_plan_table(table, hellos, block_bytes) for table in head.tables]
    bound = max(hello.bound for hello in hellos)
    backup = max(hello.backup for hello in hellos)
    switch = max(hello.switch for hello in hellos)
    for table, plan in zip(head.tables, plans, strict=True):
        if is_adaptive(table.consistency) and bound >= 0:
            plan.entry.consistency[IN_FORCE] = bound
        if estimates_backup(table.consistency) and backup >= 0:
            plan.entry.consistency[BACKUP] = backup
        if isinstance(table.consistency, Switch) and switch > 0:
            plan.entry.consistency[SWITCH] = switch
        # A server without a part of the table estimates nothing.
        thresholds = [
            h.thresholds[table.name]
            for h in hellos
            if table.name in h.thresholds and h.shards.get(table.name)
        ]
        if thresholds:
            plan.entry.consistency[THRESHOLD] = max(thresholds)
    return plans


def _plan_table(table: Table, hellos: Sequence[Hello], block_bytes: int) -> TablePlan:
    # Divide the rows of an embedding table evenly; a dense table stays divided as it is.
    by_server = [hello.shards.get(table.name, []) for hello in hellos]
    shards = tuple(shard for mine in by_server for shard in mine)
    if isinstance(table, EmbeddingTable):
        n = sum(shard.rows for shard in shards)
        entry = _entry(table, (n, table.dim), shards)
        cuts = [n * r // len(hellos) for r in range(len(hellos) + 1)]
        ranges = [[(cuts[r], cuts[r + 1])] for r in range(len(hellos))]
        row_bytes = sum(dataset.unit_bytes for dataset in entry.datasets)
    else:
        _check_cover(table, shards)
        entry = _entry(table, table.shape, shards)
        ranges = [[(shard.start, shard.stop) for shard in mine] for mine in by_server]
        row_bytes = 4
    size = max(1, block_bytes // row_bytes)
    blocks = [[block for part in mine for block in cut_range(part, size)] for mine in ranges]
    return TablePlan(entry, blocks)


def cut_range(part: tuple[int, int], size: int) -> list[tuple[int, int]]:
    """Return a range [start, stop) as consecutive ranges of at most `size`."""
    start, stop = part
    return [(at, min(at + size, stop)) for at in range(start, stop, size)]


def _check_cover(table: DenseTable, shards: Sequence[ShardEntry]) -> None:
    at = 0
    for shard in sorted(shards, key=lambda shard: (shard.start, shard.stop)):
        if shard.start != at:
            what = "missing" if shard.start > at else "held twice"
            low, high = sorted((at, shard.start))
            raise CheckpointError(
                f"table {table.name!r}: elements {low} to {high} are {what} (server {shard.server})"
            )
        at = shard.stop
    if at != table.n_elements:
        raise CheckpointError(
            f"table {table.name!r}: elements {at} to {table.n_elements} are missing"
        )


def group_of(name: str) -> str:
    """Return the path of a table's group in the HDF5 file, where "." would mean the enclosing group."""
    return "/tables/" + ("%2E" if name == "." else name)


def _entry(table: Table, shape: tuple[int, ...], shards: tuple[ShardEntry, ...]) -> TableEntry:
    group = group_of(table.name)
    states = stored_states(table)
    is_embedding = isinstance(table, EmbeddingTable)
    unit = shape[1] if is_embedding else 1

    def dataset(role: str, dtype: str, of: tuple[int, ...], each: int) -> DatasetEntry:
        return DatasetEntry(path=f"{group}/{role}", role=role, dtype=dtype, shape=of, unit=each)

    dtype = DATASET_DTYPES[table.row_dtype] if isinstance(table, EmbeddingTable) else "float32"
    datasets = [dataset("values", dtype, shape, unit)]
    of_rows = table.optimizer.row_state_names
    for name in states:
        of, each = (shape[:1], 1) if name in of_rows else (shape, unit)
        datasets.append(dataset(f"state/{name}", "float32", of, each))
    if is_embedding:
        datasets.insert(0, dataset("keys", "int64", shape[:1], 1))
    if counts_steps(table):
        datasets.append(dataset("steps", "uint32", shape[:1], 1))
    if notes_uses(table):
        datasets.append(dataset("uses", "uint32", (shape[0], 2), 2))
    return TableEntry(
        name=table.name,
        group=group,
        kind="embedding" if is_embedding else "dense",
        shape=shape,
        dtype=dtype,
        optimizer=_plain(table.optimizer.to_config()),
        consistency=settings_of(table.consistency),
        partition=_plain(partition_of(table)),
        init=str(table.init) if isinstance(table.init, Initializer) else "array",
        state=states,
        counts_steps=counts_steps(table),
        shards=shards,
        datasets=tuple(datasets),
        **_rows_of(table),
    )


def _rows_of(table: Table) -> dict[str, Any]:
    """Return the options of an embedding table's rows as fields of its entry."""
    if not isinstance(table, EmbeddingTable):
        return {}
    limits = {"admit": limit_config(table.admit), "evict": limit_config(table.evict)}
    return {"hash_buckets": table.hash_buckets, **limits}


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Return options as plain JSON values."""
    plain: dict[str, Any] = msgspec.to_builtins(options, enc_hook=lambda value: value.tolist())
    return plain
