"""The part of one rank in traces: it records from the scheduler's order on, then writes its file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mpips._native import TraceKind, TraceRing
from mpips.mpi.messages import Trace, TraceEnd
from mpips.rundir.tracing import TraceFolder, TraceHead, clock_id
from mpips.terminal.screen import say
from mpips.worker.tracing import NO_TABLE, WorkerTrace

if TYPE_CHECKING:
    from mpips.rundir.directory import Supervised
    from mpips.rundir.files import RankPlace
    from mpips.server.server import Server
    from mpips.worker.connection import Connection

_NOTICEABLE_NS = 20_000
CAPACITY = 1 << 17  # events of a rank: 5 MiB while and after it is traced


class RankTracer:
    """Records the events of the roles of one rank. One thread uses it, the rank's."""

    def __init__(
        self,
        run: Supervised,
        place: RankPlace,
        tables: Sequence[str],
        offset: Callable[[], tuple[int, int]],
        connection: Connection | None = None,
        server: Server | None = None,
    ) -> None:
        """Record nothing yet.

        Args:
            run: The run, in whose directory the files lie.
            place: Role and host of this rank.
            tables: Names of all tables, by index.
            offset: Returns the difference to the scheduler's clock and its error, ns; see ClockOffset.best.
            connection: The connection of the rank's worker, if it has one.
            server: The rank's server, if it has one.
        """
        self._run = run
        self._place = place
        self._tables = tuple(tables)
        self._offset = offset
        indices = {name: i for i, name in enumerate(tables)}
        self._worker = WorkerTrace(connection, indices) if connection is not None else None
        self._server = server
        self._ring: TraceRing | None = None  # made at the first trace, and used again
        self._name = ""  # of the trace under way; "": none
        self._last_clock = 0  # of the worker, at which its part ends

    @property
    def active(self) -> bool:
        """True while events are recorded."""
        return bool(self._name)

    def take(self, message: Trace | TraceEnd) -> None:
        """Follow an order of the scheduler."""
        if isinstance(message, TraceEnd):
            if message.name == self._name:
                self.end()
            return
        self._drop()
        if self._ring is None:
            self._ring = TraceRing(CAPACITY)
        self._ring.clear()
        self._name = message.name
        if self._server is not None:
            self._server.core.set_trace(self._ring)
        if self._worker is not None:
            self._last_clock = self._worker.now + message.steps
            self._worker.begin(self._ring, self._ticked)

    def polled(self, poll: Callable[[], bool]) -> bool:
        """Call `poll`, the server's part in checkpoints; record the call if it took a noticeable time."""
        ring = self._ring
        if not self._name or ring is None:
            return poll()
        begin_ns = TraceRing.now_ns()
        more = poll()
        end_ns = TraceRing.now_ns()
        if end_ns - begin_ns >= _NOTICEABLE_NS:
            ring.add(TraceKind.snapshot, begin_ns, end_ns, 0, 0, NO_TABLE, 0)
        return more

    def _ticked(self, clock: int) -> None:
        if clock >= self._last_clock:
            self.end()

    def _drop(self) -> None:
        """Record no more events."""
        self._name = ""
        if self._worker is not None:
            self._worker.end()
        if self._server is not None:
            self._server.core.set_trace(None)

    def end(self) -> None:
        """End the trace under way, if any, and write the file of this rank. Blocks for the write."""
        name, ring = self._name, self._ring
        if not name or ring is None:
            return
        self._drop()
        offset_ns, error_ns = self._offset()
        head = TraceHead(
            rank=self._place.rank,
            role=self._place.role,
            host=self._place.host,
            clock_id=clock_id(),
            offset_ns=offset_ns,
            error_ns=error_ns,
            tables=self._tables,
            dropped=max(ring.written - ring.capacity, 0),
        )
        try:
            TraceFolder(self._run.folder, name).write(head, ring.events())
        except OSError as error:
            say(
                f"mpips: warning: rank {head.rank} cannot write its part of trace {name}: "
                f"{error.strerror or error}; training continues"
            )
