"""The files that the scheduler of a supervised run writes: status, ranks, metrics, and the finished mark.

The recorder writes each file about once a second at most, and does not wait until it is on the disk. With
many ranks it writes their activity less often, because that takes a time proportional to their number. These
files are for people and for the supervisor, and training continues if they cannot be written, as on a full
disk. Only the finished mark is made durable, and the run is not finished without it. A scheduler whose
attempt has been replaced by a later one learns it here, from the lease, and stops.

A job without a run directory that is to be observed has an `ObservedRun` in place of the recorder.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mpips.errors import ConfigError, MpipsError
from mpips.mpi.intervals import heartbeat_interval_s
from mpips.mpi.messages import Evaluated, Report, ReportDetails
from mpips.rundir.directory import Supervised, replace_json
from mpips.rundir.files import Event, Finished, Ranks, StartPoint
from mpips.rundir.view import RunView, failures_in, judge
from mpips.scheduler.history_file import HistoryFile, JobTables
from mpips.scheduler.job_statistics import is_saved, last_checkpoint
from mpips.scheduler.logs import make_logs
from mpips.scheduler.metrics_file import MetricsFile
from mpips.scheduler.observed import INTERVAL_S, ObservedRun, Observer, ranks_interval_s
from mpips.scheduler.run_tracker import RunTracker, finite
from mpips.terminal.screen import say

if TYPE_CHECKING:
    from mpips.recovery.saving import Saving
    from mpips.scheduler.rank_table import RankTable
    from mpips.scheduler.run_progress import RunProgress
    from mpips.snapshot.coordinator import Coordinator

_NO_PATHS: Mapping[str, int] = {}
_NO_TABLES = JobTables()
OnReport = Callable[[int, Report], None]


class ReplacedError(MpipsError):
    """A later attempt of the run has replaced this one."""


class RunRecorder:
    """Writes the files of one attempt. One per job, on the scheduler's rank. Not collective."""

    def __init__(
        self,
        run: Supervised,
        rank_table: RankTable,
        start: StartPoint,
        first_clock: int = 0,
        run_progress: RunProgress | None = None,
        in_memory: bool = False,
        clock: Callable[[], float] = time.monotonic,
        timeout_s: float = math.inf,
        paths: Mapping[str, int] = _NO_PATHS,
        observer: Observer | None = None,
        logs: Sequence[str] = (),
        tables: JobTables = _NO_TABLES,
    ) -> None:
        """Write the first status and the event "began". Blocks for these writes.

        Args:
            run: The run and this attempt of it.
            rank_table: Activity of every rank; the recorder listens to its evaluations.
            start: State from which the attempt starts.
            first_clock: Least clock of a worker at `start`.
            run_progress: Progress of the run, to which the program adds the workers' reports; None: unknown.
            in_memory: True: the next launch can continue in the shared memory that this one leaves.
            clock: Returns monotonic time, seconds.
            timeout_s: Timeout of the job, which bounds the interval of heartbeats.
            paths: Number of workers by the name of a path that their dense updates take.
            observer: Is shown the run once a second; None: nothing is.
            logs: Names of further forms of the metrics; see mpips.scheduler.logs.
            tables: Names and places of the tables.
        """
        self._run = run
        self._clock = clock
        self._metrics = MetricsFile(run, timeout_s, make_logs(logs, run, start.step))
        self._history = HistoryFile(run, rank_table.places, tables)
        self._rank_table = rank_table
        # A damaged status, which a supervisor could not replace on a full disk, must not end the run.
        before = None
        with contextlib.suppress(ConfigError):
            before = run.folder.status()
        restarts = before.restarts if before is not None else 0
        self._observer = observer
        self._next = self._next_ranks = clock()
        self._tracker = RunTracker(
            rank_table,
            start,
            self._next,
            first_clock,
            run_progress,
            in_memory,
            run.generation,
            restarts,
            paths,
        )
        n_ranks = len(rank_table.places)
        # s between two writes of ranks.json
        self._ranks_s = ranks_interval_s(n_ranks)
        self._heartbeat_s = heartbeat_interval_s(n_ranks, timeout_s)
        self._ranks: Ranks | None = None  # the newest content of ranks.json
        self._failures = failures_in(run.folder.events())
        self._warned = False
        rank_table.listen(self.evaluated)
        self.look({})
        self._note_start()

    def _note_start(self) -> None:
        """Add the event that this attempt has begun to events.jsonl."""
        s = self._tracker.start
        event = Event(
            time_s=time.time(),
            generation=self._run.generation,
            event="began",
            step=s.step,
            source=s.source,
        )
        try:
            self._run.folder.note(event)
            if self._run.holds_lease():
                self._metrics.begin()
        except (OSError, ConfigError) as error:
            self._warn(error)

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

    def evaluated(self, found: Evaluated) -> None:
        """Write the metrics of an evaluation as a line of metrics.jsonl, unless the attempt is replaced."""
        # Other lines count epochs from 0, `found` counts those that are done.
        line = {
            "epoch": max(found.epochs - 1, 0),
            "step": found.step,
            found.of: {name: finite(value) for name, value in found.metrics.items()},
        }
        try:
            if self._run.holds_lease():
                self._metrics.log(self._metrics.append(line))
        except (OSError, ConfigError) as error:
            self._warn(error)

    def saved(self, path: str) -> None:
        """Store the path of the newest checkpoint, for the status; "": none yet."""
        self._tracker.checkpoint = path

    def look_at(self, coordinator: Coordinator | None, clocks: Mapping[int, int]) -> None:
        """Store the coordinator's newest checkpoint, then do the same as `look`."""
        if coordinator is not None:
            self._tracker.note_checkpoints(coordinator.statistics)
        self.look(clocks)

    def look(self, clocks: Mapping[int, int]) -> None:
        """Write status and metrics if INTERVAL_S has passed since the last time. Call it often.

        Args:
            clocks: Clock of each worker, by any key; empty: not known yet.

        Raises:
            ReplacedError: A later attempt has the lease.
        """
        now = self._clock()
        if now < self._next:
            return
        self._next = now + INTERVAL_S
        # Show the supervisor that this attempt runs, even if status.json cannot be written.
        self._run.show_heartbeat()
        try:
            held = self._run.holds_lease()
            if held:
                self._write(now, clocks)
        except (OSError, ConfigError) as error:
            self._warn(error)
            return
        if not held:
            raise self._replaced()

    def _replaced(self) -> ReplacedError:
        """Return the error of an attempt that a later one has replaced."""
        run = self._run
        return ReplacedError(
            f"attempt {run.generation} of {run.folder.path} has been replaced by a later one; this one "
            "stops, the later one continues"
        )

    def _warn(self, error: Exception) -> None:
        """Warn, once, that a file cannot be written."""
        if not self._warned:
            self._warned = True
            say(
                f"mpips: warning: status and metrics of the run cannot be written: {error}; training "
                "continues, `mpips top` shows old values until there is room"
            )

    def _write(self, now: float, clocks: Mapping[int, int]) -> None:
        """Update the progress and write the status; add a line of metrics if samples have been reported."""
        tracker = self._tracker
        has_line = tracker.update(now, clocks)
        is_due = now >= self._next_ranks
        if is_due:
            self._next_ranks = now + self._ranks_s
            self._ranks = tracker.ranks(self._ranks_s, self._heartbeat_s)
        if self._observer is not None:
            tracker.metrics = self._observer.address
        status = tracker.status("running")
        if self._observer is not None:
            # The supervisor may be gone while the job still runs.
            folder, unix_s = self._run.folder, time.time()
            state, alive, note = judge(folder, status, folder.lease(), unix_s)
            view = RunView(
                name=self._run.run_id,
                state=state,
                alive=alive,
                note=note,
                status=status,
                ranks=self._ranks,
                failures=self._failures,
                now=unix_s,
            )
            self._observer.observe(view)
        if has_line:
            fields = self._metrics.append(tracker.line())
            tracker.begin_line(now)
            self._metrics.log(fields, self._ranks.load.staleness if self._ranks is not None else ())
        self._run.folder.write_status(status)
        if is_due:
            replace_json(self._run.folder.ranks_file, self._ranks)
        self._metrics.thin_if_due()
        self._write_history(now)

    def _write_history(self, now: float) -> None:
        """Add lines to history.jsonl that are due."""
        run, step = self._run, self._tracker.progress.step
        self._history.note_checkpoint(self._tracker.checkpoint, step)
        if self._history.is_due(now):
            self._history.add(now, self._rank_table.counts(run.generation, step, run.folder.path))
        self._history.thin_if_due()

    def finish(self, statistics: Mapping[str, Any]) -> None:
        """Write the last status, the statistics and, if the last checkpoint did not fail, the finished mark.

        Blocks until the mark is durable.

        Args:
            statistics: Statistics of the job with the entries of all ranks, as in `Outcome.statistics`.

        Raises:
            ReplacedError: A later attempt has the lease.
            OSError: The mark cannot be written.
        """
        self._next = self._next_ranks = -math.inf
        self._history.hurry()
        tracker = self._tracker
        tracker.checkpoint = last_checkpoint(statistics).get("path", tracker.checkpoint)
        self.look({row["worker"]: row["clock"] for row in statistics["workers"]})
        if not self._run.holds_lease():
            raise self._replaced()
        try:
            self._metrics.close()
            replace_json(self._run.folder.statistics_file, statistics)
        except OSError as error:
            self._warn(error)
        if not is_saved(statistics):
            return
        mark = Finished(
            generation=self._run.generation,
            time_s=time.time(),
            step=tracker.progress.step,
            checkpoint=tracker.checkpoint,
        )
        replace_json(self._run.folder.finished_file, mark, durable=True)


