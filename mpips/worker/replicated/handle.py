"""The handle of a replicated table: a dense table that every worker holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips.model.arrays import as_float32, check_out
from mpips.model.optimizer import Optimizer
from mpips.model.table import DenseTable
from mpips.worker.held import HeldHandle
from mpips.worker.requests import PolledRequest, PushResult, Request

if TYPE_CHECKING:
    from mpips.worker.connection import Connection
    from mpips.worker.replicated.tables import ReplicatedTables

Float32 = NDArray[np.float32]


class ReplicatedHandle(HeldHandle):
    """A worker's access to one replicated table, with the methods of DenseHandle. Not thread-safe.

    Attributes:
        name: Name of the table.
        shape: Shape of the tensor.
    """

    def __init__(self, connection: Connection, index: int, table: DenseTable) -> None:
        """`index`: of the table in the job."""
        super().__init__(connection, index, table)
        self._number = self._tables.place(index)

    @property
    def _tables(self) -> ReplicatedTables:
        tables = self._connection.replicated
        assert tables is not None
        return tables

    @property
    def paths(self) -> list[str]:
        """["replicated"]: updates go to no server."""
        return ["replicated"]

    def pull(self, out: Float32 | None = None) -> Float32:
        """Copy the current values: those after all workers' previous clocks. Blocks until they are complete.

        Args:
            out: As in DenseHandle.pull.

        Returns:
            `out`.

        Raises:
            StallError: A worker was late for the job's timeout; the message names it.
        """
        out = self._room(out)
        self._tables.pull(self._number, out.reshape(-1))
        return out

    def prefetch(self, out: Float32 | None = None) -> Request[Float32]:
        """Start a pull; `wait` returns the values. Returns at once; see DenseHandle.prefetch."""
        self._check_open("a pull of")
        if out is not None:
            check_out(out, self.shape, contiguous=True)
        tables = self._tables
        return PolledRequest(
            lambda max_s: tables.ready(self._number, max_s),
            lambda: self.pull(out),
            tables.late,
            self._connection.timeout_s,
            self._connection.poll,
            self._connection.spent.waited,
        )

    def optimizer_state(self, slot: int, out: Float32 | None = None) -> Float32:
        """Copy a state of the table's rule, of the clock of a pull. Blocks like `pull`.

        Args:
            slot: As in DenseHandle.optimizer_state.
            out: As in DenseHandle.pull.

        Returns:
            `out`.

        Raises:
            ConfigError: The table was closed in this clock.
            IndexError: The rule has no such state.
            StallError: A worker was late for the job's timeout; the message names it.
        """
        self._check_state(slot)
        out = self._room(out)
        np.copyto(out.reshape(-1), self._tables.state(self._number, slot))
        return out

    def n_updates(self) -> int:
        """Return how many updates the rule has applied since the beginning of the run. Blocks like `pull`."""
        self._check_open("the optimizer state of")
        return self._tables.n_updates(self._number)

    def view(self) -> Float32:
        """Return the values as a read-only array in the node's memory, without a copy. Blocks like `pull`.

        The array is valid until the job ends. Its values do not change before this worker's next `clock`, or
        its next push with `closes`.
        """
        self._check_open("a view of")
        return self._tables.view(self._number).reshape(self.shape)

    def push(
        self, update: Float32, base: Float32 | None = None, *, closes: bool = False
    ) -> Request[PushResult]:
        """Add an update (a gradient) to the sum of this clock. Not collective.

        Blocks until the update of the clock before is applied on this node, for which all workers must have
        ended that clock. The result is complete at once: `applied` is 1.

        Args:
            update: As in DenseHandle.push; free again at return.
            base: Without effect, as under BSP on servers.
            closes: This is the worker's last push to the table in this clock, and it does not pull the table
                again before `clock`. The workers then apply the sum as soon as all have closed the table.

        Raises:
            ConfigError: The table was closed in this clock, or it has too many pushes.
            TypeError: The update contains no real numbers (complex, text, objects), or is a masked array.
            ValueError: Wrong shape, NaN or infinity, or a number beyond float32.
            StallError: A worker was late for the job's timeout; the message names it.
        """
        self._check_open("a push to")
        converted = as_float32("the update", update, self.shape)
        # Values are checked while they are copied, unless their norm is needed before.
        checks = self._table.check_finite and self._table.clip_norm == 0
        if not checks:
            converted = self._checked(converted, None)
        tables, connection = self._tables, self._connection
        if closes:
            self._finish_coming()
        if not tables.push(self._number, converted.reshape(-1), checks):
            self._check_finite("the update", converted)
        connection.note_push()
        if closes:
            self._closed_at = connection.now
            tables.close(self._number)
        return self._taken()

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Change the hyperparameters of the table's rule from this worker's current clock on.

        As Handle.set_optimizer under BSP: every worker makes the same call, with the same values, at the same
        clock and before its pushes of that clock. Workers that differ get a ConfigError when they apply the
        update of that clock. Returns at once. A checkpoint does not contain the change.

        Raises:
            ConfigError: As Handle.set_optimizer.
        """
        self._check_optimizer(optimizer)
        self._check_open("new hyperparameters of")
        self._tables.configure(self._number, optimizer.native())
