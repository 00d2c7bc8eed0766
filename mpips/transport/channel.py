"""The connection of one worker to one server: the same ring in the same format over every transport.

`ShmChannel` and `LocalChannel` write to the server's own memory. `RemoteChannel` (remote.py) writes to a
private copy of the mailbox and transfers it. All waits here end after `max_s` seconds; the caller handles
deadlines, signals and error messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.errors import StallError
from mpips.transport.common_copies import CommonCopies
from mpips.transport.image import image_bytes

if TYPE_CHECKING:
    from mpips.transport.area import AreaWay
    from mpips.transport.orders import Orders
    from mpips.transport.remote_memory import Awaited

Float32 = NDArray[np.float32]


_HEAD_TRIES = 100_000  # reads of a table's head before its writer counts as stopped


def whole_version(read: Callable[[], tuple[int, int] | None], table: int) -> int:
    """Return the version in a table's head; see `whole_word`."""

    def version() -> int | None:
        head = read()
        return None if head is None else head[0]

    return whole_word(version, table)


def whole_min_clock(read: Callable[[], tuple[int, int] | None], table: int) -> int:
    """Return the lowest clock of all workers in a table's head; see `whole_word`."""

    def clock() -> int | None:
        head = read()
        return None if head is None else head[1]

    return whole_word(clock, table)


def whole_word(read: Callable[[], int | None], table: int) -> int:
    """Return a word of a table's head; read it until it is not being written.

    Raises:
        StallError: It stayed half written, so the server stopped or ended while it wrote.
    """
    for _ in range(_HEAD_TRIES):
        word = read()
        if word is not None:
            return word
    raise StallError(
        f"the head of table {table} stays half written: its server is stopped or dead; see the server's log"
    )


class Channel(Protocol):
    """The interface of every transport: one worker, one server. Not thread-safe, not collective.

    Attributes:
        name: Name of the transport.
        layout: Layout of the server's region.
    """

    name: str
    layout: _native.Layout

    @property
    def orders(self) -> Orders | None:
        """Updates to a server on another node that leave by their urgency; None on this node."""

    @property
    def writer(self) -> _native.RingWriter:
        """The writer of this worker's records. Do not keep it beyond one operation: see transport.gate."""

    @property
    def counting_writer(self) -> _native.RingWriter:
        """The writer, for its counts alone: orders need not be written. Does not block."""

    def send(self) -> None:
        """Send the records written since the last call, as far as possible without waiting for the server.

        `publish` completes it.
        """

    def publish(self) -> None:
        """Make all records written so far visible to the server."""

    def begin_fence(self) -> None:
        """Start asking the server to confirm that all records written so far are in its memory."""

    def wait_fence(self, max_s: float) -> bool:
        """Wait until the fence is confirmed; return False after `max_s` seconds. `begin_fence` must precede.

        The records are then in the server's memory, consumed or not.
        """

    def area_way(self) -> AreaWay | None:
        """Return the way of large dense pushes past the ring; None if the channel has none."""

    def wait_applied(self, count: int, max_s: float) -> bool:
        """Send what is written; wait until `count` records are consumed; return False after `max_s` s."""

    def wait_received(self, count: int, max_s: float) -> bool:
        """Send what is written; wait until the server's replica has `count` records.

        Returns False after `max_s` seconds.
        """

    def wait_credit(self, max_s: float) -> bool:
        """Send what is written; wait until there is a free slot; return False after `max_s` seconds."""

    def wait_collected(self, before: int, max_s: float) -> bool:
        """Wait until every pull with a sequence below `before` is answered; return False after `max_s` s."""

    def stream(self, on: bool) -> None:
        """Begin a use of the channel as a stream, or end one; see mpips.transport.remote."""

    def begin_orders(self) -> None:
        """Prepare for orders and `expect_dense`. Blocks until nothing that they may overtake is under way."""

    def advance_orders(self, max_s: float) -> bool:
        """Advance orders, and values that are expected, for `max_s` seconds; True when no order is left."""

    def expect_dense(self, table: int, version: int, out: Float32) -> Awaited | None:
        """Ask for the server's range of a dense table under BSP, to be sent when it has a version.

        Does not block. `out`, float32, shape (n,), belongs to the result until that is there. Until then the
        worker neither pushes to the table again nor ends another clock; see mpips.transport.awaited.

        Returns:
            None where the table must be read: on this node, and where pulls carry differences.
        """

    def settle(self, max_s: float) -> bool:
        """Wait until no reply to a stream is under way; return False after `max_s` seconds."""

    def wait_head(self, table: int, version: int, min_clock: int, max_s: float) -> bool:
        """Wait until a table has this version and all workers this clock (0: any).

        Returns False after `max_s` seconds.
        """

    def read_version(self, table: int) -> int:
        """Return the present version of a table."""

    def read_dense(self, table: int, out: Float32, max_s: float) -> bool:
        """Copy the server's range of a dense table into `out`, float32, shape (n,).

        Returns False if it kept changing for `max_s` seconds.
        """

    def read_state(self, table: int, slot: int, out: Float32, max_s: float) -> bool:
        """Copy the server's range of a state of a dense table's rule into `out`, float32, shape (n,).

        Returns False if it kept changing for `max_s` seconds.
        """

    def read_updates(self, table: int) -> int:
        """Return the number of updates that the rule of a table has applied, in earlier launches as well."""

    def read_decision(self, table: int) -> tuple[int, int]:
        """Return the lowest clock of all workers, and then the word of the decision in a table's head.

        The word is read after the clock, so it has all decisions that were published before that clock.
        """

    def take_dense(self, table: int, clock: int, out: Float32) -> bool:
        """Copy the server's range of a small dense table under BSP, as of this clock, if it is here already.

        Returns False if it is not. For tables whose values do not change within a worker's clock.
        """

    def fetch_dense(self, table: int, clock: int, out: Float32) -> bool:
        """Read the server's range of such a table, and those that are expected next, for `take_dense`.

        Returns False if it is being written; `read_dense` waits then.
        """

    def view(self, table: int) -> Float32 | None:
        """Return the server's range as a read-only array without a copy; None if that is impossible."""

    def clocks(self) -> list[int]:
        """Return the workers' clocks at this server; FINISHED_CLOCK for those that have finished."""

    def awaited_worker(self) -> int:
        """Return the worker that this server waits for (BSP)."""


