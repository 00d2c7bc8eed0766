"""The trace of one worker: its activities as the control plane is told them, and the records it writes.

While a worker is traced, its connection has a `TracedControl` in place of its control plane. Each change of
`state` ends an event and begins the next one, so no code of pushes and pulls knows of traces. Native code
records direct pushes and pulls and the ends of pushes in rings; it has a pointer that is null while nothing
is traced. Computation is what lies between a worker's events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from mpips._native import TraceKind, TraceRing
from mpips.worker.connection import Connection

# The kind of an activity by the first word of its text; others are computation.
_KINDS = {
    "pushing": TraceKind.push,
    "configuring": TraceKind.push,
    "pulling": TraceKind.pull,
    "waiting": TraceKind.wait,
    "finishing": TraceKind.wait,
    "between": TraceKind.tick,
}
NO_TABLE = 0xFFFF


class TracedControl:
    """A worker's control plane that records changes of `state`. Everything else it passes on."""

    def __init__(
        self, control: Any, ring: TraceRing, tables: dict[str, int], ticked: Callable[[int], None]
    ) -> None:
        """Begin to record.

        Args:
            control: The control plane.
            ring: Receives the events.
            tables: Index of each table by its name.
            ticked: Called with the worker's clock when it has ended one.
        """
        self._control = control
        self._ring = ring
        self._tables = tables
        self._ticked = ticked
        self._begin_ns = 0
        self._text = control.state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._control, name)

    @property
    def state(self) -> str:
        """Current activity of the worker."""
        return cast("str", self._text)

    @state.setter
    def state(self, text: str) -> None:
        self.close()
        self._text = text
        self._control.state = text

    def close(self) -> None:
        """Record the activity until now."""
        now = TraceRing.now_ns()
        kind = _KINDS.get(self._text.partition(" ")[0])
        if kind is not None and self._begin_ns:
            if "checkpoint" in self._text:
                kind = TraceKind.snapshot
            table = self._tables.get(self._text.partition("'")[2].rpartition("'")[0], NO_TABLE)
            self._ring.add(kind, self._begin_ns, now, 0, self._control.clock, table, 0)
        self._begin_ns = now

    @property
    def clock(self) -> int:
        """The worker's clock."""
        return cast("int", self._control.clock)

    @clock.setter
    def clock(self, clock: int) -> None:
        self._control.clock = clock
        self._ticked(clock)


class WorkerTrace:
    """Records the events of a connection between `begin` and `end`. The worker's thread alone uses it."""

    def __init__(self, connection: Connection, tables: dict[str, int]) -> None:
        """Record nothing yet.

        Args:
            connection: The worker's connection.
            tables: Index of each table by its name.
        """
        self._connection = connection
        self._tables = tables
        self._control: Any = None  # the control plane while a TracedControl is in its place

    def begin(self, ring: TraceRing, ticked: Callable[[int], None]) -> None:
        """Record events in `ring` from here on; `ticked` is called with the clock after each one."""
        connection = self._connection
        self._control = connection.control
        traced: Any = TracedControl(self._control, ring, self._tables, ticked)
        self._replace(traced)
        connection.clock_state.set_trace(ring)
        for server, channel in enumerate(connection.channels):
            channel.writer.set_trace(ring, server)

    def end(self) -> None:
        """Record no more events. A second call does nothing."""
        if self._control is None:
            return
        connection = self._connection
        connection.control.close()  # type: ignore[attr-defined]
        self._replace(self._control)
        self._control = None
        connection.clock_state.set_trace(None)
        for server, channel in enumerate(connection.channels):
            channel.writer.set_trace(None, server)

    def _replace(self, control: Any) -> None:
        self._connection.control = control
        self._connection.snapshot.set_control(control)

    @property
    def now(self) -> int:
        """The worker's clock."""
        return self._connection.now
