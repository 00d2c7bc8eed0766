"""The common part of the handles of tables in a worker's own memory: replicated ones and local ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips.model.arrays import check_out
from mpips.model.table import DenseTable
from mpips.worker.base import Handle
from mpips.worker.requests import PolledRequest, PushResult, Request
from mpips.worker.whole import Whole

if TYPE_CHECKING:
    from mpips.worker.connection import Connection

Float32 = NDArray[np.float32]


class HeldHandle(Handle, ABC):
    """Access to a dense table whose values are in the worker's own memory. Not thread-safe.

    Attributes:
        name: Name of the table.
        shape: Shape of the tensor.
    """

    def __init__(self, connection: Connection, index: int, table: DenseTable) -> None:
        """`index`: of the table in the job; `table`: with the rule that steps in the worker."""
        super().__init__(connection, index, table, [])
        self.shape = table.shape

    def disown(self) -> None:
        """In a forked child every use raises ForkError: the connection refuses it."""

    @abstractmethod
    def push(
        self, update: Float32, base: Float32 | None = None, *, closes: bool = False
    ) -> Request[PushResult]:
        """See DenseHandle.push."""

    @abstractmethod
    def pull(self, out: Float32 | None = None) -> Float32:
        """See DenseHandle.pull."""

    @abstractmethod
    def view(self) -> Float32:
        """See DenseHandle.view."""

    @abstractmethod
    def optimizer_state(self, slot: int, out: Float32 | None = None) -> Float32:
        """See DenseHandle.optimizer_state."""

    @abstractmethod
    def n_updates(self) -> int:
        """See DenseHandle.n_updates."""

    def _room(self, out: Float32 | None) -> Float32:
        """Return where a pull writes to, checked: `out`, or a new array."""
        self._check_open("a pull of")
        if out is None:
            out = np.empty(self.shape, np.float32)
        check_out(out, self.shape, True)
        return out

    def _finish_coming(self) -> None:
        """Take the values of `Worker.push_pull` that are not taken yet: a closed table cannot be pulled."""
        if self._connection.coming is not None:
            self._connection.coming.finish()

    def views(self) -> list[tuple[int, int, Float32]]:
        """Return [(0, n, read-only values)] of the flat tensor; see `view`."""
        flat = self.view().reshape(-1)
        return [(0, len(flat), flat)]

    def _taken(self) -> Request[PushResult]:
        """Return the request of a push that is complete: one update was applied."""
        connection = self._connection
        return PolledRequest(
            lambda _: True,
            lambda: PushResult(applied=1),
            str,
            connection.timeout_s,
            connection.poll,
        )

    def push_pull(self, update: Float32, out: Float32 | None = None) -> Float32:
        """Push an update, end the clock, and pull the new values. Blocks like `pull`."""
        if out is not None:
            check_out(out, self.shape, contiguous=True)
        self.push(update)
        with Whole(self._connection, f"push_pull of table {self.name!r}"):
            self._connection.clock()
            return self.pull(out)
