"""The clock of a Switch that server 0 decides on, as a worker learns it.

native/src/server/server_switch.cpp has the argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpips import _native
from mpips.model.consistency import NEVER, UNEVEN, Switch
from mpips.model.job_tables import switch_of
from mpips.model.table import Table

if TYPE_CHECKING:
    from mpips.checkpoint.position import Position
    from mpips.worker.data_plane import DataPlane
    from mpips.worker.spent import TimeSpent

_WAIT_S = 0.02  # of one look at server 0
_MOST_US = 2**32 - 1  # what a tick holds
LEAD = _native.SWITCH_LEAD  # a decision at lowest clock m is on clock m + LEAD or later


class AgreedSwitch:
    """The clock at which BSP ends, on which server 0 decides. One worker's thread uses it.

    Attributes:
        own_us: The worker's own time in the clock that ends, microseconds, without waits and cuts; 0: it is
            not measured.

    Before each tick the worker learns whether the clock behind it is under ASP. Rings and ports of the tables
    get the decision at once; each tick from there on names it to the other servers. It needs server 0 once
    in LEAD clocks if the workers are at the same clock.
    """

    def __init__(
        self, connection: DataPlane, switch: Switch, spent: TimeSpent, position: Position
    ) -> None:
        """Begin without a decision; nothing is read before the first use.

        Args:
            connection: The worker's connection.
            switch: The tables' model.
            spent: The worker's time, of which its own is measured.
            position: The worker's start, which has the step of the run at clock 0.
        """
        self.own_us = 0
        self._connection = connection
        self._spent, self._position = spent, position
        self._place = switch.place
        self._measures = switch.at == UNEVEN
        self._own_s: float | None = (
            None  # own time of this launch up to the last tick; None: no tick yet
        )
        self._ports: list[_native.DensePort] = []
        self._is_read = False  # the decisions of earlier launches are known
        self._known = -1  # the last clock whose tick may be written, by what is known
        self._end = NEVER

    def join(self, port: _native.DensePort) -> None:
        """Set the end of BSP of a port from here on."""
        self._ports.append(port)
        port.set_bsp_until(self.end_of_bsp())

    def end_of_bsp(self) -> int:
        """Return the clock of this launch at which BSP ends; NEVER: not before the next clock.

        The first call reads the decision of an earlier launch. Does not wait for other workers.
        """
        if not self._is_read:
            self._read()
        return self._end

    def before_tick(self) -> None:
        """Learn all decisions on the clock behind the present one, or on an earlier one.

        Blocks if the worker is more than two clocks ahead of another one.

        Raises:
            StallError: A worker has not come to the clock that this one needs within the job's timeout.
        """
        self._measure()
        now = self._connection.now
        if now <= self._known:
            return
        connection, channel = self._connection, self._connection.channels[0]
        least = max(0, now + 1 - LEAD)
        connection.wait_until(
            lambda: channel.wait_head(0, 0, least, _WAIT_S),
            lambda: (
                f"it is not known whether Switch at {self._place} is at clock {now + 1} before all workers "
                f"have reached clock {least}{connection.blame(0)}"
            ),
        )
        self._read()

    def after_tick(self) -> None:
        """Begin to measure the own time in the next clock."""
        if self._measures:
            self._own_s = self._spent.own_s()

    def _measure(self) -> None:
        """Note the own time since the last tick."""
        self.own_us = 0
        if self._own_s is not None and self._end == NEVER:
            own_s = self._spent.own_s() - self._own_s
            self.own_us = min(max(int(1e6 * own_s), 1), _MOST_US)

    def _read(self) -> None:
        """Read the lowest clock of all workers, and then the decision."""
        self._is_read = True
        reached, at = self._connection.channels[0].read_decision(0)
        self._known = NEVER if at else reached + LEAD - 1
        if not at:
            return
        self._end = max(0, at - self._position.steps_before)
        for channel in self._connection.channels:
            channel.writer.set_switch(at)
        for port in self._ports:
            port.set_bsp_until(self._end)


def agreed_switch(
    connection: DataPlane, tables: Sequence[Table], spent: TimeSpent, position: Position
) -> AgreedSwitch | None:
    """Return the switch of a worker; None: no table is under a Switch that server 0 decides on."""
    switch: Switch | None = switch_of(tables)
    if switch is None or not switch.is_adaptive:
        return None
    return AgreedSwitch(connection, switch, spent, position)
