"""The mirror: a worker's copy of its mailbox at a server on another node, and where things lie in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mpips import _native

if TYPE_CHECKING:
    from mpips.transport.remote_memory import Bytes

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

    def new_records(self, most: int) -> list[tuple[int, int]]:
        """Return start and end of the parts with records that are not published: stamp, header and payload.

        Several records are in one part of at most `most` bytes. A part that is sent as several messages must
        not have more than one record. Else the server might consume the first record before the message with
        the unused bytes behind it arrives, which would then overwrite a later record in this slot.
        """
        return self.writer.new_parts(most, _SLACK_BYTES)

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
