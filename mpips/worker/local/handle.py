"""The handle of a table under LocalSGD or DiLoCo: a dense table whose values the worker has itself."""

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
    from mpips.worker.local.tables import LocalTables

Float32 = NDArray[np.float32]


class LocalHandle(HeldHandle):
    """A worker's access to one table under LocalSGD or DiLoCo, with the methods of DenseHandle.

    Not thread-safe. No method communicates, except that the first use after an outer step (with a delay:
    after that many clocks more) waits for the servers' values.

    Attributes:
        name: Name of the table.
        shape: Shape of the tensor.
    """

    def __init__(self, connection: Connection, index: int, table: DenseTable) -> None:
        """`index`: of the table in the job; `table`: with the inner rule."""
        super().__init__(connection, index, table)
        self._closed_step = -1  # clock of the worker at the newest push that closed the table

    @property
    def _tables(self) -> LocalTables:
        tables = self._connection.local
        assert tables is not None
        return tables

    def _check_open(self, what: str) -> None:
        """Raise ConfigError if the worker has closed the table in this clock."""
        if self._closed_step == self._connection.step:
            raise self._closed_error(what, self._closed_step)

    @property
    def paths(self) -> list[str]:
        """["local"]: updates go to no server."""
        return ["local"]

    def pull(self, out: Float32 | None = None) -> Float32:
        """Copy the worker's values: those after its own earlier clocks. See the class about waits.

        Within `Worker.averaged` they are those that the worker had from the servers last.

        Args:
            out: As in DenseHandle.pull.

        Returns:
            `out`.

        Raises:
            StallError: A worker or server was late for the job's timeout; the message names it.
        """
        out = self._room(out)
        np.copyto(out.reshape(-1), self._tables.values(self._index))
        return out

    def prefetch(self, out: Float32 | None = None) -> Request[Float32]:
        """Return a request whose `wait` pulls. Returns at once."""
        self._check_open("a pull of")
        if out is not None:
            check_out(out, self.shape, contiguous=True)
        connection = self._connection
        return PolledRequest(
            lambda _: True, lambda: self.pull(out), str, connection.timeout_s, connection.poll
        )

    def optimizer_state(self, slot: int, out: Float32 | None = None) -> Float32:
        """Copy a state of the inner rule, which is this worker's own. Waits as `pull`.

        Args:
            slot: As in DenseHandle.optimizer_state.
            out: As in DenseHandle.pull.

        Returns:
            `out`.

        Raises:
            ConfigError: The table was closed in this clock.
            IndexError: The rule has no such state.
            StallError: A worker or server was late for the job's timeout; the message names it.
        """
        self._check_state(slot)
        out = self._room(out)
        np.copyto(out.reshape(-1), self._tables.table(self._index).state.states[slot])
        return out

    def n_updates(self) -> int:
        """Return how many updates this worker's inner rule has applied. Waits as `pull`."""
        self._check_open("the optimizer state of")
        return self._tables.table(self._index).state.updates

    def view(self) -> Float32:
        """Return the worker's values as a read-only array, without a copy. Waits as `pull`.

        Its values change at the next `clock`, and at the first use of a table after it.
        """
        self._check_open("a view of")
        values = self._tables.values(self._index).reshape(self.shape)
        values.flags.writeable = False
        return values

    def push(
        self, update: Float32, base: Float32 | None = None, *, closes: bool = False
    ) -> Request[PushResult]:
        """Add an update (a gradient) to the sum of this clock, to which `clock` applies the inner rule.

        Not collective. The result is complete at once: `applied` is 1.

        Args:
            update: As in DenseHandle.push; free again at return.
            base: Without effect: nothing is stale here.
            closes: This is the worker's last push to the table in this clock, and it does not pull the table
                again before `clock`.

        Raises:
            ConfigError: The table was closed in this clock.
            TypeError: The update contains no real numbers (complex, text, objects), or is a masked array.
            ValueError: Wrong shape, NaN or infinity, or a number beyond float32.
        """
        self._check_open("a push to")
        converted = self._checked(as_float32("the update", update, self.shape), None)
        if closes:
            self._finish_coming()
        self._tables.push(self._index, converted.reshape(-1))
        connection = self._connection
        if closes:
            self._closed_step = connection.step
        return self._taken()

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Change the hyperparameters of the inner rule from this worker's current clock on.

        Nothing is sent, so workers may have different ones. A checkpoint does not contain the change; a
        restart in memory continues with it.

        Raises:
            ConfigError: As Handle.set_optimizer.
        """
        self._check_optimizer(optimizer)
        self._check_open("new hyperparameters of")
        self._tables.set_rule(self._index, optimizer)
