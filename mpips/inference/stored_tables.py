"""The tables of a checkpoint as a task sees those of a worker: it pulls from them and cannot push."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from mpips.checkpoint import Checkpoint
from mpips.errors import ConfigError, DataError
from mpips.model.initial_rows import initial_rows
from mpips.model.table import DenseTable, EmbeddingTable, Table

Float32: TypeAlias = npt.NDArray[np.float32]
Keys: TypeAlias = npt.NDArray[np.int64]
Content: TypeAlias = Float32 | tuple[Keys, Float32]


# Value of a key without a row: the initial one, as a pull in the training returns it; zeros; or none.
OnMissing: TypeAlias = Literal["initial", "zero", "error"]
ON_MISSING = get_args(OnMissing)
_MOST_NAMED = 3  # keys that an error names


def settle_missing(
    name: str, keys: Keys, rows: Float32, has: npt.NDArray[np.bool_], on_missing: OnMissing
) -> None:
    """Give keys without a row their value.

    Args:
        name: Name of the table, for the error.
        keys: int64, shape (n,).
        rows: float32, shape (n, dim), with the initial values of keys without a row; is changed.
        has: True for the keys that have a row, shape (n,).
        on_missing: "initial": leave the initial values; "zero": store zeros; "error": refuse such keys.

    Raises:
        DataError: Keys have no row, and `on_missing` is "error".
    """
    if on_missing == "initial" or has.all():
        return
    lacking = np.flatnonzero(~has)
    if on_missing == "zero":
        rows[lacking] = 0.0
        return
    named = ", ".join(str(key) for key in np.asarray(keys)[lacking[:_MOST_NAMED]])
    raise DataError(
        f"table '{name}' has no row for {len(lacking):,} of {len(keys):,} keys, such as {named}: leave them "
        "out, or ask with on_missing = 'initial' or 'zero'"
    )


class ReadOnlyTable:
    """The part of a handle that a loaded model refuses."""

    name: str

    def push(self, *args: Any, **options: Any) -> NoReturn:
        """Raise ConfigError: a loaded model is not trained."""
        raise ConfigError(
            f"table '{self.name}' of a loaded model cannot be changed; continue the training from its "
            "checkpoint: mpips train --resume"
        )


class StoredDense(ReadOnlyTable):
    """A dense table of a checkpoint.

    Attributes:
        name: Name of the table.
        values: float32, of the table's shape; not to be changed.
    """

    def __init__(self, name: str, values: Float32) -> None:
        """Take the values."""
        self.name = name
        self.values = values

    def pull(self) -> Float32:
        """Return a new copy of the table, float32, of its shape."""
        return self.values.copy()


class StoredRows(ReadOnlyTable):
    """An embedding table of a checkpoint.

    Attributes:
        name: Name of the table.
        keys: Keys of the rows, int64, shape (n,), ascending; not to be changed.
        values: Rows, float32, shape (n, dim); not to be changed.
    """

    def __init__(
        self,
        table: EmbeddingTable,
        seed: int,
        keys: Keys,
        values: Float32,
        on_missing: OnMissing = "initial",
    ) -> None:
        """Take the rows; those of other keys have the initial values of `table` in a job with `seed`.

        `on_missing`: see `settle_missing`.
        """
        self.name = table.name
        self.keys = keys
        self.values = values
        self._table = table
        self._seed = seed
        self._on_missing: OnMissing = on_missing

    def check_keys(self) -> None:
        """Raise ConfigError if keys of a program are not those of the rows, which some exports need."""
        if self._table.hash_buckets:
            raise ConfigError(
                f"table {self.name!r} has hash_buckets = {self._table.hash_buckets}: this export has a row "
                "for each key, and no buckets; export the checkpoint with `mpips ckpt export`"
            )

    def pull(self, keys: Keys) -> Float32:
        """Return the rows of `keys` (int64, shape (n,)), float32, shape (n, dim).

        Raises:
            DataError: A key has no row, and those are refused.
        """
        rows, has = self.find(keys)
        settle_missing(self.name, keys, rows, has, self._on_missing)
        return rows

    def find(self, keys: Keys) -> tuple[Float32, npt.NDArray[np.bool_]]:
        """Return the rows of `keys` as in `pull`, initial ones of missing keys, and which keys have a row."""
        keys = self._table.stored_keys(np.ascontiguousarray(keys, np.int64))
        rows = initial_rows(self._table, self._seed, keys)
        has = np.zeros(len(keys), np.bool_)
        if len(self.keys):
            places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            has = self.keys[places] == keys
            rows[has] = self.values[places[has]]
        return rows, has

    def initial(self, keys: Keys) -> Float32:
        """Return the initial rows of `keys`, before any update, float32, shape (n, dim)."""
        stored = self._table.stored_keys(np.ascontiguousarray(keys, np.int64))
        return initial_rows(self._table, self._seed, stored)

    def prefetch(self, keys: Keys) -> None:
        """Do nothing: all rows are in memory."""


class StoredTables(Mapping[str, Content]):
    """The tables of a checkpoint by name: an array, or keys and rows. Read when first used.

    It is also the worker of a task that predicts (`mpips.tasks.base.Worker`).

    Attributes:
        index: 0, the index of the only worker.
        n_workers: 1.
        checkpoint: The open checkpoint.
        declared: The tables of the task by name.
        seed: Seed of the job that trained them.
    """

    index = 0
    n_workers = 1

    def __init__(
        self,
        checkpoint: Checkpoint,
        tables: Sequence[Table],
        seed: int,
        on_missing: OnMissing = "initial",
    ) -> None:
        """Read nothing yet.

        Args:
            checkpoint: An open checkpoint, which this object owns from now on.
            tables: The tables of the task.
            seed: Seed of the job that trained them.
            on_missing: Value of keys without a row; see `settle_missing`.

        Raises:
            CheckpointError: A table is not in the checkpoint.
            ConfigError: A table has another shape there.
        """
        self.checkpoint = checkpoint
        self.declared = {table.name: table for table in tables}
        self.seed = seed
        self._on_missing: OnMissing = on_missing
        self._handles: dict[str, StoredDense | StoredRows] = {}
        for table in tables:
            self._check(table)

    def _check(self, table: Table) -> None:
        entry = self.checkpoint.manifest.table(table.name)
        dense = isinstance(table, DenseTable)
        shape = table.shape if isinstance(table, DenseTable) else (entry.shape[0], table.dim)
        if (entry.kind == "dense") != dense or entry.shape != shape:
            raise ConfigError(
                f"{self.checkpoint.path}: table '{table.name}' is {entry.kind} of shape {entry.shape}, but "
                f"the task now declares {'dense' if dense else 'embedding'} of shape {shape}; use the "
                "version of the task that was trained"
            )

    def table(self, name: str) -> StoredDense | StoredRows:
        """Return a table as a task uses it, with its values in memory.

        Raises:
            ConfigError: The task declares no such table.
            CheckpointError: The file cannot be read.
        """
        if name not in self._handles:
            self._handles[name] = self._read(self.table_named(name))
        return self._handles[name]

    def table_named(self, name: str) -> Table:
        """Return the declaration of a table, as the servers of its run have it.

        Raises:
            ConfigError: The task declares no such table.
        """
        if name not in self.declared:
            raise ConfigError(f"no table '{name}'; there are {', '.join(self.declared) or 'none'}")
        table = self.declared[name]
        if isinstance(table, DenseTable):
            return table
        return self.checkpoint.manifest.table(name).stored(table)

    def _read(self, table: Table) -> StoredDense | StoredRows:
        entry = self.checkpoint.manifest.table(table.name)
        values = entry.dataset("values")
        found = self.checkpoint.read(values, 0, values.n_units).reshape(entry.shape)
        if isinstance(table, DenseTable):
            return StoredDense(table.name, found)
        keys = self.checkpoint.read(entry.dataset("keys"), 0, entry.shape[0])
        return StoredRows(table, self.seed, keys, found, self._on_missing)

    def __getitem__(self, name: str) -> Content:
        """Return a copy of the values of a dense table, or of the keys and the rows of an embedding table."""
        if name not in self.declared:
            raise KeyError(name)
        handle = self.table(name)
        if isinstance(handle, StoredDense):
            return handle.pull()
        return handle.keys.copy(), handle.values.copy()

    def __iter__(self) -> Iterator[str]:
        return iter(self.declared)

    def __len__(self) -> int:
        return len(self.declared)
