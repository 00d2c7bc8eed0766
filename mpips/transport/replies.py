"""Replies to the pulls of a stream: the server sends them when they are there, without a further request.

A stream (`RemoteChannel.stream`) requests the replies of its pulls when it has sent the pulls. The request
names the number of records after which the replies are there, and their place. The server sends what it has
of the worker's acknowledgement, and then the replies, straight to their place in the mirror. Requests are
answered in their order. So a pull takes one message there and its reply back, and nothing of that waits for a
call of the worker, as far as the operating system's buffers reach.

The slot of a reply belongs to its pull until the writer has collected it, and it is collected when all
messages of its request have arrived. So nothing else uses the slot while they are under way. A reply behind
that of a request, of which a part has arrived, has a wrong checksum: the writer leaves it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpips.transport.mailbox_copy import MailboxCopy
    from mpips.transport.remote_memory import Asking

MOST_FETCHES = 64  # requests of one worker that may be open at one server


class Replies:
    """The replies of one channel that are under way. Not thread-safe: the gate chooses the thread."""

    def __init__(
        self,
        asking: Asking,
        mirror: MailboxCopy,
        mailbox_at: int,
    ) -> None:
        """Request nothing yet.

        Args:
            asking: Questions to the server.
            mirror: The mirror of the mailbox.
            mailbox_at: Offset of the mailbox in the server's region.
        """
        self._asking = asking
        self._mirror = mirror
        self._writer = mirror.writer
        self._at = mailbox_at
        self._n_open = 0
        self._requested = 0  # sequence below which the replies to all pulls are requested

    @property
    def are_under_way(self) -> bool:
        """True if a request is open."""
        return self._n_open > 0

    def request(self) -> None:
        """Request the replies to all pulls that are sent, as far as the number of requests allows."""
        pulls = [pull for pull in self._writer.open_pulls() if pull[0] >= self._requested]
        for start, end, last in self._mirror.replies_of(pulls):
            if self._n_open == MOST_FETCHES:
                return
            self._asking.fetch(last + 1, self._at + start, self._mirror.bytes[start:end])
            self._n_open += 1
            self._requested = last + 1

    def take(self) -> bool:
        """Take what has arrived; return True if there was any. Does not block."""
        n_open = self._n_open
        while self._n_open and (answer := self._asking.fetched()) is not None:
            self._n_open -= 1
            self._mirror.bytes[: len(answer)] = answer
            self._writer.collect()
        return self._n_open < n_open
