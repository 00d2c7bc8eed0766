"""What a server hands over to be written: private copies of its shards, and what goes with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips.checkpoint.manifest import WorkerState
from mpips.errors import CheckpointError
from mpips.model.optimizer import Adam
from mpips.model.partition import Partition
from mpips.model.table import DenseTable, EmbeddingTable, Table

Float32 = NDArray[np.float32]
Keys = NDArray[np.int64]


@dataclass(frozen=True)
class DenseShardData:
    """Elements [start, start + n) of a flattened dense tensor.

    Attributes:
        table: Its name.
        start: The first element.
        values: float32, (n,), contiguous.
        state: float32, (n,), contiguous, by state name.
        version: Updates that this shard has applied.
    """

    table: str
    start: int
    values: Float32
    state: Mapping[str, Float32] = field(default_factory=dict)
    version: int = 0


@dataclass(frozen=True)
class EmbeddingShardData:
    """A server's rows of an embedding table, in any order; rows may be strided views.

    Attributes:
        table: Its name.
        keys: int64, (n,), unique, also over all servers.
        values: float32, (n, dim).
        state: float32, (n, dim), by state name.
        steps: uint32, (n,): updates of each row, where the rule counts them.
        version: Updates that this shard has applied.
    """

    table: str
    keys: Keys
    values: Float32
    state: Mapping[str, Float32] = field(default_factory=dict)
    steps: NDArray[np.uint32] | None = None
    version: int = 0


ShardData = DenseShardData | EmbeddingShardData


@dataclass(frozen=True)
class ServerState:
    """What only this server knows: `applied[w]`, the last sequence number applied of worker w."""

    applied: Sequence[int] = ()


@dataclass(frozen=True)
class ManifestHead:
    """What the job knows. The same on all servers but for `workers`, of which server 0's count.

    Attributes:
        run_id: Of the run.
        generation: Launches of this run so far.
        step: Global step; names the checkpoint.
        wall_time_s: Seconds since 1970 at the cut.
        tables: All of the job.
        workers: Clocks, data cursors and random states.
        config: The resolved configuration, as JSON holds it.
        sampling, data: See Manifest.
    """

    run_id: str
    generation: int
    step: int
    wall_time_s: float
    tables: Sequence[Table]
    workers: Sequence[WorkerState] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)


def counts_steps(table: Table) -> bool:
    """Whether each row of the table counts its own updates."""
    return isinstance(table, EmbeddingTable) and isinstance(table.optimizer, Adam)


def settings_of(value: Any) -> dict[str, Any]:
    """A consistency model, with its policy, as a configuration mapping."""
    options = {
        f.name: settings_of(getattr(value, f.name))
        if f.name == "policy"
        else getattr(value, f.name)
        for f in dataclasses.fields(value)
    }
    return {"name": value.name, **options}


def partition_of(table: Table) -> dict[str, Any]:
    """The table's partition as a configuration mapping."""
    assert isinstance(table.partition, Partition)
    return table.partition.to_config()


def check_shards(head: ManifestHead, shards: Sequence[ShardData]) -> None:
    """Refuse shards that do not fit their tables. Local.

    Raises:
        CheckpointError: Says which array of which table, and what is expected.
    """
    if head.step < 0 or head.generation < 0:
        raise CheckpointError(
            f"step {head.step} of generation {head.generation}: must be 0 or more"
        )
    tables = {table.name: table for table in head.tables}
    seen: set[str] = set()
    for shard in shards:
        table = tables.get(shard.table)
        if table is None:
            raise CheckpointError(f"a shard belongs to table {shard.table!r}, which is none")
        if isinstance(shard, EmbeddingShardData) and shard.table in seen:
            raise CheckpointError(f"table {shard.table!r}: one server gave two sets of rows")
        seen.add(shard.table)
        _check_states(table, shard)
        if isinstance(shard, DenseShardData) and isinstance(table, DenseTable):
            _check_dense(table, shard)
        elif isinstance(shard, EmbeddingShardData) and isinstance(table, EmbeddingTable):
            _check_rows(table, shard)
        else:
            raise CheckpointError(f"table {table.name!r}: the shard is of the other kind")


def _check_states(table: Table, shard: ShardData) -> None:
    expected = tuple(table.optimizer.state_names)
    if tuple(shard.state) != expected:
        raise CheckpointError(
            f"table {table.name!r}: states {tuple(shard.state)}, expected {expected}"
        )


def _check_dense(table: DenseTable, shard: DenseShardData) -> None:
    shape = (len(shard.values),) if shard.values.ndim else ()
    for name, array in {"values": shard.values, **shard.state}.items():
        _check_array(table.name, name, array, np.float32, shape)
        if array.ndim != 1 or not array.flags.c_contiguous:
            raise CheckpointError(f"table {table.name!r}: {name} must be contiguous, shape (n,)")
    if not 0 <= shard.start <= shard.start + len(shard.values) <= table.n_elements:
        raise CheckpointError(
            f"table {table.name!r}: elements {shard.start} to {shard.start + len(shard.values)} of "
            f"{table.n_elements}"
        )


def _check_rows(table: EmbeddingTable, shard: EmbeddingShardData) -> None:
    n = len(shard.keys)
    _check_array(table.name, "keys", shard.keys, np.int64, (n,))
    for name, array in {"values": shard.values, **shard.state}.items():
        _check_array(table.name, name, array, np.float32, (n, table.dim))
    if (shard.steps is not None) != counts_steps(table):
        raise CheckpointError(
            f"table {table.name!r}: steps of rows are "
            + ("missing" if shard.steps is None else "given, but its rule counts none")
        )
    if shard.steps is not None:
        _check_array(table.name, "steps", shard.steps, np.uint32, (n,))


def _check_array(
    table: str, name: str, array: NDArray[Any], dtype: type[np.generic], shape: tuple[int, ...]
) -> None:
    if array.dtype != dtype or array.shape != shape:
        raise CheckpointError(
            f"table {table!r}: {name} is {array.dtype} of shape {array.shape}, expected "
            f"{np.dtype(dtype)} of shape {shape}"
        )
