"""The mirror: a worker's copy of its mailbox at a server on another node, and where things lie in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from mpips import _native
from mpips.transport.remote_memory import Bytes

_HEADER_BYTES = 64
_PAYLOAD_BYTES_AT = 52  # offset of the u32 `payload_bytes` in a record header
PUT_BYTES = 1 << 20  # adjacent records go in one put of at most so many bytes
# Unused bytes of a slot that one put, or one request of replies, may include.
_SLACK_BYTES = 4 << 10


class MailboxCopy:
    """A copy of one mailbox. Offsets are in bytes from its start.

    Attributes:
        bytes: The whole copy, uint8.
        writer: Writes records into it, and collects replies from it.
        ring: Geometry of the ring.
    """

    def __init__(
        self,
        ring: _native.RingGeometry,
        make_writer: Callable[[_native.SharedMemory], _native.RingWriter],
    ) -> None:
        """`make_writer` makes a writer for the memory that it is given."""
        # Take 4 KiB pages: a worker has a mirror for each remote server, and small records use little of it.
        memory = _native.SharedMemory.anonymous(ring.mailbox_bytes, 0, huge=False)
        self.ring = ring
        self.writer = make_writer(memory)
        self.bytes: Bytes = memory.view(0, ring.mailbox_bytes, True)
        self._words = self.bytes.view(np.uint32)

    def new_records(self, most: int) -> Iterator[tuple[int, int]]:
        """Yield start and end of the parts with records that are not published: stamp, header and payload.

        Several records are in one part of at most `most` bytes. A part that is sent as several messages must
        not have more than one record. Else the server might consume the first record before the message with
        the unused bytes behind it arrives, which would then overwrite a later record in this slot.
        """
        sequence, last = self.writer.published, self.writer.next_sequence
        while sequence < last:
            start, end = self._stamp(sequence), self._end(sequence)
            sequence += 1
            while sequence < last and self._joins(start, end, sequence, most):
                end = self._end(sequence)
                sequence += 1
            yield start, end

    def replies_of(self, pulls: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
        """Return start, end and last pull of the parts that have these replies, in order.

        Args:
            pulls: Sequence and reply's bytes of each pull, ascending.
        """
        found: list[tuple[int, int, int]] = []
        for sequence, n_bytes in pulls:
            start = self.reply(sequence)
            if found and 0 <= start - found[-1][1] <= _SLACK_BYTES:
                found[-1] = found[-1][0], start + n_bytes, sequence
            else:
                found.append((start, start + n_bytes, sequence))
        return found

    def reply(self, sequence: int) -> int:
        """Return the offset of the reply to a pull."""
        return self.ring.replies_offset + sequence % self.ring.n_slots * self.ring.slot_bytes

    def _joins(self, start: int, end: int, sequence: int, most: int) -> bool:
        """Return whether a record may go in the part of the records before it."""
        stamp = self._stamp(sequence)
        return 0 <= stamp - end <= _SLACK_BYTES and self._end(sequence) - start <= most

    def _stamp(self, sequence: int) -> int:
        return self.ring.stamps_offset + sequence % self.ring.n_slots * self.ring.record_stride

    def _end(self, sequence: int) -> int:
        """Return the offset at which the payload of a record ends."""
        slot = self._stamp(sequence) + self.ring.slots_offset - self.ring.stamps_offset
        return slot + _HEADER_BYTES + self._words.item((slot + _PAYLOAD_BYTES_AT) // 4)
