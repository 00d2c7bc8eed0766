"""Pulls that the workers of a node share; see native/src/reduction/shared_pulls.hpp."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips import _native

if TYPE_CHECKING:
    from mpips.worker.data_plane import DataPlane

Float32 = NDArray[np.float32]


class NodePulls:
    """One worker's end of the pulls that its node shares. Not thread-safe."""

    def __init__(self, pulls: _native.SharedPulls, numbers: Mapping[tuple[int, int], int]) -> None:
        """`numbers`: of the parts in `pulls`, by the index of the table and that of the server."""
        self._pulls = pulls
        self._numbers = numbers

    def has(self, table: int, server: int) -> bool:
        """Return True if this node's workers pull this server's part of a table once for all."""
        return (table, server) in self._numbers

    def serves(self, connection: DataPlane) -> bool:
        """Return False while this worker may repeat a clock that a server has closed."""
        now = connection.now
        return not any(channel.writer.is_ahead_of(now) for channel in connection.channels)

    def is_passed(self, table: int, server: int, clock: int) -> bool:
        """Return True if no worker will pull the values of a clock for others; call it when `claim` was None.

        A worker of this node is beyond the clock, and no worker had pulled the values before that one claimed
        a later clock. That one waits for this worker, which must therefore pull by itself.
        """
        return self._pulls.is_passed(self._numbers[table, server], clock)

    def claim(self, table: int, server: int, clock: int) -> Float32 | None:
        """Return memory for the values of a clock if this worker is the one to pull them, else None.

        The caller fills it and calls `publish`: the others wait for that.
        """
        number = self._numbers[table, server]
        return self._pulls.values(number) if self._pulls.claim(number, clock) else None

    def publish(self, table: int, server: int, clock: int, version: int) -> None:
        """Let the others use the values."""
        self._pulls.publish(self._numbers[table, server], clock, version)

    def take(
        self,
        connection: DataPlane,
        table: int,
        server: int,
        out: Float32,
        late: Callable[[int], str],
    ) -> None:
        """Wait until the values of the worker's clock are there, and copy them.

        Args:
            connection: The worker's connection, whose waits are used.
            table: Index of the table.
            server: Index of the server.
            out: float32, of the part's length.
            late: Returns the message of an error, with the index of the worker that pulls them.

        Raises:
            StallError: They were not there within the job's timeout.
        """
        number, clock = self._numbers[table, server], connection.now
        if not self._pulls.is_ready(number, clock):
            connection.wait_until(
                lambda: self._pulls.wait_ready(number, clock, 0.02),
                lambda: late(self._pulls.claimant(number)),
            )
        self._pulls.copy(number, out)
        version = self._pulls.version(number)
        connection.channels[server].writer.set_base_version(table, version)
