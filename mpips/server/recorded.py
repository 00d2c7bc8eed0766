"""A server's part in a record: it writes the order of its records, or follows that of a recorded run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mpips import _native
from mpips.errors import DifferenceError
from mpips.model.common_copy import stored_states
from mpips.model.placement import Placement
from mpips.model.table import EmbeddingTable, Table
from mpips.record.files import End, RecordedSwitch, Replayed
from mpips.record.writer import BLOCK_BYTES, RecordFile
from mpips.server.server import Server

if TYPE_CHECKING:
    from mpips.mpi.messages import Saved, Taken


class ServerRecord(Protocol):
    """A server's part in a record or in a replay."""

    def poll(self) -> None:
        """Do what is due between two drains. Cheap."""

    def note_copy(self) -> None:
        """Note that the server has copied its tables for a checkpoint, which is not published yet.

        Raises:
            DifferenceError: The replay differs from the recorded run.
        """

    def end(self, digests: dict[str, str], between: Callable[[], object] = ...) -> str:
        """End it, when all workers have finished; return a note for people, or "".

        `between`: called between bounded steps of a wait; does other work of this rank.

        Raises:
            DifferenceError: The replay differs from the recorded run.
        """


class RecordingServer:
    """Writes the order in which a server consumes records."""

    def __init__(self, server: Server, file: RecordFile, steps_before: int = 0) -> None:
        """Begin with the next record.

        Args:
            server: The server.
            file: Its file of the record.
            steps_before: Clocks of the run before this attempt.
        """
        self._file = file
        self._control = server.bound_control
        self._switch = server.switch_control if server.index == 0 else None
        self._steps_before = steps_before
        self._core = server.core
        self._log = _native.OrderLog(server.layout.n_workers)
        self._limited_at = -1
        self._core.set_order_log(self._log)

    def poll(self) -> None:
        """Hand entries to the thread that writes them, if there are many, and a decision on the switch."""
        if self._log.n_bytes >= BLOCK_BYTES:
            self._put()
        if self._switch is not None and (clock := self._switch.decided) >= 0:
            self._switch = None
            self._file.put_switch(RecordedSwitch(clock, max(0, clock - self._steps_before)))

    def _put(self) -> None:
        if self._limited_at < 0 and not self._file.put(self._log.take()):
            self._limited_at = self._core.counters()["records"]
            self._core.set_order_log(None)

    def note_copy(self) -> None:
        """Write all entries so far: a restart from the checkpoint needs them after a kill. Blocks."""
        self.poll()
        self._put()
        self._file.flush()

    def end(self, digests: dict[str, str], between: Callable[[], object] = lambda: None) -> str:
        """Write the rest and the digests of the tables; return why the file is not complete, or ""."""
        self.poll()
        self._put()
        bounds = None if self._control is None else self._control.all_bounds()
        failure = self._file.close(End(limited_at=self._limited_at, digests=digests, bounds=bounds))
        return f"the record is not complete: {failure}" if failure else ""


class Copier(Protocol):
    """Copies the tables at the breaks of a replay."""

    def poll(self) -> None:
        """Copy them if the server has come to a break."""

    def ends_by(self, tell: Callable[[Taken | Saved], object]) -> None:
        """Set what tells the coordinator that the replay has come to its end."""

    def end(self, between: Callable[[], object]) -> None:
        """Write the copies. Collective over all servers; blocks. `between`: other work of the rank."""


class ReplayingServer:
    """Lets a server follow a recorded order.

    Attributes:
        result: Number of repeated records, and digests of the tables; None before the end.
    """

    def __init__(
        self,
        server: Server,
        order: _native.RecordedOrder,
        gate: _native.PullGate,
        expected: dict[str, str],
        copier: Copier | None = None,
        switch: RecordedSwitch | None = None,
    ) -> None:
        """Follow the order from the first record on.

        Args:
            server: The server, which has consumed nothing yet.
            order: The recorded order.
            gate: The recorded pulls of dense tables, for which the server waits.
            expected: Digests of its part of the tables at the end of the recorded run.
            copier: Copies the tables at breaks; None: the replay has no breaks.
            switch: The recorded decision on the clock of a Switch; None: the run had no decision.
        """
        self.copier = copier
        self._index = server.index
        self._order = order
        self._expected = expected
        self.result: Replayed | None = None
        server.core.follow(order, gate)
        server.hold_bound()
        if server.switch_control is not None:
            server.switch_control.hold(switch.clock if switch is not None else None)

    def poll(self) -> None:
        """Copy the tables at a break."""
        if self.copier is not None:
            self.copier.poll()

    def note_copy(self) -> None:
        """Check that the checkpoint has all records that the recorded one had."""
        if not self._order.is_over:
            raise DifferenceError(
                f"server {self._index}: the program came to the checkpoint after "
                f"{self._order.consumed} records, the recorded run had more"
            )

    def end(self, digests: dict[str, str], between: Callable[[], object] = lambda: None) -> str:
        """Write the copies of breaks, and compare the tables with those at the end of the recorded run."""
        if self.copier is not None:
            self.copier.end(between)
        where = f"server {self._index}: "
        if not self._order.is_over:
            raise DifferenceError(
                f"{where}the program ended after {self._order.consumed} records, the recorded run has more"
            )
        others = [name for name in self._expected if digests.get(name) != self._expected[name]]
        if others:
            raise DifferenceError(
                f"{where}{len(others)} of {len(self._expected)} tables end with other values than in the "
                f"recorded run, the first is {others[0]!r}: the program, its data or its random numbers "
                "differ"
            )
        self.result = Replayed(records=self._order.consumed, digests=digests)
        return ""


def table_digests(server: Server, placement: Placement, tables: list[Table]) -> dict[str, str]:
    """Return XXH3-64 of this server's part of each table, with the states of its rule, by name.

    Rows of embedding tables count in the order of their keys. Tables of which the server has no part are
    left out.
    """
    found = {}
    for i, table in enumerate(tables):
        digest = _native.Xxh3()
        if isinstance(table, EmbeddingTable):
            keys, rows = server.core.embedding_arrays(i)
            order = np.argsort(keys, kind="stable")
            digest.update(np.ascontiguousarray(keys[order]))
            digest.update(np.ascontiguousarray(rows[order]))
        elif any(part.server == server.index for part in placement.dense[table.name]):
            for slot in range(1 + len(stored_states(table))):
                digest.update(np.ascontiguousarray(server.core.dense_array(i, slot)))
        else:
            continue
        found[table.name] = f"{digest.digest():016x}"
    return found
