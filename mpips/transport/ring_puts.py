"""The records of a ring on their way to a server on another node, and the one open question about them.

`put_new` puts stamp, header and payload of each new record, adjacent records in one put. MPI orders nothing
within a put or between puts, so a stamp may arrive before its record. The server therefore consumes a record
only when its sequence and its checksums prove that it is complete. A flush between record and stamp would
cost a round trip and add nothing to that proof. The flush comes before a slot of the mirror is written again,
that is, whenever the acknowledgement is read.

Acknowledgement. The worker sends one question, which is answered when its records are consumed (`Question`),
or it gets the acknowledgement together with replies. Everything that arrives carries its own proof that it is
complete (complement, sequence, checksum), because a get may see bytes of two stores. An old answer that
arrives late only acknowledges fewer records than are known to be consumed.

Streams. While a look-ahead or torch's backward uses the channel (`stream`), records and large dense updates
leave as messages that hold copies, so their memory may be written again at once, and `publish` does not wait
for them. They arrive in order, so the record of a large update comes after its values.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mpips.transport.mailbox_copy import PUT_BYTES, MailboxCopy
from mpips.transport.p2p import EAGER_BYTES, INLINE_BYTES
from mpips.transport.waiting import wait_for

if TYPE_CHECKING:
    from mpips import _native
    from mpips.transport.gate import Gate
    from mpips.transport.orders import Orders
    from mpips.transport.remote_memory import Asking, Bytes, RemoteMemory
    from mpips.transport.replies import Replies


class RingPuts:
    """The puts of one worker's records into the memory of one server. Not thread-safe; see gate.py.

    Attributes:
        asked: Number of records of the open question; None: none is open.
        waits: True if the worker waited for its last records.
        under_way: Bytes of puts from the mirror since the last flush.
        unfenced: True if anything was put since the last fence.
        n_streams: Number of uses of the channel as a stream.
    """

    def __init__(
        self,
        memory: RemoteMemory,
        question: Asking,
        gate: Gate,
        places: MailboxCopy,
        at: int,
        orders: Orders,
        replies: Replies,
        area_at: int,
    ) -> None:
        """Put nothing yet.

        Args:
            memory: Access to the server's region.
            question: Questions to the server.
            gate: The gate of this process.
            places: The mirror.
            at: Where the mailbox lies in the region.
            orders: The orders of the channel, all of which must be sent before a record.
            replies: The replies that come as messages.
            area_at: Where the worker's rendezvous buffer lies in the region.
        """
        self.asked: int | None = None
        self.waits = False
        self.under_way = 0
        self.unfenced = False
        self.n_streams = 0
        self._remote = memory
        self._question = question
        self._gate = gate
        self._places = places
        self._at = at
        self._area_at = area_at
        self._writer: _native.RingWriter = places.writer
        self._mirror = places.bytes
        self._n_slots = places.ring.n_slots
        self._orders = orders
        self._replies = replies
        self._straight = False  # whether puts into the rendezvous buffer are not flushed yet
        self._fence_open = False  # whether a fence is not answered yet

    @property
    def streams(self) -> bool:
        """True while replies come as messages."""
        return self.n_streams > 0 or self._replies.are_under_way

    def send(self) -> None:
        """Send the records written since the last call; small puts leave at once and are completed later."""
        self.put_new()
        if self.n_streams:
            self._remote.test()
        elif self.under_way > INLINE_BYTES:
            self.finish_puts()
        elif self.under_way:
            self._remote.leave()

    def publish(self) -> None:
        """Make all records so far visible to the server; small ones may arrive later: `begin_fence`."""
        self.put_new()
        if not self.n_streams:
            self.finish_puts()
        elif not self._gate.is_served:
            self._remote.leave()

    def ask(self) -> None:
        """Ask the server to answer when all records so far are consumed.

        A worker that goes on pushing learns from the answer when its buffer has room.
        """
        self._gate.close()
        if self.asked is not None:
            self.take_answer()
        if self.asked is None:
            self.asked = self._writer.next_sequence
            self._question.ask(self.asked)

    def put_area(self, offset: int, data: Bytes) -> None:
        """Start putting bytes into the rendezvous buffer."""
        self._gate.close()
        self.unfenced = True
        if self.n_streams:
            self._remote.put_copied(self._area_at + offset, data)
            return
        self._remote.put(self._area_at + offset, data)
        self._straight = True

    def begin_fence(self) -> None:
        """Ask the server to confirm that all records written so far are in its memory."""
        self.put_new()
        if self.unfenced and not self._fence_open:
            self.unfenced, self._fence_open = False, True
            self._remote.fence()

    def wait_fence(self, max_s: float) -> bool:
        """Wait until all records so far are confirmed: flushes wait for puts, answers for messages."""
        self._gate.close()
        self.finish_puts()
        end = time.monotonic() + max_s
        while self._fence_open:
            if not wait_for(self._remote.fenced, end - time.monotonic()):
                return False
            # The answer proves nothing about what was put since the fence, and only one can be open.
            self._fence_open = False
            self.begin_fence()
            self.finish_puts()
        return True

    def complete(self) -> None:
        """Block until all puts so far have arrived."""
        self._gate.close()
        self.finish_puts()

    def stream(self, on: bool) -> None:
        """Begin a use of the channel as a stream, or end one, which makes no MPI call."""
        if on:
            self.put_new()
            self.finish_puts()
        self.n_streams += 1 if on else -1
        if self.n_streams == 0:
            self.under_way += 1  # let the next flush complete the messages of the stream

    def put_new(self) -> None:
        """Start putting the records written since the last call. The program's thread alone calls this."""
        self._gate.close()
        self._orders.need_none()
        writer = self._writer
        last = writer.next_sequence
        if writer.published == last:
            if self.n_streams:
                self._replies.request()
            return
        most = EAGER_BYTES if self.n_streams else PUT_BYTES
        for start, end in self._places.new_records(most):
            self._put(start, end, last)
        writer.published = last
        if self.n_streams:
            self._replies.request()

    def _put(self, start: int, end: int, last: int) -> None:
        """Put a part of the mirror.

        A worker that waited for its last push probably waits for this one, so the put carries the question.
        """
        data = self._mirror[start:end]
        self.unfenced = True
        if self.n_streams:
            return self._remote.put_copied(self._at + start, data)
        if self._straight and len(data) <= INLINE_BYTES:
            # Send a message: nothing may wait for a flush between puts into the rendezvous buffer.
            return self._remote.put_asking(self._at + start, data, 0)
        if self.asked is not None:
            self.waits = False
            self.take_answer()
        if self.waits and self.asked is None and len(data) <= INLINE_BYTES:
            self.asked = last
            self._remote.put_asking(self._at + start, data, last)
            # Prepare for the answer when the record has left, which is what the answer waits for.
            self._question.expect()
        elif len(data) <= INLINE_BYTES:
            self._remote.put_asking(self._at + start, data, 0)
        else:
            self._remote.put(self._at + start, data)
        self.under_way += end - start

    def finish_puts(self) -> None:
        """Wait until all puts so far have arrived, if any is under way."""
        if self.under_way or self._straight:
            self.flush()

    def flush(self) -> None:
        """Wait until all puts and gets so far are complete."""
        self._remote.flush()
        self.under_way = 0
        self._straight = False

    def take_answer(self) -> bool:
        """Take the answer to the open question; return False if it is not there."""
        answer = self._question.answer()
        if answer is None:
            return False
        self.asked = None
        self._mirror[: len(answer)] = answer
        # Take what is new in it at once: an answer that was under way for longer may replace it.
        _ = self._writer.applied
        if self.under_way:
            self.finish_puts()
        return True

    def some_more(self) -> int:
        """Return the number of records after which a ring without a free slot has several.

        Records that are sent together are sent faster.
        """
        some = self._writer.applied + max(1, self._n_slots // 4)
        return min(some, self._writer.next_sequence)
