"""What a worker remembers between the scheduler's word about a cut and the cut."""

from __future__ import annotations

from mpips.mpi.messages import Abandon, Agreed, Commit, Propose


class PendingCut:
    """What a worker has been told of a cut and has not done yet.

    Attributes:
        pending: The proposal it has agreed to, or what it was told to do; None: nothing.
        finished: True from when the worker leaves: then it is ready for any cut.
    """

    def __init__(self) -> None:
        """Nothing yet."""
        self.pending: Propose | Commit | None = None
        self.finished = False

    def take(self, message: Propose | Commit | Abandon, clock: int) -> Agreed | None:
        """Take a message to a worker at this clock; returns the answer, if it is a question."""
        if isinstance(message, Abandon):
            if self.pending is not None and self.pending.id <= message.id:
                self.pending = None
            return None
        if isinstance(message, Commit):
            self.pending = None if self.finished else message
            return None
        # A clock that has been reached cannot be cut at any more.
        ok = self.finished or clock < message.clock
        self.pending = message if ok and not self.finished else None
        return Agreed(message.id, ok, clock)
