"""The files of a finished worker for the last checkpoint, written again until they are there.

A disk may be full just when a worker ends. The servers of a supervised run then try the last checkpoint again
(`ServerPart.save`). What a worker stores of its own must be written by the worker: its residuals, and its
values of tables under LocalSGD and DiLoCo. Neither changes after the end, so a later file has the same bytes,
and the description in the worker's position fits it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mpips.checkpoint.residuals import LAST

if TYPE_CHECKING:
    from mpips.worker.local_tables import LocalTables
    from mpips.worker.residuals import Residuals

# s between two tries; several fit between the first and the last try of servers after other failures
_PAUSE_S = 0.5


class LastFiles:
    """The files of one worker that are still to be written. Not thread-safe."""

    def __init__(self, residuals: Residuals | None, local: LocalTables | None) -> None:
        """Note what failed.

        Args:
            residuals: Residuals whose file could not be written; None: it is there.
            local: The tables under LocalSGD and DiLoCo, which know whether theirs is there; None: none.
        """
        self._residuals = residuals
        self._local = local if local is not None and local.lacks_last else None
        self._next = time.monotonic() + _PAUSE_S

    def try_again(self) -> None:
        """Write what is missing, if the last try was long enough ago. Cheap; blocks for a file."""
        if self._residuals is None and self._local is None:
            return
        if time.monotonic() < self._next:
            return
        if self._residuals is not None and self._residuals.save(LAST) is None:
            self._residuals = None
        if self._local is not None and self._local.write_last():
            self._local = None
        self._next = time.monotonic() + _PAUSE_S
