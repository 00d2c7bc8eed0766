"""The tables of a checkpoint as the worker of a task that predicts many samples: the file is mapped.

The workers of a node share the pages of the file, which the system reads when they are needed and drops when
memory is short. So a worker needs memory for the rows of one batch, whatever the size of the tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpips.checkpoint import Checkpoint
from mpips.checkpoint.manifest import DTYPES, DatasetEntry
from mpips.errors import CheckpointError
from mpips.model.table import EmbeddingTable, Table
from mpips.training.example import Float32, Keys, RowsInFile


def mapped(checkpoint: Checkpoint, entry: DatasetEntry, shape: tuple[int, ...]) -> Any:
    """Return a dataset of a checkpoint as an array that cannot be changed, of its dtype and this shape."""
    if not entry.n_units:
        return np.zeros(shape, DTYPES[entry.dtype])
    with checkpoint.opened() as file:
        return np.memmap(file, DTYPES[entry.dtype], "r", entry.offset, shape)


class _MappedDense:
    """A dense table."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def pull(self) -> Float32:
        """Return a new copy of the table, float32, of its shape."""
        return np.array(self._values, np.float32)


class _MappedRows(RowsInFile):
    """An embedding table; keys are searched for in the mapped file."""

    def __init__(self, checkpoint: Checkpoint, table: EmbeddingTable, seed: int) -> None:
        super().__init__(checkpoint, table, seed)
        entry = checkpoint.manifest.table(table.name)
        self._keys = mapped(checkpoint, entry.dataset("keys"), entry.shape[:1])
        self._values = mapped(checkpoint, entry.dataset("values"), entry.shape)

    def pull(self, keys: Keys) -> Float32:
        """Return the rows of `keys` (int64, shape (n,)), float32, shape (n, dim)."""
        rows = self.initial(keys)
        if len(self._keys):
            places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
            stored = self._keys[places] == keys
            rows[stored] = self._values[places[stored]]
        return rows


class MappedTables:
    """The tables of a checkpoint; see the module.

    Attributes:
        index: 0, the index of the only worker.
        n_workers: 1.
    """

    index = 0
    n_workers = 1

    def __init__(self, checkpoint: Checkpoint, tables: Sequence[Table], seed: int) -> None:
        """Map the tables.

        Args:
            checkpoint: An open checkpoint; it may be closed afterwards.
            tables: Those of the task.
            seed: Seed of the job.

        Raises:
            CheckpointError: The checkpoint is a link of a chain, whose file has not the whole tables.
        """
        if checkpoint.manifest.link is not None:
            raise CheckpointError(
                f"{checkpoint.path}: is a link of a chain; make it whole by `mpips ckpt compact`"
            )
        self._tables: dict[str, _MappedDense | _MappedRows] = {}
        for table in tables:
            entry = checkpoint.manifest.table(table.name)
            if isinstance(table, EmbeddingTable):
                # The job may have replaced the initial values of the task.
                own = dataclasses.replace(table, init=entry.init)
                self._tables[table.name] = _MappedRows(checkpoint, own, seed)
            else:
                values = mapped(checkpoint, entry.dataset("values"), entry.shape)
                self._tables[table.name] = _MappedDense(values)

    def table(self, name: str) -> _MappedDense | _MappedRows:
        """Return a table."""
        return self._tables[name]
