"""The ends of a worker's clocks at the servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpips import _native
from mpips.model.consistency import BSP
from mpips.model.table import Table
from mpips.worker.whole import is_cut_off

if TYPE_CHECKING:
    from mpips.worker.connection import Connection

FAULTS = _native.FAULTS  # True where a test ends this process at a fault point


class Ticks:
    """Ends a worker's clock at all servers. Not thread-safe.

    Attributes:
        writes_position: The worker writes its position to the servers before each tick.
        skips_clocks: There are backup workers, so a worker that is late may skip clocks.
    """

    def __init__(
        self, connection: Connection, tables: Sequence[Table], writes_position: bool
    ) -> None:
        """Take the connection.

        Args:
            connection: The worker's connection.
            tables: All tables of the job.
            writes_position: See the attribute.
        """
        self._connection = connection
        self.writes_position = writes_position
        backup = [t.consistency.backup for t in tables if isinstance(t.consistency, BSP)]
        self.skips_clocks = bool(backup) and bool(backup[0])
        # The end of a clock does more than to write the records of the tick.
        self._changes_more = writes_position or any(p.changes_clock for p in connection.parts)
        # A server has the present tick, or more; how much the first server had before it, -1: not yet known.
        self._has_begun, self._first = False, -1
        self._bsp_table = next(
            (i for i, t in enumerate(tables) if isinstance(t.consistency, BSP)), None
        )

    def tick(self) -> None:
        """End the worker's clock at all servers, and take part in a cut that is due."""
        c = self._connection
        c.control.state = "between clocks"
        c.clock_state.begin()
        self._has_begun = self._changes_more
        self._first = -1
        if c.agreed_switch is not None:
            c.agreed_switch.before_tick()
        try:
            self._tick()
        except BaseException as error:
            # A `with` block for this takes a tenth of the time of a tick.
            if is_cut_off(c, error) and (self._has_begun or self._has_written()):
                c.refuse_after("clock()")
            raise

    def _has_written(self) -> bool:
        """Return True if the tick is written, or ordered, to the first server."""
        return 0 <= self._first < self._connection.written_to(0)

    def _tick(self) -> None:
        c = self._connection
        if FAULTS:
            _native.fault_point("clock-begun")
        for part in c.parts:
            part.before_tick()
        if self.writes_position:
            self._write_position()
        c.arrivals.wait_for_partners()
        own = (
            [channel.writer.next_sequence for channel in c.channels] if c.record is not None else []
        )
        self._write()
        if c.record is not None:
            c.record.tick(c.now, own)
        if FAULTS:
            _native.fault_point("clock-ended")
        for part in c.parts:
            part.after_tick()
        c.clock_state.now += 1
        if self.skips_clocks and self._bsp_table is not None:
            closed = [channel.read_version(self._bsp_table) for channel in c.channels]
            c.clock_state.now = max(c.now, min(closed))
        c.control.clock = c.step
        c.snapshot.note_tick(c.now, c.step)
        c.control.state = "computing"
        c.clock_state.end_push()
        c.control.poll()
        c.collectives.poll()
        c.messages.advance()
        if c.control.cut.pending is not None and not c.repeats:
            with c.spent.cut():
                c.snapshot.at_tick(c.step, c.wait_until)
        if c.agreed_switch is not None:
            c.agreed_switch.after_tick()

    def _write_position(self) -> None:
        """Write the position at which the worker continues after this tick, and wait until it has arrived."""
        c = self._connection
        # With local tables the program has ended its clock; without, this tick ends it.
        if c.local is not None:
            c.local.store(c.now + 1)
            c.snapshot.write_position(c.now, c.step)
        else:
            c.snapshot.write_position(c.now)
        c.arrivals.wait()
        if FAULTS:
            _native.fault_point("placed")

    def _write(self) -> None:
        """Write the records of the tick, and send them."""
        c = self._connection
        written = []
        own_us = c.agreed_switch.own_us if c.agreed_switch is not None else 0
        self._first = c.written_to(0)
        for server, channel in enumerate(c.channels):
            if channel.orders is not None and not channel.orders.is_empty:
                channel.orders.add_tick(c.now, own_us)
                self._has_begun = True
                continue
            if FAULTS:
                _native.fault_point("ticking")
            c.write(server, lambda to=channel: to.writer.tick(c.now, own_us))  # type: ignore[misc]
            self._has_begun = True
            written.append(server)
        if FAULTS:
            _native.fault_point("ticked")
        c.publish(written)
