"""The path of tables with SharedInt8: integers times the scales of the clock, or floats while it has none.

See native/src/server/scale_shard.hpp for the protocol, and mpips.worker.feedback.residuals for the residual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.model.table import DenseTable
from mpips.worker.paths.feedback import FeedbackPath
from mpips.worker.paths.path import DensePath, Float32
from mpips.worker.shard_reader import ShardReader

if TYPE_CHECKING:
    from mpips.model.placement import ShardRange
    from mpips.worker.connection import Connection


class SharedScales:
    """The scales of a table in the worker's clock, which all its paths use. Not thread-safe."""

    def __init__(
        self, connection: Connection, index: int, table: DenseTable, shards: Sequence[ShardRange]
    ) -> None:
        """Prepare to read them.

        Args:
            connection: Connection of the worker.
            index: Index of the table of scales.
            table: The table of scales.
            shards: The servers' ranges of it.
        """
        self._connection = connection
        self._reader = ShardReader(connection, index, table, shards)
        self._values = np.empty(table.n_elements, np.float32)
        self._exponents: NDArray[np.uint8] | None = None
        self._clock = -1

    def of_this_clock(self) -> NDArray[np.uint8] | None:
        """Return the exponent of each block, uint8; None: all scales are 0, so updates are not encoded.

        Blocks, like a pull, until all workers have ended the clocks before.

        Raises:
            StallError: A worker or server was late for the job's timeout; the message names it.
        """
        now = self._connection.now
        if self._clock != now:
            self._reader.read(self._values)
            found = self._values.astype(np.uint8)
            self._exponents = found if found.any() else None
            self._clock = now
        return self._exponents


class SharedScalesPath(FeedbackPath):
    """Updates against the scales of the clock, with a residual."""

    name = "shared scales"

    def __init__(
        self,
        connection: Connection,
        index: int,
        part: ShardRange,
        feedback: _native.Feedback,
        scales: SharedScales,
        block: int,
        plain: DensePath,
    ) -> None:
        """As FeedbackPath.

        Args:
            connection: Connection of the worker.
            index: Index of the table.
            part: The server and its part of the flattened tensor, which begins with a block.
            feedback: Residual of this part.
            scales: Scales of the whole table.
            block: Number of values that share a scale.
            plain: Path of updates that are not encoded.
        """
        super().__init__(connection, index, part, feedback)
        self._scales, self._block, self._plain = scales, block, plain

    def push(self, update: Float32, random_key: int) -> int:
        """See CodecPath.push. It also waits for the scales of the clock."""
        exponents, part = self._scales.of_this_clock(), self._part
        if exponents is None:
            # The residual stays: the next encoded push adds it.
            end = self._plain.push(update[part.start : part.stop], None, False)
            assert end is not None
            return end
        own = exponents[part.start // self._block : -(-part.stop // self._block)]
        self._feedback.set_scales(own)
        return super().push(update, random_key)
