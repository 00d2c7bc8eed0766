"""The rows of a table with storage at a cut: those in memory as a copy, those in the file as views.

A view (native/src/server/row_storage.hpp) begins at the cut. Until it ends, the server does not write the
slots of the file whose rows it had then, so a checkpoint reads them in blocks while rows move on. Each row is
read at the place that it had at the cut, so it is there once, with its value at the cut.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.errors import CheckpointError, DiskFullError

Array = NDArray[Any]

_IN_FILE = np.uint32(1 << 31)  # RowStorage::in_file


class CutRows:
    """All rows of one table of a server at a cut."""

    def __init__(
        self,
        core: _native.ServerCore,
        table: int,
        view: int,
        keys: Array,
        places: Array,
        memory: Array,
    ) -> None:
        """Read nothing yet.

        Args:
            core: The native server.
            table: Index of the table.
            view: Number of the view that began at the cut.
            keys: int64, shape (n,).
            places: uint32, shape (n,): frame or slot of each row.
            memory: float32, shape (frames, floats per row): the rows in memory, by frame.
        """
        self._core, self._table, self._view = core, table, view
        self._keys, self._places, self._memory = keys, places, memory

    def read(self, rows: NDArray[np.intp]) -> Array:
        """Return some rows as they are stored, float32, shape (len(rows), floats per row).

        Raises:
            DiskFullError: The file had no space for newer rows beside these, so they are gone.
            CheckpointError: The file cannot be read.
        """
        places = self._places[rows]
        cold = places >= _IN_FILE
        found = np.empty((len(rows), self._memory.shape[1]), np.float32)
        found[~cold] = self._memory[places[~cold]]
        if cold.any():
            try:
                found[cold] = self._core.stored_rows(
                    self._table, self._view, self._keys[rows[cold]], places[cold]
                )
            except _native.StorageFull as error:
                raise DiskFullError(str(error)) from None
            except _native.StorageError as error:
                raise CheckpointError(str(error)) from None
        return found
