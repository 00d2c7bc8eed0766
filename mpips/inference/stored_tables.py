"""The tables of a checkpoint as a task sees those of a worker: it pulls from them and cannot push."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.checkpoint import Checkpoint
from mpips.errors import ConfigError
from mpips.model.row_values import initial_rows
from mpips.model.table import DenseTable, EmbeddingTable, Table

Float32: TypeAlias = npt.NDArray[np.float32]
Keys: TypeAlias = npt.NDArray[np.int64]
Content: TypeAlias = Float32 | tuple[Keys, Float32]


class _ReadOnly:
    """The part of a handle that a loaded model refuses."""

    name: str

    def push(self, *args: Any, **options: Any) -> NoReturn:
        """Raise ConfigError: a loaded model is not trained."""
        raise ConfigError(
            f"table '{self.name}' of a loaded model cannot be changed; continue the training from its "
            "checkpoint: mpips train --resume"
        )


class StoredDense(_ReadOnly):
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


class StoredRows(_ReadOnly):
    """An embedding table of a checkpoint.

    Attributes:
        name: Name of the table.
        keys: Keys of the rows, int64, shape (n,), ascending; not to be changed.
        values: Rows, float32, shape (n, dim); not to be changed.
    """

    def __init__(self, table: EmbeddingTable, seed: int, keys: Keys, values: Float32) -> None:
        """Take the rows; those of other keys have the initial values of `table` in a job with `seed`."""
        self.name = table.name
        self.keys = keys
        self.values = values
        self._table = table
        self._seed = seed

    def check_keys(self) -> None:
        """Raise ConfigError if keys of a program are not those of the rows, which some exports need."""
        if self._table.hash_buckets:
            raise ConfigError(
                f"table {self.name!r} has hash_buckets = {self._table.hash_buckets}: this export has a row "
                "for each key, and no buckets; export the checkpoint with `mpips ckpt export`"
            )

    def pull(self, keys: Keys) -> Float32:
        """Return the rows of `keys` (int64, shape (n,)), float32, shape (n, dim)."""
        keys = self._table.stored_keys(np.ascontiguousarray(keys, np.int64))
        rows = initial_rows(self._table, self._seed, keys)
        if len(self.keys):
            places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            stored = self.keys[places] == keys
            rows[stored] = self.values[places[stored]]
        return rows

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
    """

    index = 0
    n_workers = 1

    def __init__(self, checkpoint: Checkpoint, tables: Sequence[Table], seed: int) -> None:
        """Read nothing yet.

        Args:
            checkpoint: An open checkpoint, which this object owns from now on.
            tables: The tables of the task.
            seed: Seed of the job that trained them.

        Raises:
            CheckpointError: A table is not in the checkpoint.
            ConfigError: A table has another shape there.
        """
        self.checkpoint = checkpoint
        self._tables = {table.name: table for table in tables}
        self._seed = seed
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
        if name not in self._tables:
            raise ConfigError(f"no table '{name}'; there are {', '.join(self._tables) or 'none'}")
        if name not in self._handles:
            self._handles[name] = self._read(self._tables[name])
        return self._handles[name]

    def _read(self, table: Table) -> StoredDense | StoredRows:
        entry = self.checkpoint.manifest.table(table.name)
        values = entry.dataset("values")
        found = self.checkpoint.read(values, 0, values.n_units).reshape(entry.shape)
        if isinstance(table, DenseTable):
            return StoredDense(table.name, found)
        keys = self.checkpoint.read(entry.dataset("keys"), 0, entry.shape[0])
        return StoredRows(entry.stored(table), self._seed, keys, found)

    def __getitem__(self, name: str) -> Content:
        """Return a copy of the values of a dense table, or of the keys and the rows of an embedding table."""
        if name not in self._tables:
            raise KeyError(name)
        handle = self.table(name)
        if isinstance(handle, StoredDense):
            return handle.pull()
        return handle.keys.copy(), handle.values.copy()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)
