"""A job without a run directory, shown to an observer: the metrics of `mpips train` and of programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from mpips.mpi.intervals import heartbeat_interval_s
from mpips.rundir.view import RunView
from mpips.scheduler.run_tracker import RunTracker

if TYPE_CHECKING:
    from mpips.mpi.messages import ReportDetails
    from mpips.rundir.files import Ranks, StartPoint
    from mpips.scheduler.rank_table import RankTable
    from mpips.scheduler.run_progress import RunProgress
    from mpips.snapshot.coordinator import Coordinator

INTERVAL_S = 1.0  # s, least time between two writes of the status
_RANKS_PER_S = 500.0  # rows of ranks.json that are written per second, if INTERVAL_S is not longer


class Observer(Protocol):
    """An object that is shown the run about once a second. Its methods do not block.

    Attributes:
        address: Address at which others can see the run; "": none.
        name: Name of a run that has no directory.
    """

    address: str
    name: str

    def observe(self, view: RunView) -> None:
        """Take the state of the run at this moment."""


def ranks_interval_s(n_ranks: int) -> float:
    """Return the seconds between two collections of the activity of all ranks."""
    return max(INTERVAL_S, n_ranks / _RANKS_PER_S)


class ObservedRun:
    """Shows a job without a run directory to an observer. One per job, on the scheduler's rank."""

    def __init__(
        self,
        observer: Observer,
        rank_table: RankTable,
        start: StartPoint,
        first_clock: int,
        run_progress: RunProgress | None,
        timeout_s: float,
        paths: Mapping[str, int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Show the run at its start.

        Args:
            observer: Is shown the run.
            rank_table: Activity of every rank.
            start: State from which the job starts.
            first_clock: Least clock of a worker at `start`.
            run_progress: Progress of the run; None: unknown.
            timeout_s: Timeout of the job, which bounds the interval of heartbeats.
            paths: Number of workers by the name of a path that their dense updates take.
            clock: Returns monotonic time, seconds.
        """
        self._observer = observer
        self._clock = clock
        self._tracker = RunTracker(
            rank_table, start, clock(), first_clock, run_progress, paths=paths
        )
        n_ranks = len(rank_table.places)
        self._ranks_s = ranks_interval_s(n_ranks)
        self._heartbeat_s = heartbeat_interval_s(n_ranks, timeout_s)
        self._ranks: Ranks | None = None
        self._next = self._next_ranks = clock()
        self.look({})

    def report(
        self,
        epoch: int,
        samples: int,
        loss_sum: float,
        loss_weight: int | None = None,
        by_library: bool | None = None,
    ) -> None:
        """Add a worker's progress since its last report; see RunTracker."""
        self._tracker.report(epoch, samples, loss_sum, loss_weight, by_library)

    def note_details(self, worker: int, epoch: int, details: ReportDetails | None) -> None:
        """Take the details of a worker's report; see RunTracker."""
        self._tracker.note_details(worker, epoch, details, self._clock())

    def look_at(self, coordinator: Coordinator | None, clocks: Mapping[int, int]) -> None:
        """Store the results of the coordinator's cuts, then do the same as `look`."""
        if coordinator is not None:
            self._tracker.note_checkpoints(coordinator.statistics)
        self.look(clocks)

    def look(self, clocks: Mapping[int, int]) -> None:
        """Show the run if INTERVAL_S has passed since the last time. Call it often.

        Args:
            clocks: Clock of each worker, by any key; empty: not known yet.
        """
        now = self._clock()
        if now >= self._next:
            self._show(now, clocks)

    def _show(self, now: float, clocks: Mapping[int, int]) -> None:
        self._next = now + INTERVAL_S
        tracker = self._tracker
        if tracker.update(now, clocks):
            tracker.begin_line(now)
        if now >= self._next_ranks:
            self._next_ranks = now + self._ranks_s
            self._ranks = tracker.ranks(self._ranks_s, self._heartbeat_s)
        tracker.metrics = self._observer.address
        status = tracker.status("running")
        self._observer.observe(
            RunView(name=self._observer.name, state="running", status=status, ranks=self._ranks)
        )

    def finish(self, statistics: Mapping[str, Any]) -> None:
        """Show the run at its end.

        Args:
            statistics: Statistics of the job with the entries of all ranks, as in `Outcome.statistics`.
        """
        self._next_ranks = self._clock()
        self._show(self._next_ranks, {row["worker"]: row["clock"] for row in statistics["workers"]})
