"""The interface of a path to one server."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
ONE_RECORD = (1 << 32) - 1  # elements; a record's field for their number has 32 bits


class DensePath(Protocol):
    """One worker's path for updates of one dense table to one server. Not thread-safe.

    Attributes:
        name: "shared", "ring" or "rendezvous"; users see it.
        server: Index of the server.
        checks: The path can look for NaN and infinity while it copies, and writes no record before it
            has seen all of the update.
        checks_staged: It can also do so for updates in staging memory.
    """

    name: str
    server: int
    checks: bool
    checks_staged: bool

    def push(self, update: Float32, base: Float32 | None, check_finite: bool) -> int | None:
        """Write the records of an update. Blocks while there is no room for them.

        Args:
            update: The server's part, float32, one-dimensional, C-contiguous. Free at return, unless it lies
                in the worker's staging memory: then when the push is consumed.
            base: The values that it was computed on, of the same shape, where the table's policy needs them.
            check_finite: Look for NaN and infinity; only where `checks`.

        Returns:
            Sequence number of the last record; None if the update is not finite: then no record is written.

        Raises:
            StallError: The server has taken no record for the job's timeout.
        """
