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
that were being written, are read again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.transport.area import Area, AreaWay
from mpips.transport.channel import whole_version
from mpips.transport.image import decode_image, image_bytes
from mpips.transport.p2p import INLINE_BYTES
from mpips.transport.remote_memory import Asking, Bytes, RemoteMemory

Float32 = NDArray[np.float32]

_HEADER_BYTES = 64
_PAYLOAD_BYTES_AT = 52  # offset of the u32 `payload_bytes` in a record header
_PAIR_BYTES = 16
_GET_BYTES = 4 << 20  # bytes of one get of a dense pull
_PUT_BYTES = 1 << 20  # adjacent records go in one put of at most so many bytes
_SLACK_BYTES = 4 << 10  # unused bytes of a slot that one put may include
_SPIN_S = 2e-3  # seconds for which a wait checks without a pause
# Replies of up to so many bytes in all are fetched before they are known to be there.
_EARLY_BYTES = 64 << 10
# Longer replies are worth a wait of up to _ANSWER_S seconds before a push, beside which they travel.
_LONG_BYTES, _ANSWER_S = 512 << 10, 5e-3


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
        """
        self.name = memory.name
        self.checksums = checksums
        self.piece_bytes = memory.piece_bytes
        self.layout = layout
        self._remote = memory
        self._question = question
        self._asked: int | None = None  # number of records of the open question
        self._waits = False  # whether the worker waited for its last records
        self._n_workers = n_workers
        self._ring = layout.geometry
        self._at = layout.mailbox_offset(worker)
        # Take 4 KiB pages: a worker has a mirror for each remote server, and small records use little of it.
        mirror = _native.SharedMemory.anonymous(self._ring.mailbox_bytes, 0, huge=False)
        self.writer = make_writer(mirror)
        self.area = Area(layout.area_bytes(worker), self.writer)
        self._area_at = self._at + self._ring.mailbox_bytes
        self._mirror = mirror.view(0, self._ring.mailbox_bytes, True)
        self._scratch = np.zeros(_HEADER_BYTES, np.uint8)
        self._words = self._mirror.view(np.uint32)
        self._under_way = 0  # bytes of puts from the mirror since the last flush
        self._straight = False  # whether puts into the rendezvous buffer are not flushed yet
        self._unfenced = False  # whether anything was put since the last fence
        self._fetching = False  # whether gets of replies are under way
        self._fence_open = False  # whether a fence is not answered yet

    def send(self) -> None:
        """Send the records written since the last call.

        Small puts leave at once and are completed later.
        """
        self._put_new()
        if self._under_way > INLINE_BYTES:
            self.complete()
        elif self._under_way:
            self._remote.leave()

    def publish(self) -> None:
        """Make all records so far visible to the server; small ones may arrive later: `begin_fence`."""
        self._put_new()
        self.complete()

    def begin_fence(self) -> None:
        """Ask the server to confirm that all records written so far are in its memory."""
        self._put_new()
        if self._unfenced and not self._fence_open:
            self._unfenced, self._fence_open = False, True
            self._remote.fence()

    def wait_fence(self, max_s: float) -> bool:
        """Wait until all records so far are confirmed: flushes wait for puts, answers for messages."""
        self.complete()
        end = time.monotonic() + max_s
        while self._fence_open:
            if not self._wait(self._remote.fenced, end - time.monotonic()):
                return False
            # The answer proves nothing about what was put since the fence, and only one can be open.
            self._fence_open = False
            self.begin_fence()
            self.complete()
        return True

    def area_way(self) -> AreaWay | None:
        """Return the way of large dense pushes past the ring; None if there is none."""
        return self if self.area.n_bytes else None

    def put_area(self, offset: int, data: Bytes) -> None:
        """Start putting bytes into the rendezvous buffer."""
        self._remote.put(self._area_at + offset, data)
        self._straight = self._unfenced = True

    def put_records(self) -> None:
        """Start sending the records written since the last call."""
        self._put_new()

    def ask(self) -> None:
        """Ask the server to answer when all records so far are consumed.

        A worker that goes on pushing learns from the answer when its buffer has room.
        """
        if self._asked is not None:
            self._take_answer()
        if self._asked is None:
            self._asked = self.writer.next_sequence
            self._question.ask(self._asked)

    def _put_new(self) -> None:
        """Start putting the records written since the last call."""
        writer = self.writer
        sequence, last = writer.published, writer.next_sequence
        while sequence < last:
            start = self._stamp(sequence)
            end = self._end(sequence)
            sequence += 1
            while sequence < last and self._joins(start, end, sequence):
                end = self._end(sequence)
                sequence += 1
            self._put(start, end, last)
        writer.published = last

    def _put(self, start: int, end: int, last: int) -> None:
        """Put a part of the mirror.

        A worker that waited for its last push probably waits for this one, so the put carries the question.
        """
        data = self._mirror[start:end]
        self._unfenced = True
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
        elif self._fetching:
            self._remote.put_beside(self._at + start, data)
        else:
            self._remote.put(self._at + start, data)
        self._under_way += end - start

    def _joins(self, start: int, end: int, sequence: int) -> bool:
        """Return whether a record may go in the put of the records before it."""
        stamp = self._stamp(sequence)
        return 0 <= stamp - end <= _SLACK_BYTES and self._end(sequence) - start <= _PUT_BYTES

    def complete(self) -> None:
        """Block until all puts so far have arrived."""
        if self._under_way or self._straight or self._fetching:
            self._flush()

    def _flush(self) -> None:
        self._remote.flush()
        self._under_way = 0
        self._straight = False
        if self._fetching:
            self._fetching = False
            self.writer.collect()

    def expect_replies(self) -> None:
        """Ask to be informed when the replies to all pulls so far are there."""
        self.ask()

    def begin_collect(self) -> None:
        """Start to fetch the replies that an answered question has shown to be there."""
        pulls = self.writer.open_pulls()
        if self._asked is not None and pulls:
            # Wait a little for the answer if there is much to fetch: what is not fetched beside the push is
            # fetched after it.
            is_long = sum(n for _, n in pulls) > _LONG_BYTES
            self._wait(self._take_answer, _ANSWER_S if is_long else 0.0)
        applied = self.writer.applied
        due = [(q, n) for q, n in pulls if q < applied]
        if due and not self._fetching:
            for sequence, n_bytes in due:
                at = self._reply(sequence)
                self._remote.get_beside(self._at + at, self._mirror[at : at + n_bytes])
            self._fetching = True

    def refresh(self) -> None:
        """Fetch acknowledgement, results and replies: small replies at once, large ones when they are due."""
        self._put_new()
        self._remote.get(self._at, self._mirror[: self._ring.answer_bytes])
        pulls = self.writer.open_pulls()
        early = pulls if sum(n for _, n in pulls) <= _EARLY_BYTES else []
        self._fetch_replies(early)
        self._flush()
        if not early:
            pulls = self.writer.open_pulls()
            applied = self.writer.applied
            due = [(q, n) for q, n in pulls if q < applied]
            self._fetch_replies(due)
            if due:
                self._remote.flush()
        if pulls:
            self.writer.collect()

    def _fetch_replies(self, pulls: list[tuple[int, int]]) -> None:
        for sequence, n_bytes in pulls:
            at = self._reply(sequence)
            self._remote.get(self._at + at, self._mirror[at : at + n_bytes])

    def wait_applied(self, count: int, max_s: float) -> bool:
        """Wait until `count` records are consumed."""
        self._put_new()
        return self._wait(lambda: self._heard(count), max_s)

    def wait_received(self, count: int, max_s: float) -> bool:
        """Wait until the server's replica has `count` records."""
        self._put_new()
        return self._wait(self._looked(lambda: self.writer.received >= count), max_s)

    def _heard(self, count: int) -> bool:
        """Return whether `count` records are known to be consumed; ask, or take the answer.

        Does not wait for an answer.
        """
        writer = self.writer
        if writer.applied >= count:
            return True
        self._waits = count == writer.next_sequence
        if self._asked is None:
            self._question.ask(count)
            self._asked = count
        # Complete the puts: MPI does not finish them by itself.
        self.complete()
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
        if self._under_way:
            self.complete()
        return True

    def wait_credit(self, max_s: float) -> bool:
        """Wait until there is a free slot."""
        self._put_new()
        if self.writer.open_pulls():
            return self._wait(self._looked(lambda: self.writer.credits > 0), max_s)
        # Wait for several free slots, because records that are sent together are sent faster.
        some = self.writer.applied + max(1, self._ring.n_slots // 4)
        count = min(some, self.writer.next_sequence)
        if not self._wait(lambda: self._heard(count), max_s):
            self.refresh()
        return self.writer.credits > 0

    def wait_collected(self, before: int, max_s: float) -> bool:
        """Wait until every pull with a sequence below `before` is answered."""
        return self._wait(self._looked(lambda: self.writer.collected_before() >= before), max_s)

    def wait_head(self, table: int, version: int, min_clock: int, max_s: float) -> bool:
        """Wait until a table has this version and all workers this clock."""
        self.publish()

        def reached() -> bool:
            now = self._read_head(table)
            return now is not None and now[0] >= version and now[1] >= min_clock

        return self._wait(reached, max_s)

    def read_version(self, table: int) -> int:
        """Return the present version of a table."""
        return whole_version(lambda: self._read_head(table), table)

    def read_dense(self, table: int, out: Float32, max_s: float) -> bool:
        """Copy the server's range of a dense table into `out`."""
        versions_at, values_at, n_blocks = self.layout.dense_offsets(table)
        block = _native.BLOCK_FLOATS * 4
        raw = out.view(np.uint8).reshape(-1)
        image = self.layout.dense_image(table)
        if image is not None:
            values_at, block, codec = image
            raw = np.empty(image_bytes(self.layout, table, out.size), np.uint8)
        before = np.empty(n_blocks * _PAIR_BYTES, np.uint8)
        after = np.empty_like(before)
        self._remote.get(versions_at, before)
        version = self.read_version(table)
        self._read(values_at, raw)
        end = time.monotonic() + max_s
        # A block is done when its versions before and after the copy agree; read only the others again.
        pending = set(range(n_blocks))
        while True:
            self._read(versions_at, after)
            pending &= set(_native.unstable_blocks(before, after))
            if not pending:
                if image is not None:
                    decode_image(codec, raw, block, out)
                self.writer.set_base_version(table, version)
                self.writer.count_pulled(raw.nbytes)
                return True
            if time.monotonic() > end:
                return False
            before, after = after, before
            for b in sorted(pending):
                self._read(values_at + b * block, raw[b * block : (b + 1) * block])

    def view(self, table: int) -> Float32 | None:
        """Return None: the memory of another node cannot be mapped."""
        return None

    def clocks(self) -> list[int]:
        """Return the workers' clocks at this server."""
        lines = np.empty(self._n_workers * _native.CLOCK_LINE_BYTES, np.uint8)
        self._read(self.layout.clocks_offset, lines)
        words = lines.view(np.uint64).reshape(self._n_workers, -1)
        return [int(word) for word in words[:, 0]]

    def awaited_worker(self) -> int:
        """Return the worker that this server waits for (BSP)."""
        word = np.empty(8, np.uint8)
        self._read(self.layout.awaited_offset, word)
        return int(word.view(np.uint64)[0])

    def _looked(self, done: Callable[[], bool]) -> Callable[[], bool]:
        """Return a function that refreshes the mirror and then calls `done`."""

        def look() -> bool:
            self.refresh()
            return done()

        return look

    def _wait(self, done: Callable[[], bool], max_s: float) -> bool:
        """Call `done` until it is True: without pauses at first, then with growing ones."""
        start = time.monotonic()
        pause = 10e-6
        while not done():
            waited = time.monotonic() - start
            if waited >= max_s:
                return False
            if waited < _SPIN_S:
                os.sched_yield()
            else:
                time.sleep(pause)
                pause = min(1.5 * pause, 200e-6)
        return True

    def _read_head(self, table: int) -> tuple[int, int] | None:
        """Return (version, lowest clock) of a table's head, or None if it is being written."""
        self._read(self.layout.head_offset(table), self._scratch)
        words = self._scratch.view(np.uint64)
        version, not_version, clock, not_clock = (int(w) for w in words[:4])
        if version ^ not_version != 2**64 - 1 or clock ^ not_clock != 2**64 - 1:
            return None
        return version, clock

    def _read(self, offset: int, out: Bytes) -> None:
        for start in range(0, len(out), _GET_BYTES):
            part = out[start : start + _GET_BYTES]
            self._remote.get(offset + start, part)
        self._remote.flush()

    def _index(self, sequence: int) -> int:
        return sequence % self._ring.n_slots

    def _reply(self, sequence: int) -> int:
        return self._ring.replies_offset + self._index(sequence) * self._ring.slot_bytes

    def _stamp(self, sequence: int) -> int:
        return self._ring.stamps_offset + self._index(sequence) * self._ring.record_stride

    def _end(self, sequence: int) -> int:
        """Return the offset at which the payload of a record ends."""
        slot = self._stamp(sequence) + self._ring.slots_offset - self._ring.stamps_offset
        return slot + _HEADER_BYTES + self._words.item((slot + _PAYLOAD_BYTES_AT) // 4)
