"""The ring over a network: a private mirror of the mailbox, carried by put and get.

Push: the C++ writer fills slots of the mirror (checksums on); `publish` puts header and payload of
each new record and its stamp, and flushes once. MPI does not order puts, so a stamp may arrive before its
record: the server takes a record only when number and checksums say that all of it is there. A flush in
between would cost a round trip and add nothing to that proof.
Acknowledgements, results and replies are fetched by get into the mirror; each carries its own proof of
wholeness (complement, sequence number, checksum), because a get may see bytes of two stores.

Dense pull: block versions, values, block versions again; blocks whose two readings differ (or that were
being written) are read again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.transport.channel import whole_version

Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]

_HEADER_BYTES = 64
_PAYLOAD_BYTES_AT = 48  # of the u32 `payload_bytes` in a record header
_PAIR_BYTES = 16
_GET_BYTES = 4 << 20  # one get of a dense pull
_EARLY_BYTES = (
    64 << 10
)  # replies up to this size are fetched before it is known that they are there


class RemoteMemory(Protocol):
    """The region of one server, reached by messages or RMA. Offsets and lengths in bytes."""

    name: str

    def put(self, offset: int, data: Bytes) -> None:
        """Start a write; `data` must stay unchanged until `flush`."""

    def get(self, offset: int, out: Bytes) -> None:
        """Start a read; `out` is filled after `flush`."""

    def flush(self) -> None:
        """Complete all started operations, at the server too."""


class RemoteChannel:
    """See mpips.transport.channel.Channel."""

    def __init__(
        self,
        memory: RemoteMemory,
        layout: _native.Layout,
        worker: int,
        n_workers: int,
        make_writer: Callable[[_native.SharedMemory], _native.RingWriter],
    ) -> None:
        """`make_writer` binds a writer to the mirror that is made here."""
        self.name = memory.name
        self.layout = layout
        self._remote = memory
        self._n_workers = n_workers
        self._ring = layout.geometry
        self._at = layout.mailbox_offset(worker)
        mirror = _native.SharedMemory.anonymous(self._ring.mailbox_bytes, 0)
        self.writer = make_writer(mirror)
        self._mirror = mirror.view(0, self._ring.mailbox_bytes, True)
        self._scratch = np.zeros(_HEADER_BYTES, np.uint8)
        self._sending = False

    def send(self) -> None:
        """Start putting all new records and their stamps."""
        first, last = self.writer.published, self.writer.next_sequence
        for sequence in range(first, last):
            slot = self._slot(sequence)
            at = slot + _PAYLOAD_BYTES_AT
            payload = int(self._mirror[at : at + 4].view(np.uint32)[0])
            self._put(slot, _HEADER_BYTES + payload)
        for sequence in range(first, last):
            self._put(self._stamp(sequence), 8)
        self._sending = self._sending or last > first
        self.writer.published = last

    def publish(self) -> None:
        """See Channel. Returns when the records have arrived."""
        self.send()
        if self._sending:
            self._remote.flush()
            self._sending = False

    def refresh(self) -> None:
        """Fetch what the server has said, and replies: small ones at once, large ones when due."""
        self.publish()
        self._remote.get(self._at, self._mirror[: self._ring.stamps_offset])
        pulls = self.writer.open_pulls()
        early = pulls if sum(n for _, n in pulls) <= _EARLY_BYTES else []
        self._fetch_replies(early)
        self._remote.flush()
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
        return self._wait(lambda: self.writer.applied >= count, self.refresh, max_s)

    def wait_credit(self, max_s: float) -> bool:
        """See Channel."""
        return self._wait(lambda: self.writer.credits > 0, self.refresh, max_s)

    def wait_collected(self, before: int, max_s: float) -> bool:
        """See Channel."""
        return self._wait(lambda: self.writer.collected_before() >= before, self.refresh, max_s)

    def wait_head(self, table: int, version: int, min_clock: int, max_s: float) -> bool:
        """See Channel."""

        self.publish()

        def reached() -> bool:
            now = self._read_head(table)
            return now is not None and now[0] >= version and now[1] >= min_clock

        return self._wait(reached, lambda: None, max_s)

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

    def _wait(self, done: Callable[[], bool], look: Callable[[], None], max_s: float) -> bool:
        end = time.monotonic() + max_s
        pause = 0.0
        while True:
            look()
            if done():
                return True
            if time.monotonic() >= end:
                return False
            time.sleep(pause)
            pause = min(pause + 5e-6, 200e-6)

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

    def _put(self, at: int, n_bytes: int) -> None:
        self._remote.put(self._at + at, self._mirror[at : at + n_bytes])

    def _index(self, sequence: int) -> int:
        return sequence % self._ring.n_slots

    def _slot(self, sequence: int) -> int:
        return self._ring.slots_offset + self._index(sequence) * self._ring.slot_bytes

    def _stamp(self, sequence: int) -> int:
        return self._ring.stamps_offset + self._index(sequence) * _native.LINE_BYTES
