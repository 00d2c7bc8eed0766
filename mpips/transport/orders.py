"""Updates of one worker that leave for a server on another node by the urgency of their values.

An order is an update that the worker has handed over and whose records are not written yet. The most urgent
one is written first, and an order that has begun is completed before the next one, since the segments of a
push follow each other in the ring. The end of a clock is also an order: the least urgent one of its clock.
So the number of a record is the place at which it leaves, and the server sees a ring like any other.

Everything leaves in messages, which arrive in their order (`RemoteMemory.put_copied`). At most
MOST_UNDER_WAY of them are under way in MPI. The rest waits here, where something more urgent can still pass
it: a request for values, or a more urgent order.

Orders are used by the program's thread with the gate closed or by the progress thread in a step
(`RemoteChannel.advance`), never by both. All other uses of the ring need all its records written. Therefore
each of them, which begins at `RemoteChannel.writer`, `.area` or `RingPuts.put_new`, first has all orders
written and sent (`finish`).

Orders are for jobs in which no worker repeats a clock in memory (no journal): the order of records then may
depend on when they were handed over. Sums under BSP do not depend on it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpips.transport.area import Area
    from mpips.transport.mailbox_copy import MailboxCopy
    from mpips.transport.remote_memory import Bytes, RemoteMemory

# Writes the records of an order as far as there is room; yields True after a part of it, False without room.
Writing = Iterator[bool]
Urgency = tuple[int, int]  # clock and place; the smallest is the most urgent

MOST_UNDER_WAY = 16  # messages
MESSAGE_BYTES = 56 << 10  # see p2p.EAGER_BYTES


class Orders:
    """The orders of one worker at one server.

    Attributes:
        writer: The writer of the worker's records, for orders alone.
        area: The allocation in the rendezvous buffer, for orders alone.
        finish: Has all orders written and sent; the connection sets it.
        n_added: Number of orders so far.
    """

    def __init__(
        self, memory: RemoteMemory, places: MailboxCopy, at: int, area: Area, area_at: int
    ) -> None:
        """Nothing is ordered yet.

        Args:
            memory: Access to the server's region.
            places: The mirror of the mailbox.
            at: Offset of the mailbox in the region.
            area: Allocation in the rendezvous buffer.
            area_at: Offset of the rendezvous buffer in the region.
        """
        self.writer = places.writer
        self.area = area
        self.finish: Callable[[], None] = lambda: None
        self._memory = memory
        self._places = places
        self._at, self._area_at = at, area_at
        self._waiting: list[tuple[Urgency, int, Writing]] = []
        self.n_added = 0
        self._writing: Writing | None = None
        self._parts: deque[tuple[int, Bytes]] = deque()  # written, and not sent
        self._is_inside = False
        self.lacks_room = False  # the order that is being written waits for the server

    @property
    def is_empty(self) -> bool:
        """True if everything is written and sent."""
        return not (self._waiting or self._parts or self._writing is not None)

    def add(self, urgency: Urgency, writing: Writing) -> None:
        """Add an order. Writes and sends nothing."""
        heapq.heappush(self._waiting, (urgency, self.n_added, writing))
        self.n_added += 1

    def add_tick(self, clock: int, own_us: int = 0) -> None:
        """Add the end of a clock, behind all orders of the clock.

        Args:
            clock: The clock that ends.
            own_us: The worker's own time in it, microseconds; 0: not measured.
        """
        self.add((clock, 1 << 62), self._tick(clock, own_us))

    def _tick(self, clock: int, own_us: int) -> Writing:
        while not self.writer.tick(clock, own_us):
            yield False
        self.put_records()

    def put_area(self, offset: int, data: Bytes) -> None:
        """Put bytes into the rendezvous buffer; `data` must stay unchanged until it is sent."""
        self._put(self._area_at + offset, data)

    def put_records(self) -> None:
        """Send the records written since the last call, after the puts before."""
        for start, end in self._places.new_records(MESSAGE_BYTES):
            self._put(self._at + start, self._places.bytes[start:end])
        self.writer.published = self.writer.next_sequence

    def _put(self, offset: int, data: Bytes) -> None:
        for at in range(0, data.nbytes, MESSAGE_BYTES):
            self._parts.append((offset + at, data[at : at + MESSAGE_BYTES]))

    def advance(self) -> bool:
        """Write and send what is possible without waiting; return True if something was sent."""
        moved = self.lacks_room = False
        while not self.is_empty:
            while self._parts:
                if self._memory.n_sends >= MOST_UNDER_WAY:
                    return moved
                self._memory.put_copied(*self._parts.popleft())
                moved = True
            if self._writing is None and self._waiting:
                self._writing = heapq.heappop(self._waiting)[2]
            if self._writing is not None:
                wrote = next(self._writing, None)
                if wrote is None:
                    self._writing = None
                elif not wrote:
                    self.lacks_room = True
                    return moved
        return moved

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Within the block `need_none` does nothing: a wait for orders, or for values, uses the channel."""
        before, self._is_inside = self._is_inside, True
        try:
            yield
        finally:
            self._is_inside = before

    def need_none(self) -> None:
        """Have all orders written and sent, unless the caller is a wait for them. Blocks."""
        if not self._is_inside and not self.is_empty:
            self.finish()
