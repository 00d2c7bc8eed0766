"""Waits for a server on another node: until records are consumed, answered or confirmed.

A wait asks the server once (`Question`) or reads its memory again and again, in a pace that spares it
(`ReadPace`). While the channel is a stream, a wait takes what has arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mpips.transport.waiting import ReadPace, wait_for

if TYPE_CHECKING:
    from mpips import _native
    from mpips.transport.remote_memory import Asking
    from mpips.transport.remote_reads import RemoteReads
    from mpips.transport.replies import Replies
    from mpips.transport.ring_puts import RingPuts


class RemoteWaits:
    """The waits of one worker for one server. Each first puts all records written so far."""

    def __init__(
        self,
        puts: RingPuts,
        question: Asking,
        writer: _native.RingWriter,
        reads: RemoteReads,
        replies: Replies,
        refresh: Callable[[], None],
        advance: Callable[[], bool],
    ) -> None:
        """Take the parts of the channel.

        Args:
            puts: The records on their way.
            question: Questions to the server.
            writer: Writes the records.
            reads: Reads of the server's tables.
            replies: The replies that come as messages.
            refresh: Fetches acknowledgement, results and replies.
            advance: Does what is possible without waiting.
        """
        self._puts = puts
        self._put_new = puts.put_new
        self._question = question
        self._writer = writer
        self._reads = reads
        self._replies = replies
        self._refresh = refresh
        self._advance = advance
        self._pace = ReadPace()  # of waits that read the server's memory

    def wait_applied(self, count: int, max_s: float) -> bool:
        """Wait until `count` records are consumed."""
        self._put_new()
        return wait_for(lambda: self._heard(count), max_s)

    def settle(self, max_s: float) -> bool:
        """Wait until no reply is under way."""
        self._put_new()
        return wait_for(lambda: (self._advance(), not self._replies.are_under_way)[1], max_s)

    def wait_received(self, count: int, max_s: float) -> bool:
        """Wait until the server's replica has `count` records."""
        self._put_new()
        return self._pace.wait_for(self._looked(lambda: self._writer.received >= count), max_s)

    def wait_credit(self, max_s: float) -> bool:
        """Wait until there is a free slot."""
        self._put_new()
        if self._puts.streams:
            return wait_for(self._has_credit, max_s)
        if self._writer.open_pulls():
            return self._pace.wait_for(self._looked(lambda: self._writer.credits > 0), max_s)
        count = self._puts.some_more()
        if not wait_for(lambda: self._heard(count), max_s):
            self._refresh()
        return self._writer.credits > 0

    def wait_collected(self, before: int, max_s: float) -> bool:
        """Wait until every pull with a sequence below `before` is answered."""
        self._put_new()
        if self._puts.streams:
            return wait_for(lambda: self._is_collected(before), max_s)
        return self._pace.wait_for(
            self._looked(lambda: self._writer.collected_before() >= before), max_s
        )

    def wait_head(self, table: int, version: int, min_clock: int, max_s: float) -> bool:
        """Wait until a table has this version and all workers this clock."""
        self._puts.publish()

        def reached() -> bool:
            now = self._reads.head(table)
            return now is not None and now[0] >= version and now[1] >= min_clock

        return self._pace.wait_for(reached, max_s)

    def _heard(self, count: int) -> bool:
        """Return whether `count` records are known to be consumed; ask, or take the answer.

        Does not wait for an answer.
        """
        writer = self._writer
        if writer.applied >= count:
            return True
        self._puts.waits = count == writer.next_sequence
        if self._puts.asked is None:
            self._question.ask(count)
            self._puts.asked = count
        # Complete the puts: MPI does not finish them by itself.
        self._puts.finish_puts()
        if not self._puts.take_answer() and self._puts.asked > count:
            # Read the acknowledgement: a question about later records is open, and there can be only one.
            self._refresh()
        return writer.applied >= count

    def _is_collected(self, before: int) -> bool:
        if self._writer.collected_before() < before:
            self._advance()
        return self._writer.collected_before() >= before

    def _has_credit(self) -> bool:
        writer = self._writer
        self._advance()
        if writer.credits == 0 and not writer.open_pulls():
            self._heard(self._puts.some_more())
        return writer.credits > 0

    def _looked(self, done: Callable[[], bool]) -> Callable[[], bool]:
        """Return a function that refreshes the mirror and then calls `done`."""

        def look() -> bool:
            self._refresh()
            return done()

        return look