class MemoryChannel:
    """A channel within a node or process: loads and stores in the server's region, no MPI calls."""

    name = "shm"
    orders = None

    def __init__(
        self,
        memory: _native.SharedMemory,
        layout: _native.Layout,
        writer: _native.RingWriter,
        n_workers: int,
        oversubscribed: bool,
    ) -> None:
        """`memory` is the server's region; `writer` writes this worker's mailbox in it."""
        self.writer = writer
        self.layout = layout
        self.memory = memory
        self._n_workers = n_workers
        self.oversubscribed = oversubscribed
        self._common = CommonCopies(layout, writer)

    def send(self) -> None:
        """Do nothing: the stamps are in the server's memory already."""

    def publish(self) -> None:
        """Do nothing: the records are in the server's memory already."""

    def begin_fence(self) -> None:
        """Do nothing: records are written where the server reads them."""

    def wait_fence(self, max_s: float) -> bool:
        """Wait until the fence is confirmed."""
        return True

    def area_way(self) -> AreaWay | None:
        """Return None: the server reads large updates in the worker's memory."""
        return None

    @property
    def counting_writer(self) -> _native.RingWriter:
        """The writer, for its counts."""
        return self.writer

    def wait_applied(self, count: int, max_s: float) -> bool:
        """Wait until `count` records are consumed."""
        return self.writer.wait_applied(count, max_s, self.oversubscribed)

    def wait_received(self, count: int, max_s: float) -> bool:
        """Wait until the server's replica has `count` records."""
        return self.writer.wait_received(count, max_s, self.oversubscribed)

    def wait_credit(self, max_s: float) -> bool:
        """Wait until there is a free slot."""
        return self.writer.wait_credit(max_s, self.oversubscribed)

    def wait_collected(self, before: int, max_s: float) -> bool:
        """Wait until every pull with a sequence below `before` is answered."""
        return self.writer.wait_collected(before, max_s, self.oversubscribed)

    def stream(self, on: bool) -> None:
        """Do nothing: nothing travels."""

    def begin_orders(self) -> None:
        """Do nothing: there are no orders on this node."""

    def advance_orders(self, max_s: float) -> bool:
        """Return True: there are no orders on this node."""
        return True

    def expect_dense(self, table: int, version: int, out: Float32) -> Awaited | None:
        """Return None: the values are in this node's memory."""
        return None

    def settle(self, max_s: float) -> bool:
        """Return True: nothing travels."""
        return True

    def wait_head(self, table: int, version: int, min_clock: int, max_s: float) -> bool:
        """Wait until a table has this version and all workers this clock."""
        offset = self.layout.head_offset(table)
        return _native.wait_head(
            self.memory, offset, version, min_clock, max_s, self.oversubscribed
        )

    def read_version(self, table: int) -> int:
        """Return the present version of a table."""
        return whole_version(
            lambda: _native.read_head(self.memory, self.layout.head_offset(table)), table
        )

    def read_dense(self, table: int, out: Float32, max_s: float) -> bool:
        """Copy the server's range of a dense table into `out`."""
        version = self.read_version(table)
        if table in self._common.tables:
            self.writer.set_base_version(table, version)
            return self._common.read(
                table,
                out,
                lambda number, copy: _native.read_common(
                    self.memory, self.layout, table, number, copy, max_s, self.oversubscribed
                ),
            )
        if not _native.copy_dense(self.memory, self.layout, table, out, max_s, self.oversubscribed):
            return False
        self.writer.set_base_version(table, version)
        self.writer.count_pulled(image_bytes(self.layout, table, out.size))
        return True

    def read_state(self, table: int, slot: int, out: Float32, max_s: float) -> bool:
        """Copy the server's range of a state into `out`."""
        return _native.copy_state(
            self.memory, self.layout, table, slot, out, max_s, self.oversubscribed
        )

    def read_updates(self, table: int) -> int:
        """Return the number of updates of a table's rule."""
        return whole_word(
            lambda: _native.read_word(self.memory, self.layout.updates_offset(table)), table
        )

    def read_decision(self, table: int) -> tuple[int, int]:
        """Return the lowest clock of all workers, and then the word of the decision in a table's head."""
        at = self.layout.head_offset(table)
        clock = whole_min_clock(lambda: _native.read_head(self.memory, at), table)
        word = whole_word(
            lambda: _native.read_word(self.memory, self.layout.decision_offset(table)), table
        )
        return clock, word

    def take_dense(self, table: int, clock: int, out: Float32) -> bool:
        """Return False: the values are in this node's memory."""
        return False

    def fetch_dense(self, table: int, clock: int, out: Float32) -> bool:
        """Return False: the values are in this node's memory."""
        return False

    def view(self, table: int) -> Float32 | None:
        """Return the server's range as a read-only array without a copy."""
        self.writer.set_base_version(table, self.read_version(table))
        return _native.dense_view(self.memory, self.layout, table)

    def clocks(self) -> list[int]:
        """Return the workers' clocks at this server."""
        start = self.layout.clocks_offset
        step = _native.CLOCK_LINE_BYTES
        words = [_native.read_word(self.memory, start + w * step) for w in range(self._n_workers)]
        return [0 if word is None else word for word in words]

    def awaited_worker(self) -> int:
        """Return the worker that this server waits for (BSP)."""
        return _native.read_word(self.memory, self.layout.awaited_offset) or 0