def open_recorder(
    run: Supervised | None,
    rank_table: RankTable,
    saving: Saving | None,
    run_progress: RunProgress | None = None,
    in_memory: bool = False,
    timeout_s: float = math.inf,
    paths: Mapping[str, int] = _NO_PATHS,
    observer: Observer | None = None,
    logs: Sequence[str] = (),
    tables: JobTables = _NO_TABLES,
) -> RunRecorder | ObservedRun | None:
    """Return the recorder of this attempt; without a supervisor what shows the run to the observer, if any.

    Args:
        run: The supervised run of which this launch is an attempt; None: there is no supervisor.
        rank_table: Activity of every rank.
        saving: State from which the job starts; None: it starts from nothing.
        run_progress: Progress of the run; None: unknown.
        in_memory: True: the next launch can continue in the shared memory that this one leaves.
        timeout_s: Timeout of the job, which bounds the interval of heartbeats.
        paths: Number of workers by the name of a path that their dense updates take.
        observer: Is shown the run once a second; None: nothing is.
        logs: Names of further forms of the metrics, for a supervised run; see mpips.scheduler.logs.
        tables: Names and places of the tables.
    """
    start, first_clock = _start_of(saving)
    if run is None:
        if observer is None:
            return None
        return ObservedRun(observer, rank_table, start, first_clock, run_progress, timeout_s, paths)
    return RunRecorder(
        run,
        rank_table,
        start,
        first_clock,
        run_progress,
        in_memory,
        timeout_s=timeout_s,
        paths=paths,
        observer=observer,
        logs=logs,
        tables=tables,
    )


