"""The tables of a run at work as a task sees those of a worker: it pulls from them and cannot push."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mpips.inference.live import LiveGone, LiveRun
from mpips.inference.stored_tables import (
    Content,
    Float32,
    Keys,
    OnMissing,
    ReadOnlyTable,
    StoredTables,
    settle_missing,
)
from mpips.model.initial_rows import initial_rows
from mpips.model.table import DenseTable, EmbeddingTable


class LiveDenseTable(ReadOnlyTable):
    """A dense table in the memory of the servers.

    Attributes:
        name: Name of the table.
    """

    def __init__(self, name: str, tables: LiveTables) -> None:
        """Read nothing yet."""
        self.name = name
        self._tables = tables

    def pull(self) -> Float32:
        """Return a new copy of the table as it is now, float32, of its shape.

        Raises:
            LiveGone: The memory cannot be read.
        """
        found = self._tables.live.dense(self.name)
        self._tables.note_step(found.step)
        return found.values


class LiveEmbeddingTable(ReadOnlyTable):
    """An embedding table in the memory of the servers.

    Attributes:
        name: Name of the table.
    """

    def __init__(
        self, table: EmbeddingTable, seed: int, tables: LiveTables, on_missing: OnMissing
    ) -> None:
        """Read nothing yet; `seed`: of the job."""
        self.name = table.name
        self._table = table
        self._seed = seed
        self._tables = tables
        self._on_missing: OnMissing = on_missing

    def pull(self, keys: Keys) -> Float32:
        """Return the rows of `keys` (int64, shape (n,)) as they are now, float32, shape (n, dim).

        Raises:
            DataError: A key has no row, and those are refused.
            LiveGone: The memory cannot be read.
        """
        found = self._tables.live.rows(self.name, keys)
        self._tables.note_step(found.step)
        settle_missing(self.name, keys, found.values, found.has, self._on_missing)
        return found.values

    def initial(self, keys: Keys) -> Float32:
        """Return the initial rows of `keys`, before any update, float32, shape (n, dim)."""
        return initial_rows(self._table, self._seed, self._table.stored_keys(keys))

    def prefetch(self, keys: Keys) -> None:
        """Do nothing: all rows are in memory."""


class LiveTables(Mapping[str, Content]):
    """The tables of a run, each pull as it is in memory now. Not thread-safe: one for each prediction.

    Attributes:
        index: 0, the index of the only worker.
        n_workers: 1.
        live: The memory.
        step: Step of the oldest values that were pulled; None: none were.
    """

    index = 0
    n_workers = 1

    def __init__(self, live: LiveRun, stored: StoredTables, on_missing: OnMissing) -> None:
        """Read nothing yet.

        Args:
            live: The memory.
            stored: The tables of a checkpoint of the run, which describe the live ones.
            on_missing: Value of keys without a row.

        Raises:
            LiveGone: The servers have other tables, or none can be read now.
        """
        self.live = live
        self.step: int | None = None
        self._stored = stored
        self._on_missing: OnMissing = on_missing
        for name, table in stored.declared.items():
            found = live.table(name)
            shape = table.shape if isinstance(table, DenseTable) else (table.dim,)
            if found is None or found.shape != shape:
                raise LiveGone(f"the servers hold no table '{name}' of this shape")

    def note_step(self, step: int) -> None:
        """Note the step of values that were pulled."""
        self.step = step if self.step is None else min(step, self.step)

    def table(self, name: str) -> LiveDenseTable | LiveEmbeddingTable:
        """Return a table as a task uses it.

        Raises:
            ConfigError: The task declares no such table.
        """
        table = self._stored.table_named(name)
        if isinstance(table, DenseTable):
            return LiveDenseTable(name, self)
        return LiveEmbeddingTable(table, self._stored.seed, self, self._on_missing)

    def __getitem__(self, name: str) -> Content:
        """Return the values of a dense table; those of others are not listed."""
        if name not in self._stored:
            raise KeyError(name)
        handle = self.table(name)
        if isinstance(handle, LiveDenseTable):
            return handle.pull()
        raise LiveGone(f"the rows of table '{name}' cannot be listed in memory")

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)
