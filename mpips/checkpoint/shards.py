"""The input of a checkpoint writer: private copies of a server's shards, and the description of the job."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips.checkpoint.manifest import WorkerState
from mpips.checkpoint.row_columns import RowColumn
from mpips.errors import CheckpointError
from mpips.model.best_value import BestValue
from mpips.model.common_copy import stored_states
from mpips.model.consistency import estimates_backup, is_adaptive
from mpips.model.partition import Partition
from mpips.model.row_values import bf16_values
from mpips.model.table import DenseTable, EmbeddingTable, Table

Float32 = NDArray[np.float32]
Keys = NDArray[np.int64]


@dataclass(frozen=True)
class DenseShardData:
    """Elements [start, start + n) of a flattened dense tensor.

    Attributes:
        table: Name of the table.
        start: First element.
        values: float32, (n,), contiguous.
        state: float32, (n,), contiguous, by state name.
        version: Number of updates that this shard has applied.
    """

    table: str
    start: int
    values: Float32
    state: Mapping[str, Float32] = field(default_factory=dict)
    version: int = 0


@dataclass(frozen=True)
class EmbeddingShardData:
    """A server's rows of an embedding table, in any order; arrays may be strided views.

    Columns beside the keys may be of the class RowColumn, which reads them in blocks.

    Attributes:
        table: Name of the table.
        keys: int64, (n,), unique over all servers.
        values: float32, (n, dim); of row_dtype "bf16" the bits, uint16, (n, dim).
        state: float32, (n, dim), or (n,) for a state of whole rows, by state name.
        steps: uint32, (n,): number of updates of each row; None if they are not counted.
        version: Number of updates that this shard has applied.
        uses: uint32, (n, 2): the last clock of the run in which each row was pushed, and the number of such
            clocks since the row was made; None if the table evicts no rows.
    """

    table: str
    keys: Keys
    values: Float32 | NDArray[np.uint16] | RowColumn
    state: Mapping[str, Float32 | RowColumn] = field(default_factory=dict)
    steps: NDArray[np.uint32] | RowColumn | None = None
    version: int = 0
    uses: NDArray[np.uint32] | None = None

    def float_values(self, rows: NDArray[np.intp]) -> Float32:
        """Return the values of some rows, given by their places, as float32, shape (len(rows), dim)."""
        chosen = self.values[rows]
        if chosen.dtype == np.uint16:
            return bf16_values(np.asarray(chosen, np.uint16))
        return np.asarray(chosen, np.float32)


ShardData = DenseShardData | EmbeddingShardData


@dataclass(frozen=True)
class ServerState:
    """The state of one server.

    Attributes:
        applied: Sequence number of the last applied record, by worker.
        bound: The bound of SSP("auto") that server 0 has decided on last; -1: this is another server, or no
            table has such a bound.
        backup: The number of backup workers that this server has decided on last; -1: it is fixed.
        thresholds: By name of a table with Reject("auto"), the staleness from which on updates are dropped.
        switch: The clock of the run that was decided on for Switch; -1: none.
    """

    applied: Sequence[int] = ()
    bound: int = -1
    backup: int = -1
    thresholds: Mapping[str, int] = field(default_factory=dict)
    switch: int = -1


@dataclass(frozen=True)
class ManifestHead:
    """The description of the job. Equal on all servers except `workers`, of which server 0's value is used.

    Attributes:
        run_id: Id of the run.
        generation: Generation number of the checkpoint.
        step: Global step; part of the checkpoint's name.
        wall_time_s: Unix time of the cut, seconds.
        tables: All tables of the job.
        workers: Clocks, data cursors, random states and files of the workers.
        config: Resolved configuration, as values of JSON.
        sampling: Meaning of the cursors; see Manifest.
        data: Description of the training data; see Manifest.
        attachments: Arrays beside the tables, by path in the file; only server 0's value is used. See
            `mpips.checkpoint.structure.meaning_of`.
        best: See Manifest.
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
    attachments: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    best: BestValue | None = None


