"""The feedback path: records carry a part of residual and update, and the rest is the new residual.

It serves all servers of a table with TopK, RandomK or OneBit; see mpips.worker.residuals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpips import _native
from mpips.worker.paths.path import Float32

if TYPE_CHECKING:
    from mpips.model.placement import ShardRange
    from mpips.worker.connection import Connection


class FeedbackPath:
    """Updates of one dense table to one server, with a residual."""

    name = "feedback"

    def __init__(
        self, connection: Connection, index: int, part: ShardRange, feedback: _native.Feedback
    ) -> None:
        """Take the way to a server.

        Args:
            connection: Connection of the worker.
            index: Index of the table.
            part: The server and its part of the flattened tensor.
            feedback: Residual of this part.
        """
        self.server = part.server
        self._connection = connection
        self._index = index
        self._part = part
        self._feedback = feedback

    def push(self, update: Float32, random_key: int) -> int:
        """Write the records of an update. Blocks while there is no room for them.

        Args:
            update: The whole flattened tensor, float32, C-contiguous, finite. Free at return.
            random_key: Key of the push's random numbers.

        Returns:
            Sequence number of the last record.

        Raises:
            StallError: The server has taken no record for the job's timeout.
        """
        connection, part = self._connection, self._part
        writer, values = connection.channels[self.server].writer, update[part.start : part.stop]
        # The push before must survive the worker: its residual is the only one that stays valid meanwhile.
        connection.arrivals.wait_for(self.server, self._feedback.pushed)
        while True:
            done = writer.push_feedback(
                self._index, connection.now, self._feedback, values, random_key
            )
            if done == part.stop - part.start:
                return writer.next_sequence - 1
            connection.wait_credit(self.server)
