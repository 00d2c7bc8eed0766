"""The state of a worker between the scheduler's message about a cut and the cut itself."""

from __future__ import annotations

from mpips.mpi.messages import HERE, Abandon, Agreed, BestProgress, Commit, Propose


class PendingCut:
    """The cut that a worker has still to do.

    Attributes:
        pending: The proposal to which the worker has agreed, or the order to cut; None: no cut is pending.
        finished: True once the worker leaves. It makes no cut then.
        given_up: Number of the newest cut that the coordinator has given up; 0: none.
        best: The newest message on the checkpoint that this worker waits for; None: none has come.
        repeats_until: First clock at which no server has records of an earlier launch of this worker, so the
            first one at which it can cut.
    """

    def __init__(self) -> None:
        """Start without a cut."""
        self.pending: Propose | Commit | None = None
        self.finished = False
        self.given_up = 0
        self.best: BestProgress | None = None
        self.repeats_until = 0

    @property
    def is_here(self) -> bool:
        """True if the order to cut is pending at the place where all workers wait for it."""
        return isinstance(self.pending, Commit) and self.pending.clock == HERE

    def take(self, message: Propose | Commit | Abandon | BestProgress, clock: int) -> Agreed | None:
        """Process a message to a worker at this clock; return the answer to a proposal, else None."""
        if isinstance(message, BestProgress):
            self.best = message
            return None
        if isinstance(message, Abandon):
            self.given_up = message.id
            if self.pending is not None and self.pending.id <= message.id:
                self.pending = None
            return None
        if isinstance(message, Commit):
            self.pending = None if self.finished else message
            return None
        # Agree only to a clock that the worker has not reached, or at which it leaves. Not to an earlier one:
        # under BSP servers take its last pushes only behind other workers' ticks of that clock, and a cut
        # there would hold these until its last record has come. Nor to one that it repeats: it would pass it
        # without a cut record, while servers hold the rings of the others.
        passed = max(clock, self.repeats_until - 1)
        ok = passed < message.clock or (self.finished and clock == message.clock)
        self.pending = message if ok and not self.finished else None
        return Agreed(message.id, ok, passed)
