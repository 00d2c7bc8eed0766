"""The ring over a network: a private copy of the mailbox (the mirror), transferred by put and get.

Push. The C++ writer fills slots of the mirror, with checksums. `send` puts the new records (ring_puts.py).

Large dense pushes do not pass through the mirror. They are put from the caller's array into the worker's
rendezvous buffer, followed by small records that give their place (mpips.worker.paths.rendezvous).

Dense pull. Block versions, values and again block versions are read. Blocks whose two versions differ, or
that were being written, are read again (remote_reads.py).

Streams. While a look-ahead or torch's backward uses the channel (`stream`), nothing of the ring waits for its
own transfer. Records and large dense updates leave as messages (ring_puts.py), and replies come as messages
(replies.py). `advance` takes what has arrived and does not wait: the program calls it in its waits, and the
progress thread, if there is one, in between (progress.py).

Orders are updates that leave by their urgency (orders.py). Each other use of the ring first has all of them
written and sent.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips.transport.area import Area, AreaWay
from mpips.transport.gate import Gate
from mpips.transport.mailbox_copy import MailboxCopy
from mpips.transport.orders import Orders
from mpips.transport.remote_reads import RemoteReads
from mpips.transport.remote_waits import RemoteWaits
from mpips.transport.replies import Replies
from mpips.transport.ring_puts import RingPuts
from mpips.transport.waiting import wait_for

if TYPE_CHECKING:
    from mpips import _native
    from mpips.transport.remote_memory import Asking, Awaited, RemoteMemory

Float32 = NDArray[np.float32]

# Replies of up to so many bytes in all are fetched before they are known to be there.
_EARLY_BYTES = 64 << 10


class RemoteChannel:
    """A channel to a server on another node; see mpips.transport.channel.Channel."""

    def __init__(
        self,
        memory: RemoteMemory,
        question: Asking,
        layout: _native.Layout,
        worker: int,
        n_workers: int,
        make_writer: Callable[[_native.SharedMemory], _native.RingWriter],
        checksums: bool = False,
        gate: Gate | None = None,
    ) -> None:
        """Make the mirror and the writer of its records.

        Args:
            memory: Access to the server's region.
            question: Questions to the server.
            layout: Layout of the server's region.
            worker: Index of the worker.
            n_workers: Number of workers of the job.
            make_writer: Makes a writer for the mirror that it is given.
            checksums: See AreaWay.
            gate: The gate of this process; None: there is no progress thread.
        """
        self._gate = gate or Gate()
        self.name = memory.name
        self.checksums = checksums
        self.piece_bytes = memory.piece_bytes
        self.layout = layout
        self._remote = memory
        self._question = question
        self._ring = layout.geometry
        self._at = layout.mailbox_offset(worker)
        self._places = MailboxCopy(self._ring, make_writer)
        self._writer = self._places.writer
        reads = self._reads = RemoteReads(memory, layout, n_workers, self._writer, self._gate)
        self.read_version, self.read_dense = reads.version, reads.dense
        self.read_state, self.read_updates = reads.state, reads.updates
        self.read_decision = reads.decision
        self.clocks, self.awaited_worker = reads.clocks, reads.awaited_worker
        self.take_dense, self.fetch_dense = reads.take_dense, reads.fetch_dense
        self._area = Area(layout.area_bytes(worker), self._writer)
        self._area_at = self._at + self._ring.mailbox_bytes
        self.orders = Orders(memory, self._places, self._at, self._area, self._area_at)
        self._incoming: list[Awaited] = []  # values that were asked for and are not all there
        self._mirror = self._places.bytes
        self._replies = Replies(question, self._places, self._at)
        puts = self._puts = RingPuts(
            memory,
            question,
            self._gate,
            self._places,
            self._at,
            self.orders,
            self._replies,
            self._area_at,
        )
        self.send, self.publish, self.put_records = puts.send, puts.publish, puts.put_new
        self.begin_fence, self.wait_fence = puts.begin_fence, puts.wait_fence
        self.put_area, self.ask = puts.put_area, puts.ask
        self.complete, self.stream = puts.complete, puts.stream
        # No reference back to the channel: a cycle would hold its memory until it is collected.
        channel = weakref.proxy(self)
        waits = RemoteWaits(
            puts,
            question,
            self._writer,
            reads,
            self._replies,
            lambda: channel.refresh(),
            lambda: channel.advance(),
        )
        self.wait_applied, self.wait_received = waits.wait_applied, waits.wait_received
        self.wait_credit, self.wait_collected = waits.wait_credit, waits.wait_collected
        self.wait_head, self.settle = waits.wait_head, waits.settle

    @property
    def writer(self) -> _native.RingWriter:
        """The writer of this worker's records."""
        self._gate.close()
        self.orders.need_none()
        return self._writer

    @property
    def counting_writer(self) -> _native.RingWriter:
        """The writer, for its counts alone: orders go on."""
        self._gate.close()
        return self._writer

    @property
    def area(self) -> Area:
        """The allocation in the rendezvous buffer."""
        self._gate.close()
        self.orders.need_none()
        return self._area

    def area_way(self) -> AreaWay | None:
        """Return the way of large dense pushes past the ring; None if the channel has none."""
        return self if self._area.n_bytes else None

    @property
    def is_under_way(self) -> bool:
        """True if a message, an answer or a reply is under way, or an order. Makes no MPI call."""
        is_open = self._puts.asked is not None or self._replies.are_under_way
        return (
            is_open or self._remote.is_under_way or not self.orders.is_empty or bool(self._incoming)
        )

    def begin_orders(self) -> None:
        """Prepare for orders and requests for values: nothing that they may overtake is under way. Blocks."""
        self._puts.put_new()
        self._puts.finish_puts()

    def expect_dense(self, table: int, version: int, out: Float32) -> Awaited | None:
        """Ask for the values of a version; see Channel.expect_dense."""
        self._gate.close()
        incoming = self._reads.expect(self._question, table, version, out)
        if incoming is not None:
            self._incoming.append(incoming)
        return incoming

    def advance_orders(self, max_s: float) -> bool:
        """Advance orders for `max_s` seconds, or until all are written and sent; return True then."""
        self._gate.close()

        def is_done() -> bool:
            self.advance()
            return self.orders.is_empty

        return wait_for(is_done, max_s)

    def advance(self) -> bool:
        """Do what is possible without waiting; return True if something has moved. Threads: see gate.py."""
        moved = self._remote.test()
        if (
            self._puts.asked is not None and not self._puts.under_way
        ):  # else it would wait for a flush
            moved |= self._puts.take_answer()
        moved |= self._replies.take()
        if self._puts.streams:
            self._replies.request()
        if self._incoming:
            n = len(self._incoming)
            self._incoming = [values for values in self._incoming if not values.is_there()]
            moved |= len(self._incoming) < n
        return moved | self._advance_orders() if not self.orders.is_empty else moved

    def _advance_orders(self) -> bool:
        """Write and send orders; ask when there will be room, if they have none."""
        moved = self.orders.advance()
        self._puts.unfenced = True
        writer = self._writer
        if self.orders.lacks_room and self._puts.asked is None:
            full = writer.credits == 0
            self._puts.asked = self._puts.some_more() if full else self._area.next_free + 1
            self._question.ask(self._puts.asked)
        return moved

    def refresh(self) -> None:
        """Fetch acknowledgement, results and replies: small replies at once, large ones when they are due."""
        self._puts.put_new()
        self._remote.get(self._at, self._mirror[: self._ring.answer_bytes])
        if self._puts.streams:
            self._puts.flush()
            self.advance()
            return
        pulls = self._writer.open_pulls()
        early = pulls if sum(n for _, n in pulls) <= _EARLY_BYTES else []
        self._fetch_replies(early)
        self._puts.flush()
        if not early:
            pulls = self._writer.open_pulls()
            applied = self._writer.applied
            due = [(q, n) for q, n in pulls if q < applied]
            self._fetch_replies(due)
            if due:
                self._remote.flush()
        if pulls:
            self._writer.collect()

    def _fetch_replies(self, pulls: list[tuple[int, int]]) -> None:
        for sequence, n_bytes in pulls:
            at = self._places.reply(sequence)
            self._remote.get(self._at + at, self._mirror[at : at + n_bytes])

    def view(self, table: int) -> Float32 | None:
        """Return None: the memory of another node cannot be mapped."""
        return None
