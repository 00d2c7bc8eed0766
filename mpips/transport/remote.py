"""The ring over a network: a private copy of the mailbox (the mirror), transferred by put and get.

Push. The C++ writer fills slots of the mirror, with checksums. `send` puts stamp, header and payload of each
new record, adjacent records in one put. MPI orders nothing within a put or between puts, so a stamp may
arrive before its record. The server therefore consumes a record only when its sequence and its checksums
prove that it is complete. A flush between record and stamp would cost a round trip and add nothing to that
proof. The flush comes before a slot of the mirror is written again, that is, whenever the acknowledgement is
read.

Acknowledgement. The worker asks once and is answered when its records are consumed (`Question`), or it gets
the acknowledgement together with replies. Everything that arrives carries its own proof that it is complete
(complement, sequence, checksum), because a get may see bytes of two stores. An old answer that arrives late
only acknowledges fewer records than are known to be consumed.

Large dense pushes do not pass through the mirror. They are put from the caller's array into the worker's
rendezvous buffer, followed by small records that say where they lie (mpips.worker.paths.rendezvous).

Dense pull. Block versions, values and again block versions are read. Blocks whose two versions differ, or
that were being written, are read again (remote_reads.py).

Streams. While a look-ahead or torch's backward uses the channel (`stream`), nothing of the ring waits for its
own transfer. Records and large dense updates leave as messages that hold copies, so their memory may be
written again at once, and `publish` does not wait for them. They arrive in order, so the record of a large
update comes after its values. Replies come as messages, too (replies.py). `advance` takes what has arrived
and does not wait: the program calls it in its waits, and the progress thread, if there is one, in between
(progress.py).

Orders are updates that leave by their urgency (orders.py). Each other use of the ring first has all of them
written and sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.transport.area import Area, AreaWay
from mpips.transport.gate import Gate
from mpips.transport.mailbox_copy import MailboxCopy
from mpips.transport.orders import Orders
from mpips.transport.p2p import INLINE_BYTES
from mpips.transport.remote_memory import Asking, Awaited, Bytes, RemoteMemory
from mpips.transport.remote_reads import RemoteReads
from mpips.transport.replies import Replies
from mpips.transport.waiting import ReadPace, wait_for

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
        self._pace = ReadPace()  # of waits that read the server's memory
        self._asked: int | None = None  # number of records of the open question
        self._waits = False  # whether the worker waited for its last records
        self._ring = layout.geometry
        self._at = layout.mailbox_offset(worker)
        self._places = MailboxCopy(self._ring, make_writer)
        self._writer = self._places.writer
        reads = self._reads = RemoteReads(memory, layout, n_workers, self._writer, self._gate)
        self.read_version, self.read_dense = reads.version, reads.dense
        self.clocks, self.awaited_worker = reads.clocks, reads.awaited_worker
        self.take_dense, self.fetch_dense = reads.take_dense, reads.fetch_dense
        self._area = Area(layout.area_bytes(worker), self._writer)
        self._area_at = self._at + self._ring.mailbox_bytes
        self.orders = Orders(memory, self._places, self._at, self._area, self._area_at)
        self._incoming: list[Awaited] = []  # values that were asked for and are not all there
        self._mirror = self._places.bytes
        self._under_way = 0  # bytes of puts from the mirror since the last flush
        self._straight = False  # whether puts into the rendezvous buffer are not flushed yet
        self._unfenced = False  # whether anything was put since the last fence
        self._fence_open = False  # whether a fence is not answered yet
        self._n_streams = 0
        self._replies = Replies(question, self._places, self._at)

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

    def send(self) -> None:
        """Send the records written since the last call; small puts leave at once and are completed later."""
        self._put_new()
        if self._n_streams:
            self._remote.test()
        elif self._under_way > INLINE_BYTES:
            self._complete()
        elif self._under_way:
            self._remote.leave()

    def publish(self) -> None:
        """Make all records so far visible to the server; small ones may arrive later: `begin_fence`."""
        self._put_new()
        if not self._n_streams:
            self._complete()
        elif not self._gate.is_served:
            self._remote.leave()

    def begin_fence(self) -> None:
        """Ask the server to confirm that all records written so far are in its memory."""
        self._put_new()
        if self._unfenced and not self._fence_open:
            self._unfenced, self._fence_open = False, True
            self._remote.fence()

    def wait_fence(self, max_s: float) -> bool:
        """Wait until all records so far are confirmed: flushes wait for puts, answers for messages."""
        self._gate.close()
        self._complete()
        end = time.monotonic() + max_s
        while self._fence_open:
            if not wait_for(self._remote.fenced, end - time.monotonic()):
                return False
            # The answer proves nothing about what was put since the fence, and only one can be open.
            self._fence_open = False
            self.begin_fence()
            self._complete()
        return True

    def area_way(self) -> AreaWay | None:
        """Return the way of large dense pushes past the ring; None if there is none."""
        return self if self._area.n_bytes else None

    def put_area(self, offset: int, data: Bytes) -> None:
        """Start putting bytes into the rendezvous buffer."""
        self._gate.close()
        self._unfenced = True
        if self._n_streams:
            self._remote.put_copied(self._area_at + offset, data)
            return
        self._remote.put(self._area_at + offset, data)
        self._straight = True

    def put_records(self) -> None:
        """Start sending the records written since the last call."""
        self._put_new()

    def ask(self) -> None:
        """Ask the server to answer when all records so far are consumed.

        A worker that goes on pushing learns from the answer when its buffer has room.
        """
        self._gate.close()
        if self._asked is not None:
            self._take_answer()
        if self._asked is None:
            self._asked = self._writer.next_sequence
            self._question.ask(self._asked)

    def _put_new(self) -> None:
        """Start putting the records written since the last call. The program's thread alone calls this."""
        self._gate.close()
        self.orders.need_none()
        writer = self._writer
        last = writer.next_sequence
        for start, end in self._places.new_records():
            self._put(start, end, last)
        writer.published = last
        if self._n_streams:
            self._replies.request()

    def _put(self, start: int, end: int, last: int) -> None:
        """Put a part of the mirror.

        A worker that waited for its last push probably waits for this one, so the put carries the question.
        """
        data = self._mirror[start:end]
        self._unfenced = True
        if self._n_streams:
            return self._remote.put_copied(self._at + start, data)
        if self._straight and len(data) <= INLINE_BYTES:
            # Send a message: nothing may wait for a flush between puts into the rendezvous buffer.
            return self._remote.put_asking(self._at + start, data, 0)
        if self._asked is not None:
            self._waits = False
            self._take_answer()
        if self._waits and self._asked is None and len(data) <= INLINE_BYTES:
            self._question.expect()
            self._asked = last
            self._remote.put_asking(self._at + start, data, last)
        elif len(data) <= INLINE_BYTES:
            self._remote.put_asking(self._at + start, data, 0)
        else:
            self._remote.put(self._at + start, data)
        self._under_way += end - start

    def complete(self) -> None:
        """Block until all puts so far have arrived."""
        self._gate.close()
        self._complete()

    def _complete(self) -> None:
        if self._under_way or self._straight:
            self._flush()

    def _flush(self) -> None:
        self._remote.flush()
        self._under_way = 0
        self._straight = False

    def stream(self, on: bool) -> None:
        """Begin a use of the channel as a stream, or end one, which makes no MPI call."""
        if on:
            self._put_new()
            self._complete()
        self._n_streams += 1 if on else -1
        if self._n_streams == 0:
            self._under_way += 1  # let the next flush complete the messages of the stream

    @property
    def is_under_way(self) -> bool:
        """True if a message, an answer or a reply is under way, or an order. Makes no MPI call."""
        is_open = self._asked is not None or self._replies.are_under_way
        return (
            is_open or self._remote.is_under_way or not self.orders.is_empty or bool(self._incoming)
        )

    def begin_orders(self) -> None:
        """Prepare for orders and requests for values: nothing that they may overtake is under way. Blocks."""
        self._put_new()
        self._complete()

    def expect_dense(self, table: int, version: int, out: Float32) -> Awaited | None:
        """See Channel.expect_dense."""
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
        if self._asked is not None and not self._under_way:  # else it would wait for a flush
            moved |= self._take_answer()
        moved |= self._replies.take()
        if self._streams:
            self._replies.request()
        if self._incoming:
            n = len(self._incoming)
            self._incoming = [values for values in self._incoming if not values.is_there()]
            moved |= len(self._incoming) < n
        return moved | self._advance_orders() if not self.orders.is_empty else moved

    def _advance_orders(self) -> bool:
        """Write and send orders; ask when there will be room, if they have none."""
        moved = self.orders.advance()
        self._unfenced = True
        writer = self._writer
        if self.orders.lacks_room and self._asked is None:
            full = writer.credits == 0
            self._asked = self._some_more() if full else self._area.next_free + 1
            self._question.ask(self._asked)
        return moved

    def refresh(self) -> None:
        """Fetch acknowledgement, results and replies: small replies at once, large ones when they are due."""
        self._put_new()
        self._remote.get(self._at, self._mirror[: self._ring.answer_bytes])
        if self._streams:
            self._flush()
            self.advance()
            return
        pulls = self._writer.open_pulls()
        early = pulls if sum(n for _, n in pulls) <= _EARLY_BYTES else []
        self._fetch_replies(early)
        self._flush()
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

    def wait_applied(self, count: int, max_s: float) -> bool:
        """Wait until `count` records are consumed."""
        self._put_new()
        return wait_for(lambda: self._heard(count), max_s)

    def settle(self, max_s: float) -> bool:
        """Wait until no reply is under way."""
        self._put_new()
        return wait_for(lambda: (self.advance(), not self._replies.are_under_way)[1], max_s)

    def wait_received(self, count: int, max_s: float) -> bool:
        """Wait until the server's replica has `count` records."""
        self._put_new()
        return self._pace.wait_for(self._looked(lambda: self._writer.received >= count), max_s)

    def _heard(self, count: int) -> bool:
        """Return whether `count` records are known to be consumed; ask, or take the answer.

        Does not wait for an answer.
        """
        writer = self._writer
        if writer.applied >= count:
            return True
        self._waits = count == writer.next_sequence
        if self._asked is None:
            self._question.ask(count)
            self._asked = count
        # Complete the puts: MPI does not finish them by itself.
        self._complete()
        if not self._take_answer() and self._asked > count:
            # Read the acknowledgement: a question about later records is open, and there can be only one.
            self.refresh()
        return writer.applied >= count

    def _take_answer(self) -> bool:
        """Take the answer to the open question; return False if it is not there."""
        answer = self._question.answer()
        if answer is None:
            return False
        self._asked = None
        self._mirror[: len(answer)] = answer
        # Take what is new in it at once: an answer that was under way for longer may replace it.
        _ = self._writer.applied
        if self._under_way:
            self._complete()
        return True

    def wait_credit(self, max_s: float) -> bool:
        """Wait until there is a free slot."""
        self._put_new()
        if self._streams:
            return wait_for(self._has_credit, max_s)
        if self._writer.open_pulls():
            return self._pace.wait_for(self._looked(lambda: self._writer.credits > 0), max_s)
        count = self._some_more()
        if not wait_for(lambda: self._heard(count), max_s):
            self.refresh()
        return self._writer.credits > 0

    def _some_more(self) -> int:
        """Return the number of records after which a ring without a free slot has several.

        Records that are sent together are sent faster.
        """
        some = self._writer.applied + max(1, self._ring.n_slots // 4)
        return min(some, self._writer.next_sequence)

    def wait_collected(self, before: int, max_s: float) -> bool:
        """Wait until every pull with a sequence below `before` is answered."""
        self._put_new()
        if self._streams:
            return wait_for(lambda: self._is_collected(before), max_s)
        return self._pace.wait_for(
            self._looked(lambda: self._writer.collected_before() >= before), max_s
        )

    def wait_head(self, table: int, version: int, min_clock: int, max_s: float) -> bool:
        """Wait until a table has this version and all workers this clock."""
        self.publish()

        def reached() -> bool:
            now = self._reads.head(table)
            return now is not None and now[0] >= version and now[1] >= min_clock

        return self._pace.wait_for(reached, max_s)

    def view(self, table: int) -> Float32 | None:
        """Return None: the memory of another node cannot be mapped."""
        return None

    @property
    def _streams(self) -> bool:
        """True while replies come as messages."""
        return self._n_streams > 0 or self._replies.are_under_way

    def _is_collected(self, before: int) -> bool:
        if self._writer.collected_before() < before:
            self.advance()
        return self._writer.collected_before() >= before

    def _has_credit(self) -> bool:
        writer = self._writer
        self.advance()
        if writer.credits == 0 and not writer.open_pulls():
            self._heard(self._some_more())
        return writer.credits > 0

    def _looked(self, done: Callable[[], bool]) -> Callable[[], bool]:
        """Return a function that refreshes the mirror and then calls `done`."""

        def look() -> bool:
            self.refresh()
            return done()

        return look
