"""The feedback path: records carry a part of residual and update, and the rest is the new residual.

It serves all servers of a table with TopK, RandomK or OneBit; see mpips.worker.feedback.residuals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpips import _native
from mpips.worker.paths.encoded import CodecPath
from mpips.worker.paths.path import Float32

if TYPE_CHECKING:
    from mpips.model.placement import ShardRange
    from mpips.worker.connection import Connection


class FeedbackPath(CodecPath):
    """Updates with a residual."""

    name = "feedback"

    def __init__(
        self, connection: Connection, index: int, part: ShardRange, feedback: _native.Feedback
    ) -> None:
        """As CodecPath. `feedback`: residual of this part."""
        super().__init__(connection, index, part)
        self._feedback = feedback

    def push(self, update: Float32, random_key: int) -> int:
        """See CodecPath.push. It also waits until the server has the push before."""
        # It must survive the worker: its residual is the only one that stays valid meanwhile.
        self._connection.arrivals.wait_for(self.server, self._feedback.pushed)
        residuals = self._connection.residuals
        assert residuals is not None
        owed = residuals.owed(self._index, self.server)
        if owed is None:
            return super().push(update, random_key)
        part = slice(self._part.start, self._part.stop)
        update = update.copy()
        update[part] += owed
        end = super().push(update, random_key)
        residuals.note_paid(self._index, self.server)
        return end

    def _write(
        self, writer: _native.RingWriter, update: Float32, random_key: int, done: int
    ) -> int:
        values = update[self._part.start : self._part.stop]
        return writer.push_feedback(
            self._index, self._connection.now, self._feedback, values, random_key
        )