class ShmChannel(MemoryChannel):
    """A channel within a node: the server's region is mapped into this process."""

    name = "shm"


class LocalChannel(MemoryChannel):
    """A channel within a process: every wait lets the server consume records."""

    name = "local"

    def __init__(
        self,
        memory: _native.SharedMemory,
        layout: _native.Layout,
        writer: _native.RingWriter,
        n_workers: int,
        drain: Callable[[], int],
    ) -> None:
        """`drain` lets the server consume all records that it can."""
        super().__init__(memory, layout, writer, n_workers, oversubscribed=True)
        self._drain = drain

    def send(self) -> None:
        """Let the server apply the records at once: no other process could do it meanwhile."""
        self._drain()

    def publish(self) -> None:
        """Let the server apply the records, as `send` does."""
        self._drain()

    def wait_applied(self, count: int, max_s: float) -> bool:
        """Wait until `count` records are consumed."""
        self._drain()
        return self.writer.applied >= count

    def wait_credit(self, max_s: float) -> bool:
        """Wait until there is a free slot."""
        self._drain()
        self.writer.collect()
        return self.writer.credits > 0

    def wait_collected(self, before: int, max_s: float) -> bool:
        """Wait until every pull with a sequence below `before` is answered."""
        self._drain()
        self.writer.collect()
        return self.writer.collected_before() >= before

    def wait_head(self, table: int, version: int, min_clock: int, max_s: float) -> bool:
        """Wait until a table has this version and all workers this clock."""
        self._drain()
        return super().wait_head(table, version, min_clock, 0.0)
