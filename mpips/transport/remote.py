"""The ring over a network: a private mirror of the mailbox, carried by put and get.

Push: the C++ writer fills slots of the mirror (checksums on); `send` puts stamp, header and payload of
each new record, neighbours in one put. MPI orders nothing within a put or between puts, so a stamp may
arrive before its record: the server takes a record only when number and checksums say that all of it is
there. A flush in between would cost a round trip and add nothing to that proof. The flush comes before
a slot of the mirror is written again, that is, with every look at the acknowledgement.
Acknowledgements: the worker asks once and is answered when its records are consumed (`Question`), or
gets them together with replies. What arrives carries its own proof of wholeness (complement, sequence
number, checksum), because a get may see bytes of two stores; an old answer that arrives late only says
less than is known.

Large dense pushes do not pass through the mirror: they are put from the caller's array into the worker's
area, and small records that say where they lie follow them (mpips.transport.area_push).

Dense pull: block versions, values, block versions again; blocks whose two readings differ (or that were
being written) are read again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.transport.area import Area, AreaWay
from mpips.transport.channel import whole_version
from mpips.transport.p2p import INLINE_BYTES

Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]

_HEADER_BYTES = 64
_PAYLOAD_BYTES_AT = 52  # of the u32 `payload_bytes` in a record header
_PAIR_BYTES = 16
_GET_BYTES = 4 << 20  # one get of a dense pull
_PUT_BYTES = 1 << 20  # neighbouring records go in one put up to this size
_SLACK_BYTES = 4 << 10  # of a slot that is not full and travels along with its neighbours
_SPIN_S = 2e-3  # a wait looks again at once for so long
_EARLY_BYTES = (
    64 << 10
)  # replies up to this size are fetched before it is known that they are there


class RemoteMemory(Protocol):
    """The region of one server, reached by messages or RMA. Offsets and lengths in bytes.

    Two ways of writing. What `put` wrote is in the region before anything that is sent after `flush` has
    returned. Small writes (`put_asking`) are messages: they arrive in their own order, `flush` does not
    wait for it, and MPI orders nothing between them and puts. Only an answered `fence` tells that all of
    both has arrived.

    Attributes:
        name: Of the transport.
        piece_bytes: Of one put of a long array that goes fastest.
    """

    name: str
    piece_bytes: int

    def put(self, offset: int, data: Bytes) -> None:
        """Start a write of any length; `data` must stay unchanged until `flush`."""

    def get(self, offset: int, out: Bytes) -> None:
        """Start a read; `out` is filled after `flush`."""

    def put_asking(self, offset: int, data: Bytes, count: int) -> None:
        """Write at most INLINE_BYTES by a message, which asks for an answer once `count` records are
        consumed (0: it asks for none). `data` may be changed at once.
        """

    def leave(self) -> None:
        """Return when puts of at most INLINE_BYTES need this process no more to arrive."""

    def flush(self) -> None:
        """Complete all puts and gets; see above."""

    def fence(self) -> None:
        """Start asking the server to confirm that all messages so far have arrived. Not blocking."""

    def fenced(self) -> bool:
        """Return True once the server has confirmed it. Enters MPI, does not block."""


class Asking(Protocol):
    """See mpips.transport.p2p.Question."""

    def ask(self, count: int) -> None:
        """Start asking for what the server says once `count` records are consumed."""

    def expect(self) -> None:
        """Prepare for the answer to a question that a put carries."""

    def answer(self) -> Bytes | None:
        """The answer, once it is there."""


class RemoteChannel:
    """See mpips.transport.channel.Channel."""

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
        """`make_writer` binds a writer to the mirror that is made here; `checksums`: see AreaWay."""
        self.name = memory.name
        self.checksums = checksums
        self.piece_bytes = memory.piece_bytes
        self.layout = layout
        self._remote = memory
        self._question = question
        self._asked: int | None = None  # the question under way
        self._waits = False  # did the worker wait for its last records?
        self._n_workers = n_workers
        self._ring = layout.geometry
        self._at = layout.mailbox_offset(worker)
        mirror = _native.SharedMemory.anonymous(self._ring.mailbox_bytes, 0)
        self.writer = make_writer(mirror)
        self.area = Area(layout.area_bytes(worker), self.writer)
        self._area_at = self._at + self._ring.mailbox_bytes
        self._mirror = mirror.view(0, self._ring.mailbox_bytes, True)
        self._scratch = np.zeros(_HEADER_BYTES, np.uint8)
        self._words = self._mirror.view(np.uint32)
        self._under_way = 0  # bytes of puts from the mirror since the last flush
        self._straight = False  # are puts into the area under way?
        self._unfenced = False  # was anything put since the last fence?
        self._fence_open = False  # does a fence wait for its answer?

    def send(self) -> None:
        """See Channel. Small puts leave at once, and are complete later."""
        self._put_new()
        if self._under_way > INLINE_BYTES:
            self.complete()
        elif self._under_way:
            self._remote.leave()

    def publish(self) -> None:
        """See Channel. Small records arrive later than this returns; see `begin_fence`."""
        self._put_new()
        self.complete()

    def begin_fence(self) -> None:
        """See Channel."""
        self._put_new()
        if self._unfenced and not self._fence_open:
            self._unfenced, self._fence_open = False, True
            self._remote.fence()

    def wait_fence(self, max_s: float) -> bool:
        """See Channel. The flush waits for puts, the answer for messages."""
        self.complete()
        if self._fence_open and not self._wait(self._remote.fenced, max_s):
            return False
        self._fence_open = False
        return True

    def area_way(self) -> AreaWay | None:
        """See Channel."""
        return self if self.area.n_bytes else None

    def put_area(self, offset: int, data: Bytes) -> None:
        """See AreaWay."""
        self._remote.put(self._area_at + offset, data)
        self._straight = self._unfenced = True

    def put_records(self) -> None:
        """See AreaWay."""
        self._put_new()

    def ask(self) -> None:
        """See AreaWay. So a worker that pushes on learns, without waiting, when its area has room."""
        if self._asked is not None:
            self._take_answer()
        if self._asked is None:
            self._asked = self.writer.next_sequence
            self._question.ask(self._asked)

    def _put_new(self) -> None:
        """Start putting what was written since the last call."""
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
        """Put a part of the mirror. A worker that has waited for its last push waits for this one."""
        data = self._mirror[start:end]
        self._unfenced = True
        if self._straight and len(data) <= INLINE_BYTES:
            # Between puts into the area nothing may wait for a flush.
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

    def _joins(self, start: int, end: int, sequence: int) -> bool:
        """May a record travel in the put of those before it?"""
        stamp = self._stamp(sequence)
        return 0 <= stamp - end <= _SLACK_BYTES and self._end(sequence) - start <= _PUT_BYTES

    def complete(self) -> None:
        """See AreaWay."""
        if self._under_way or self._straight:
            self._flush()

    def _flush(self) -> None:
        self._remote.flush()
        self._under_way = 0
        self._straight = False

    def refresh(self) -> None:
        """Fetch what the server has said, and replies: small ones at once, large ones when due."""
        self._put_new()
        self._remote.get(self._at, self._mirror[: self._ring.answer_bytes])
        pulls = self.writer.open_pulls()
        early = pulls if sum(n for _, n in pulls) <= _EARLY_BYTES else []
        self._fetch_replies(early)
        self._flush()
        if not early:
            applied = self.writer.applied
            due = [(q, n) for q, n in pulls if q < applied]
            self._fetch_replies(due)
            if due:
                self._remote.flush()
        if pulls:
            self.writer.collect()

    def _fetch_replies(self, pulls: list[tuple[int, int]]) -> None:
        for sequence, n_bytes in pulls:
            at = self._ring.replies_offset + self._index(sequence) * self._ring.slot_bytes
            self._remote.get(self._at + at, self._mirror[at : at + n_bytes])

    def wait_applied(self, count: int, max_s: float) -> bool:
        """See Channel."""
        self._put_new()
        return self._wait(lambda: self._heard(count), max_s)

    def wait_received(self, count: int, max_s: float) -> bool:
        """See Channel."""
        self._put_new()
        return self._wait(self._looked(lambda: self.writer.received >= count), max_s)

    def _heard(self, count: int) -> bool:
        """Are so many records consumed, as far as is known? Ask, or take the answer. Not blocking."""
        writer = self.writer
        if writer.applied >= count:
            return True
        self._waits = count == writer.next_sequence
        if self._asked is None:
            self._question.ask(count)
            self._asked = count
        # Nothing else makes MPI finish a put.
        self.complete()
        if not self._take_answer() and self._asked > count:
            # A question about later records is under way, and no second one may be.
            self.refresh()
        return writer.applied >= count

    def _take_answer(self) -> bool:
        """Take the answer to the question under way, if it is there."""
        answer = self._question.answer()
        if answer is None:
            return False
        self._asked = None
        self._mirror[: len(answer)] = answer
        if self._under_way:
            self.complete()
        return True

    def wait_credit(self, max_s: float) -> bool:
        """See Channel."""
        self._put_new()
        if self.writer.open_pulls():
            return self._wait(self._looked(lambda: self.writer.credits > 0), max_s)
        # A few slots at once: records that travel together travel faster.
        some = self.writer.applied + max(1, self._ring.n_slots // 4)
        count = min(some, self.writer.next_sequence)
        if not self._wait(lambda: self._heard(count), max_s):
            self.refresh()
        return self.writer.credits > 0

    def wait_collected(self, before: int, max_s: float) -> bool:
        """See Channel."""
        return self._wait(self._looked(lambda: self.writer.collected_before() >= before), max_s)

    def wait_head(self, table: int, version: int, min_clock: int, max_s: float) -> bool:
        """See Channel."""
        self.publish()

        def reached() -> bool:
            now = self._read_head(table)
            return now is not None and now[0] >= version and now[1] >= min_clock

        return self._wait(reached, max_s)

    def read_version(self, table: int) -> int:
        """See Channel."""
        return whole_version(lambda: self._read_head(table), table)

    def read_dense(self, table: int, out: Float32, max_s: float) -> bool:
        """See Channel."""
        versions_at, values_at, n_blocks = self.layout.dense_offsets(table)
        before = np.empty(n_blocks * _PAIR_BYTES, np.uint8)
        after = np.empty_like(before)
        raw = out.view(np.uint8).reshape(-1)
        self._remote.get(versions_at, before)
        version = self.read_version(table)
        self._read(values_at, raw)
        end = time.monotonic() + max_s
        # A block is done when two readings around its copy agree; only the others are read again.
        pending = set(range(n_blocks))
        while True:
            self._read(versions_at, after)
            pending &= set(_native.unstable_blocks(before, after))
            if not pending:
                self.writer.set_base_version(table, version)
                self.writer.count_pulled(out.nbytes)
                return True
            if time.monotonic() > end:
                return False
            before, after = after, before
            block = _native.BLOCK_FLOATS * 4
            for b in sorted(pending):
                self._read(values_at + b * block, raw[b * block : (b + 1) * block])

    def view(self, table: int) -> Float32 | None:
        """None: another node's memory cannot be looked at."""
        return None

    def clocks(self) -> list[int]:
        """See Channel."""
        lines = np.empty(self._n_workers * _native.CLOCK_LINE_BYTES, np.uint8)
        self._read(self.layout.clocks_offset, lines)
        words = lines.view(np.uint64).reshape(self._n_workers, -1)
        return [int(word) for word in words[:, 0]]

    def turn(self) -> int:
        """See Channel."""
        word = np.empty(8, np.uint8)
        self._read(self.layout.turn_offset, word)
        return int(word.view(np.uint64)[0])

    def _looked(self, done: Callable[[], bool]) -> Callable[[], bool]:
        def look() -> bool:
            self.refresh()
            return done()

        return look

    def _wait(self, done: Callable[[], bool], max_s: float) -> bool:
        """Call `done` until it is True: at once for a while, then with growing pauses."""
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

    def _stamp(self, sequence: int) -> int:
        return self._ring.stamps_offset + self._index(sequence) * self._ring.record_stride

    def _end(self, sequence: int) -> int:
        """Where the payload of a record ends."""
        slot = self._stamp(sequence) + self._ring.slots_offset - self._ring.stamps_offset
        return slot + _HEADER_BYTES + self._words.item((slot + _PAYLOAD_BYTES_AT) // 4)
