"""A worker's way to one server. The same ring in the same format, whatever carries it.

`ShmChannel` and `LocalChannel` write the server's own memory. `RemoteChannel` (remote.py) writes a
private mirror of the mailbox and carries it over. All waits here are bounded by `max_s`; deadlines,
signals and error messages are the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.errors import StallError
from mpips.transport.area import AreaWay

Float32 = NDArray[np.float32]


_HEAD_TRIES = 100_000


def whole_version(read: Callable[[], tuple[int, int] | None], table: int) -> int:
    """The version in a table's head, read until it is not being written.

    Raises:
        StallError: It stayed half written, so the server died while it wrote.
    """
    for _ in range(_HEAD_TRIES):
        head = read()
        if head is not None:
            return head[0]
    raise StallError(f"the head of table {table} stays half written: its server is stopped or dead")


class Channel(Protocol):
    """One worker, one server. Not thread-safe, not collective."""

    name: str
    writer: _native.RingWriter
    layout: _native.Layout

    def send(self) -> None:
        """Carry the records written since the last call, as far as that goes without waiting for an
        answer of the server; `publish` completes it.
        """

    def publish(self) -> None:
        """Make all records written so far visible to the server."""

    def begin_fence(self) -> None:
        """Start asking the server to confirm that all records written so far are in its memory."""

    def wait_fence(self, max_s: float) -> bool:
        """Wait until they are, consumed or not; False after `max_s` seconds. `begin_fence` precedes."""

    def area_way(self) -> AreaWay | None:
        """The way of large dense pushes past the ring, where there is one."""

    def wait_applied(self, count: int, max_s: float) -> bool:
        """Send what is written and wait until `count` records are consumed; False after `max_s` s."""

    def wait_received(self, count: int, max_s: float) -> bool:
        """Send what is written and wait until the server's partner has `count` records; False after
        `max_s` s.
        """

    def wait_credit(self, max_s: float) -> bool:
        """Send what is written and wait until more can be; False after `max_s` seconds."""

    def wait_collected(self, before: int, max_s: float) -> bool:
        """Wait until every pull with a sequence number below `before` is answered."""

    def wait_head(self, table: int, version: int, min_clock: int, max_s: float) -> bool:
        """Wait until a table has reached a version and the workers a clock (0: any)."""

    def read_version(self, table: int) -> int:
        """The version of a table as it is now."""

    def read_dense(self, table: int, out: Float32, max_s: float) -> bool:
        """Copy the server's range of a dense table into `out`; False if it kept changing."""

    def view(self, table: int) -> Float32 | None:
        """The server's range as a read-only array without a copy, where that is possible."""

    def clocks(self) -> list[int]:
        """The workers' clocks as this server knows them; FINISHED_CLOCK for those that are done."""

    def turn(self) -> int:
        """BSP: the worker that this server waits for."""


class MemoryChannel:
    """Same node or same process: loads and stores in the server's region, no MPI call."""

    name = "shm"

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

    def send(self) -> None:
        """Nothing to carry: the stamp is already in the server's memory."""

    def publish(self) -> None:
        """Nothing to carry."""

    def begin_fence(self) -> None:
        """Nothing to ask: records are written where the server reads them."""

    def wait_fence(self, max_s: float) -> bool:
        """See Channel."""
        return True

    def area_way(self) -> AreaWay | None:
        """None: large updates are read where the worker has them."""
        return None

    def wait_applied(self, count: int, max_s: float) -> bool:
        """See Channel."""
        return self.writer.wait_applied(count, max_s, self.oversubscribed)

    def wait_received(self, count: int, max_s: float) -> bool:
        """See Channel."""
        return self.writer.wait_received(count, max_s, self.oversubscribed)

    def wait_credit(self, max_s: float) -> bool:
        """See Channel."""
        return self.writer.wait_credit(max_s, self.oversubscribed)

    def wait_collected(self, before: int, max_s: float) -> bool:
        """See Channel."""
        return self.writer.wait_collected(before, max_s, self.oversubscribed)

    def wait_head(self, table: int, version: int, min_clock: int, max_s: float) -> bool:
        """See Channel."""
        offset = self.layout.head_offset(table)
        return _native.wait_head(
            self.memory, offset, version, min_clock, max_s, self.oversubscribed
        )

    def read_version(self, table: int) -> int:
        """See Channel."""
        return whole_version(
            lambda: _native.read_head(self.memory, self.layout.head_offset(table)), table
        )

    def read_dense(self, table: int, out: Float32, max_s: float) -> bool:
        """See Channel."""
        version = self.read_version(table)
        if not _native.copy_dense(self.memory, self.layout, table, out, max_s, self.oversubscribed):
            return False
        self.writer.set_base_version(table, version)
        self.writer.count_pulled(out.nbytes)
        return True

    def view(self, table: int) -> Float32 | None:
        """See Channel."""
        self.writer.set_base_version(table, self.read_version(table))
        return _native.dense_view(self.memory, self.layout, table)

    def clocks(self) -> list[int]:
        """See Channel."""
        start = self.layout.clocks_offset
        step = _native.CLOCK_LINE_BYTES
        words = [_native.read_word(self.memory, start + w * step) for w in range(self._n_workers)]
        return [0 if word is None else word for word in words]

    def turn(self) -> int:
        """See Channel."""
        return _native.read_word(self.memory, self.layout.turn_offset) or 0


class ShmChannel(MemoryChannel):
    """Same node: the server's region is mapped here."""

    name = "shm"


class LocalChannel(MemoryChannel):
    """Same process: whoever waits drives the server."""

    name = "local"

    def __init__(
        self,
        memory: _native.SharedMemory,
        layout: _native.Layout,
        writer: _native.RingWriter,
        n_workers: int,
        drain: Callable[[], int],
    ) -> None:
        """`drain` lets the server consume what it can."""
        super().__init__(memory, layout, writer, n_workers, oversubscribed=True)
        self._drain = drain

    def send(self) -> None:
        """Apply at once: there is nobody to overlap with."""
        self._drain()

    def publish(self) -> None:
        """See `send`."""
        self._drain()

    def wait_applied(self, count: int, max_s: float) -> bool:
        """See Channel."""
        self._drain()
        return self.writer.applied >= count

    def wait_credit(self, max_s: float) -> bool:
        """See Channel."""
        self._drain()
        self.writer.collect()
        return self.writer.credits > 0

    def wait_collected(self, before: int, max_s: float) -> bool:
        """See Channel."""
        self._drain()
        self.writer.collect()
        return self.writer.collected_before() >= before

    def wait_head(self, table: int, version: int, min_clock: int, max_s: float) -> bool:
        """See Channel."""
        self._drain()
        return super().wait_head(table, version, min_clock, 0.0)