def _start_of(saving: Saving | None) -> tuple[StartPoint, int]:
    """Return the state from which the attempt starts, and the least clock at which a worker begins."""
    if saving is None or saving.origin is None:
        return StartPoint(), 0
    m = saving.origin
    if saving.places:
        epoch = min(place.state.epoch for place in saving.places)
        step = m.step + saving.first_clock
        note = "; ".join(saving.notes)
        counts = any(place.state.counts_epochs for place in saving.places)
        point = StartPoint(source="memory", step=step, epoch=epoch, note=note, has_epochs=counts)
        return point, saving.first_clock
    epoch = min((worker.epoch for worker in m.workers), default=0)
    counts = any(worker.counts_epochs for worker in m.workers)
    source, path = ("memory", "") if saving.is_exchange else ("checkpoint", str(saving.start))
    point = StartPoint(source=source, path=path, step=m.step, epoch=epoch, has_epochs=counts)
    return point, 0


def recorded(
    on_report: OnReport | None, recorder: RunRecorder | ObservedRun | None
) -> OnReport | None:
    """Return a function that passes workers' reports to `on_report` and to the recorder, if there is one."""
    if recorder is None:
        return on_report

    def both(worker: int, report: Report) -> None:
        recorder.report(
            report.epoch,
            report.samples,
            report.loss_sum,
            report.loss_weight,
            report.is_by_library,
        )
        recorder.note_details(worker, report.epoch, report.details)
        if on_report is not None:
            on_report(worker, report)

    return both
