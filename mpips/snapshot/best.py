"""The coordinator's request for a checkpoint of the best values, for which all workers wait at one place."""

from __future__ import annotations

from mpips.model.best_value import BestValue
from mpips.mpi.messages import BestProgress
from mpips.snapshot.cut import CutAttempt


class BestRequest:
    """The request, and the messages to the workers that wait until it is fulfilled.

    Attributes:
        wanted: The value for which a checkpoint is requested; None: none is, or its cut has begun.
    """

    def __init__(self, every_s: float) -> None:
        """Begin without a request.

        Args:
            every_s: Seconds between two messages to the workers; well below their timeout.
        """
        self.wanted: BestValue | None = None
        self._every_s = every_s
        self._next = 0.0  # monotonic s of the next message

    def take(self) -> BestValue | None:
        """Return the request; its cut begins."""
        wanted, self.wanted = self.wanted, None
        return wanted

    def due(self, now: float, cut: CutAttempt | None) -> BestProgress | None:
        """Return the message to waiting workers that is due, so that they wait for a slow checkpoint.

        Args:
            now: Monotonic time, seconds.
            cut: The cut under way.
        """
        is_waited_for = self.wanted is not None or (cut is not None and cut.best is not None)
        if is_waited_for and now >= self._next:
            self._next = now + self._every_s
            return BestProgress(False)
        return None

    def end(self, cut: CutAttempt) -> BestProgress | None:
        """Return the message that lets the workers go on, if they waited for this cut, which has ended."""
        if cut.best is None:
            return None
        is_written = cut.phase != "abandoned" and not any(s.error for s in cut.saved.values())
        return BestProgress(True, cut.saved[0].path if is_written else "")
