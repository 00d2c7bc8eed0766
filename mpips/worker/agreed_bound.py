"""The bound of SSP("auto") that is in force at a worker's clock; native server_bound.cpp has the argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpips.model.consistency import SSP
from mpips.model.table import Table

if TYPE_CHECKING:
    from mpips import _native
    from mpips.worker.data_plane import DataPlane

_WAIT_S = 0.02  # of one look at server 0


class AgreedBound:
    """The bound that all workers use at the same clock. One worker's thread uses it.

    At the end of each clock it sets the bound of the next one in the rings and ports of the tables, which
    native code reads. It needs server 0 once in max + 2 clocks if the workers are at the same clock.

    Attributes:
        bound: The bound in force at the worker's clock. 0, which every bound allows, before its first tick.
    """

    def __init__(self, connection: DataPlane, tables: Sequence[Table], is_fixed: bool) -> None:
        """Begin with bound 0.

        Args:
            connection: The worker's connection.
            tables: All tables of the job; one is under SSP("auto") at least.
            is_fixed: The greatest bound is always in force: there is one worker, or a replay lets each pull
                wait for what it has seen in the recorded run.
        """
        self._connection = connection
        self._tables = []
        self._most = 0
        for i, table in enumerate(tables):
            if isinstance(table.consistency, SSP) and table.consistency.is_adaptive:
                self._tables.append(i)
                self._most = table.consistency.most_bound
        self._ports: list[_native.DensePort] = []
        self._decision = (
            0,
            0,
            0,
        )  # clock from which a bound is in force, the bound, the one before
        # The last clock whose bound is known for certain.
        self._known = 2**64 if is_fixed else -1
        if is_fixed:
            self._decision = (0, self._most, self._most)
        self.bound = -1
        self._set(self._most if is_fixed else 0)

    def join(self, port: _native.DensePort) -> None:
        """Set the bound of a port of such a table from here on."""
        self._ports.append(port)
        port.set_bound(self.bound)

    def advance(self) -> None:
        """Set the bound of the clock that begins. Blocks if the worker is more than max + 1 clocks ahead.

        Raises:
            StallError: A worker has not come to the clock that this one needs within the job's timeout.
        """
        now = self._connection.now
        if now > self._known:
            # An interrupted wait leaves a bound that every decision allows.
            self._set(0)
            self._learn(now)
        clock, bound, before = self._decision
        self._set(bound if now >= clock else before)

    def _learn(self, now: int) -> None:
        """Read decisions until the bound at clock `now` is certain: read min_clock first, then the word."""
        connection, table = self._connection, self._tables[0]
        channel = connection.channels[0]
        least = max(0, now - self._most - 1)
        connection.wait_until(
            lambda: channel.wait_head(table, 0, least, _WAIT_S),
            lambda: (
                f"the bound of SSP('auto') at clock {now} is not known before all workers have reached clock "
                f"{least}{connection.blame(0)}"
            ),
        )
        reached, word = channel.read_decision(table)
        self._known = reached + self._most + 1
        self._decision = (word >> 16, word >> 8 & 0xFF, word & 0xFF)

    def _set(self, bound: int) -> None:
        """Let pulls of this worker use a bound."""
        if bound == self.bound:
            return
        self.bound = bound
        for channel in self._connection.channels:
            for table in self._tables:
                channel.writer.set_bound(table, bound)
        for port in self._ports:
            port.set_bound(bound)


def agreed_bound(
    connection: DataPlane, tables: Sequence[Table], is_fixed: bool
) -> AgreedBound | None:
    """Return the bound of a worker; None: no table is under SSP("auto"). `is_fixed`: see AgreedBound."""
    adaptive = [t for t in tables if isinstance(t.consistency, SSP) and t.consistency.is_adaptive]
    if not adaptive:
        return None
    return AgreedBound(connection, tables, is_fixed)
