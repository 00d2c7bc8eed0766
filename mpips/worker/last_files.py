"""The files of a finished worker for the last checkpoint, written again until they are there.

A disk may be full just when a worker ends. The servers of a supervised run then try the last checkpoint again
(`ServerPart.save`). A worker's own data must be written by the worker: its residuals, and its values of
tables under LocalSGD and DiLoCo. Neither changes after the end, so a later file has the same bytes, and the
description in the worker's position fits it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from mpips.worker.table_part import TablePart

# s between two tries; several fit between the first and the last try of servers after other failures
_PAUSE_S = 0.5


class LastFiles:
    """The files of one worker that are still to be written. Not thread-safe."""

    def __init__(self, parts: Sequence[TablePart]) -> None:
        """Take the parts of the worker's tables, which have tried once."""
        self._lacking = list(parts)
        self._next = time.monotonic() + _PAUSE_S

    def try_again(self) -> None:
        """Write what is missing, if the last try was long enough ago. Cheap; blocks for a file."""
        if not self._lacking or time.monotonic() < self._next:
            return
        self._lacking = [part for part in self._lacking if not part.write_last()]
        self._next = time.monotonic() + _PAUSE_S