def counts_steps(table: Table) -> bool:
    """Return True if each row of the table counts its own updates."""
    return isinstance(table, EmbeddingTable) and table.counts_updates


def notes_uses(table: Table) -> bool:
    """Return True if the table has the last clock and the number of clocks of each row."""
    return isinstance(table, EmbeddingTable) and table.evict is not None


def settings_of(value: Any) -> dict[str, Any]:
    """Return a consistency model, with its policy, as a configuration mapping.

    A fixed bound of SSP, or number of backup workers, has no greatest one.
    """
    options = {
        f.name: settings_of(getattr(value, f.name))
        if dataclasses.is_dataclass(getattr(value, f.name))
        else getattr(value, f.name)
        for f in dataclasses.fields(value)
        if f.name != "max" or is_adaptive(value) or estimates_backup(value)
    }
    return {"name": value.name, **options}


def partition_of(table: Table) -> dict[str, Any]:
    """Return the table's partition as a configuration mapping."""
    assert isinstance(table.partition, Partition)
    return table.partition.to_config()


def check_shards(head: ManifestHead, shards: Sequence[ShardData]) -> None:
    """Check that shards fit their tables. Local.

    Raises:
        CheckpointError: An array or a shard is wrong; the error names it and what is expected.
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
            raise CheckpointError(
                f"a shard belongs to table {shard.table!r}, which is not in the job's list of tables"
            )
        if isinstance(shard, EmbeddingShardData) and shard.table in seen:
            raise CheckpointError(
                f"table {shard.table!r}: one server gave two sets of rows; join them into one shard"
            )
        seen.add(shard.table)
        _check_states(table, shard)
        if isinstance(shard, DenseShardData) and isinstance(table, DenseTable):
            _check_dense(table, shard)
        elif isinstance(shard, EmbeddingShardData) and isinstance(table, EmbeddingTable):
            _check_rows(table, shard)
        else:
            expected = DenseShardData if isinstance(table, DenseTable) else EmbeddingShardData
            raise CheckpointError(
                f"table {table.name!r}: the shard is a {type(shard).__name__}, expected {expected.__name__}"
            )


def _check_states(table: Table, shard: ShardData) -> None:
    expected = stored_states(table)
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
            f"table {table.name!r}: elements {shard.start} to {shard.start + len(shard.values)} lie outside "
            f"its {table.n_elements} elements"
        )


def _check_rows(table: EmbeddingTable, shard: EmbeddingShardData) -> None:
    n = len(shard.keys)
    _check_array(table.name, "keys", shard.keys, np.int64, (n,))
    dtype = np.uint16 if table.row_dtype == "bf16" else np.float32
    _check_array(table.name, "values", shard.values, dtype, (n, table.dim))
    for name, array in shard.state.items():
        of_rows = name in table.optimizer.row_state_names
        _check_array(table.name, name, array, np.float32, (n,) if of_rows else (n, table.dim))
    if (shard.steps is not None) != counts_steps(table):
        raise CheckpointError(
            f"table {table.name!r}: steps of rows are "
            + ("missing" if shard.steps is None else "given, but its optimizer counts none")
        )
    if shard.steps is not None:
        _check_array(table.name, "steps", shard.steps, np.uint32, (n,))
    if (shard.uses is not None) != notes_uses(table):
        raise CheckpointError(
            f"table {table.name!r}: uses of rows are "
            + ("missing" if shard.uses is None else "given, but it evicts none")
        )
    if shard.uses is not None:
        _check_array(table.name, "uses", shard.uses, np.uint32, (n, 2))


def _check_array(
    table: str,
    name: str,
    array: NDArray[Any] | RowColumn,
    dtype: type[np.generic],
    shape: tuple[int, ...],
) -> None:
    if array.dtype != dtype or array.shape != shape:
        raise CheckpointError(
            f"table {table!r}: {name} is {array.dtype} of shape {array.shape}, expected "
            f"{np.dtype(dtype)} of shape {shape}"
        )
