"""The coordinator's request for a checkpoint of the best values, for which all workers wait at one place."""

from __future__ import annotations

from collections.abc import Callable

from mpips.model.best_value import BestValue
from mpips.mpi.messages import BestProgress
from mpips.snapshot.cut import CutAttempt


class BestRequest:
    """The request, and the messages to the workers that wait until it is fulfilled.

    Attributes:
        wanted: The value for which a checkpoint is requested; None: none is, or its cut has begun.
    """

    def __init__(self, send: Callable[[BestProgress], None], every_s: float) -> None:
        """Begin without a request.

        Args:
            send: Sends a message to all workers at work; returns at once.
            every_s: Seconds between two messages to them; well below their timeout.
        """
        self.wanted: BestValue | None = None
        self._send = send
        self._every_s = every_s
        self._next = 0.0  # monotonic s of the next message

    def take(self) -> BestValue | None:
        """Return the request; its cut begins."""
        wanted, self.wanted = self.wanted, None
        return wanted

    def poll(self, now: float, cut: CutAttempt | None) -> None:
        """Send waiting workers a message if one is due: the checkpoint may take longer than their timeout.

        Args:
            now: Monotonic time, seconds.
            cut: The cut under way.
        """
        is_waited_for = self.wanted is not None or (cut is not None and cut.best is not None)
        if is_waited_for and now >= self._next:
            self._next = now + self._every_s
            self._send(BestProgress(False))

    def end(self, cut: CutAttempt) -> None:
        """Let the workers go on, if they waited for this cut, which has ended."""
        if cut.best is None:
            return
        is_written = cut.phase != "abandoned" and not any(s.error for s in cut.saved.values())
        self._send(BestProgress(True, cut.saved[0].path if is_written else ""))
