"""The length of a script's run as its workers report it: epochs, the part that is done, learning rates.

A task has these numbers at its start (see `mpips.scheduler.run_progress`), a script only in its loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpips.mpi.messages import ReportDetails


class ReportedLength:
    """Length of a run, by the reports of its workers. All times are monotonic seconds.

    Attributes:
        has_epochs: A worker counts epochs.
        n_epochs: Epochs of the run; 0: unknown.
        rates: Learning rates of the newest report that has some; see ReportDetails.
    """

    def __init__(self) -> None:
        """Begin without reports."""
        self.has_epochs = False
        self.n_epochs = 0
        self.rates: tuple[float, ...] = ()
        self._shares: dict[int, float] = {}  # part that is done, by worker
        self._first: tuple[float, float] | None = (
            None  # time and share when the last worker came in
        )

    def note(self, worker: int, epoch: int, details: ReportDetails | None, now: float) -> None:
        """Take the details of a worker's report.

        Args:
            worker: Index of the worker.
            epoch: Epoch of the report, from 0; greater than 0: the worker counts epochs.
            details: The details; None: the report has none.
            now: Current time.
        """
        self.has_epochs = self.has_epochs or epoch > 0
        if details is None:
            return
        self.has_epochs = self.has_epochs or details.has_epoch
        if details.rates:
            self.rates = tuple(details.rates)
        # A worker that is still in an earlier loop does not know of the later one.
        if details.n_epochs and details.n_epochs >= self.n_epochs:
            # Another loop makes the run longer, and the part that is done smaller.
            if details.n_epochs > self.n_epochs:
                self.n_epochs = details.n_epochs
                self._shares.clear()
            is_first = worker not in self._shares
            self._shares[worker] = details.share
            # The mean over the workers grows steadily once all are in it.
            if is_first:
                self._first = now, self.share

    @property
    def share(self) -> float:
        """Mean part of the run that the workers have done, 0 to 1."""
        return sum(self._shares.values()) / len(self._shares) if self._shares else 0.0

    def left_s(self, now: float) -> float | None:
        """Return the time to the end at the rate since the first report; None: unknown."""
        if self._first is None:
            return None
        begin, before = self._first
        share = self.share
        if share <= before or now <= begin:
            return 0.0 if share >= 1.0 else None
        return (1.0 - share) * (now - begin) / (share - before)
