"""Columns of rows that are read in blocks, for checkpoints of tables that are larger than memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Block = Mapping[str, Array]


class RowBlocks:
    """All columns of a table's rows; the last block that was read stays in memory."""

    def __init__(self, n: int, read: Callable[[NDArray[np.intp]], Block]) -> None:
        """Read nothing yet.

        Args:
            n: Number of rows.
            read: Returns all columns, by role, of rows that are given by their numbers.
        """
        self._read = read
        self._rows: NDArray[np.intp] = np.empty(0, np.intp)
        self._block = read(self._rows)
        self.columns = {
            role: RowColumn(self, role, array.dtype, (n, *array.shape[1:]))
            for role, array in self._block.items()
        }

    def take(self, role: str, rows: NDArray[np.intp]) -> Array:
        """Return one column of some rows.

        Raises:
            CheckpointError: The rows cannot be read.
        """
        if rows is not self._rows:
            self._block, self._rows = self._read(rows), rows
        return self._block[role]


class RowColumn:
    """A column of the shape and dtype of an array, whose rows are read when they are asked for."""

    def __init__(
        self, blocks: RowBlocks, role: str, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> None:
        """Read nothing."""
        self._blocks, self._role = blocks, role
        self.dtype, self.shape, self.ndim = dtype, shape, len(shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: NDArray[np.intp]) -> Array:
        """Return some rows, given by their numbers, contiguous."""
        return np.ascontiguousarray(self._blocks.take(self._role, rows))
