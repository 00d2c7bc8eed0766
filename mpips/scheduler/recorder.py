"""The files that the scheduler of a supervised run writes: status, ranks, metrics, and the finished mark.

The recorder writes each file about once a second at most, and does not wait until it is on the disk. With
many ranks it writes their activity less often, because that takes a time proportional to their number. These
files are for people and for the supervisor, and training continues if they cannot be written, as on a full
disk. Only the finished mark is made durable, and the run is not finished without it. A scheduler whose
attempt has been replaced by a later one learns it here, from the lease, and stops.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mpips.errors import ConfigError, MpipsError
from mpips.mpi.intervals import heartbeat_interval_s
from mpips.mpi.messages import Evaluated, Report
from mpips.recovery.saving import Saving
from mpips.rundir.directory import Supervised, replace_json
from mpips.rundir.files import Event, Finished, Progress, Ranks, StartPoint, Status
from mpips.scheduler.history_file import HistoryFile, JobTables
from mpips.scheduler.job_statistics import last_checkpoint
from mpips.scheduler.metrics_file import MetricsFile
from mpips.scheduler.rank_table import RankTable
from mpips.scheduler.run_progress import RunProgress
from mpips.snapshot.coordinator import Coordinator

INTERVAL_S = 1.0  # s, least time between two writes of the status
_RANKS_PER_S = 500.0  # rows of ranks.json that are written per second, if INTERVAL_S is not longer
_NO_PATHS: Mapping[str, int] = {}
_NO_TABLES = JobTables()
OnReport = Callable[[int, Report], None]


class ReplacedError(MpipsError):
    """A later attempt of the run has replaced this one."""


def is_saved(statistics: Mapping[str, Any]) -> bool:
    """Return False if the checkpoint at the end of a job failed, else True; a job may have none.

    Args:
        statistics: Statistics of the job, as in `Outcome.statistics`.
    """
    return "error" not in last_checkpoint(statistics)


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
            tables: Names and places of the tables.
        """
        self._paths = dict(paths)
        self._run = run
        self._clock = clock
        self._metrics = MetricsFile(run, timeout_s)
        self._history = HistoryFile(run, rank_table.places, tables)
        self._rank_table = rank_table
        self._run_progress = run_progress
        self._start = start
        self._first_clock = first_clock
        before = run.folder.status()
        self._restarts = before.restarts if before is not None else 0
        self._in_memory = in_memory
        recoverable = start.step if in_memory else 0
        self._progress = Progress(step=start.step, epoch=start.epoch, recoverable=recoverable)
        # Samples of this attempt; samples, losses and begin of the present line of the metrics.
        self._samples = self._window_samples = 0
        self._window_loss = 0.0
        self._window_since = self._next = self._next_ranks = clock()
        n_ranks = len(rank_table.places)
        self._ranks_s = max(
            INTERVAL_S, n_ranks / _RANKS_PER_S
        )  # s between two writes of ranks.json
        self._heartbeat_s = heartbeat_interval_s(n_ranks, timeout_s)
        self._checkpoint = ""
        self._warned = False
        rank_table.listen(self.evaluated)
        self.look({})
        self._note_start()

    def _note_start(self) -> None:
        """Add the event that this attempt has begun to events.jsonl."""
        s = self._start
        event = Event(
            time_s=time.time(),
            generation=self._run.generation,
            event="began",
            step=s.step,
            source=s.source,
        )
        try:
            self._run.folder.note(event)
        except OSError as error:
            self._warn(error)

    def report(self, epoch: int, samples: int, loss_sum: float) -> None:
        """Add a worker's progress since its last report.

        Args:
            epoch: Epoch of the worker, from 0.
            samples: Number of samples since its last report.
            loss_sum: Sum of their losses.
        """
        self._samples += samples
        self._window_samples += samples
        self._window_loss += loss_sum
        if epoch > self._progress.epoch:
            self._progress = msgspec.structs.replace(self._progress, epoch=epoch)

    def evaluated(self, found: Evaluated) -> None:
        """Write the metrics of an evaluation as a line of metrics.jsonl, unless the attempt is replaced."""
        # Other lines count epochs from 0, `found` counts those that are done.
        line = {
            "epoch": max(found.epochs - 1, 0),
            "step": found.step,
            "test": {name: _finite(value) for name, value in found.metrics.items()},
        }
        try:
            if self._run.holds_lease():
                self._metrics.append(line)
        except (OSError, ConfigError) as error:
            self._warn(error)

    def saved(self, path: str) -> None:
        """Store the path of the newest checkpoint, for the status; "": none yet."""
        self._checkpoint = path

    def look_at(self, coordinator: Coordinator | None, clocks: Mapping[int, int]) -> None:
        """Store the coordinator's newest checkpoint, then do the same as `look`."""
        if coordinator is not None:
            self.saved(coordinator.statistics.get("path", ""))
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
            print(
                f"mpips: warning: status and metrics of the run cannot be written: {error}; training "
                "continues, `mpips top` shows old values until there is room",
                file=sys.stderr,
                flush=True,
            )

    def _write(self, now: float, clocks: Mapping[int, int]) -> None:
        """Update the progress and write the status; add a line of metrics if samples have been reported."""
        seconds = max(now - self._window_since, 1e-9)
        n = self._window_samples
        changes: dict[str, Any] = {"samples": self._samples}
        if clocks:
            gained = [max(clock - self._first_clock, 0) for clock in clocks.values()]
            changes["step"] = self._start.step + max(gained)
            if self._in_memory:
                changes["recoverable"] = self._start.step + min(gained)
            changes["updates"] = sum(gained)
        if n:
            changes["loss"] = self._window_loss / n
            changes["samples_per_s"] = round(n / seconds, 1)
        changes |= self._pace()
        self._progress = msgspec.structs.replace(self._progress, **changes)
        if n:
            self._write_metrics()
            self._window_samples, self._window_loss, self._window_since = 0, 0.0, now
        self._write_status("running")
        if now >= self._next_ranks:
            self._next_ranks = now + self._ranks_s
            self._write_ranks()
        self._metrics.thin_if_due()
        self._write_history(now)

    def _pace(self) -> dict[str, Any]:
        """Return the fields of the progress that come from the rank table and the progress of the run."""
        totals, run_progress = self._rank_table.totals(), self._run_progress
        found: dict[str, Any] = {
            "staleness": _rounded(totals.staleness, 3),
            "push_bytes_per_s": _rounded(totals.push_bytes_per_s, 1),
            "pull_bytes_per_s": _rounded(totals.pull_bytes_per_s, 1),
        }
        if run_progress is not None:
            found["share"] = round(run_progress.share, 6)
            found["n_epochs"] = run_progress.n_epochs
            found["left_s"] = _rounded(run_progress.left_s, 1)
        return found

    def _write_metrics(self) -> None:
        """Add a line with the present progress to metrics.jsonl."""
        p = self._progress
        line = {
            "epoch": p.epoch,
            "step": p.step,
            "samples": p.samples,
            "loss": p.loss,
            "samples_per_s": p.samples_per_s,
            "staleness": p.staleness,
            "push_bytes_per_s": p.push_bytes_per_s,
            "pull_bytes_per_s": p.pull_bytes_per_s,
        }
        self._metrics.append(line)

    def _write_history(self, now: float) -> None:
        """Add lines to history.jsonl that are due."""
        run, step = self._run, self._progress.step
        self._history.note_checkpoint(self._checkpoint, step)
        if self._history.is_due(now):
            counts = self._rank_table.counts(run.generation, step, run.folder.path)
            self._history.add(now, counts)
        self._history.thin_if_due()

    def _write_status(self, state: str) -> None:
        """Write status.json, and places.json the first time."""
        status = Status(
            state=state,
            generation=self._run.generation,
            time_s=time.time(),
            restarts=self._restarts,
            start=self._start,
            progress=self._progress,
            checkpoint=self._checkpoint,
            ranks=self._rank_table.places,
            paths=self._paths,
        )
        self._run.folder.write_status(status)

    def _write_ranks(self) -> None:
        """Write ranks.json."""
        ranks = Ranks(
            generation=self._run.generation,
            time_s=time.time(),
            ranks=self._rank_table.rows(),
            interval_s=self._ranks_s,
            heartbeat_s=self._heartbeat_s,
        )
        replace_json(self._run.folder.ranks_file, ranks)

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
        self._checkpoint = last_checkpoint(statistics).get("path", self._checkpoint)
        self.look({row["worker"]: row["clock"] for row in statistics["workers"]})
        if not self._run.holds_lease():
            raise self._replaced()
        try:
            replace_json(self._run.folder.statistics_file, statistics)
        except OSError as error:
            self._warn(error)
        if not is_saved(statistics):
            return
        mark = Finished(
            generation=self._run.generation,
            time_s=time.time(),
            step=self._progress.step,
            checkpoint=self._checkpoint,
        )
        replace_json(self._run.folder.finished_file, mark, durable=True)


def _finite(value: float) -> float | None:
    """Return the value, or None if JSON cannot represent it (NaN, infinity)."""
    return value if math.isfinite(value) else None


def _rounded(value: float | None, digits: int) -> float | None:
    """Round a value that may be None."""
    return None if value is None else round(value, digits)


def open_recorder(
    run: Supervised | None,
    rank_table: RankTable,
    saving: Saving | None,
    run_progress: RunProgress | None = None,
    in_memory: bool = False,
    timeout_s: float = math.inf,
    paths: Mapping[str, int] = _NO_PATHS,
    tables: JobTables = _NO_TABLES,
) -> RunRecorder | None:
    """Return the recorder of this attempt, or None without a supervisor.

    Args:
        run: The supervised run of which this launch is an attempt; None: there is no supervisor.
        rank_table: Activity of every rank.
        saving: State from which the job starts; None: it starts from nothing.
        run_progress: Progress of the run; None: unknown.
        in_memory: True: the next launch can continue in the shared memory that this one leaves.
        timeout_s: Timeout of the job, which bounds the interval of heartbeats.
        paths: Number of workers by the name of a path that their dense updates take.
        tables: Names and places of the tables.
    """
    if run is None:
        return None
    start, first_clock = _start_of(saving)
    return RunRecorder(
        run,
        rank_table,
        start,
        first_clock,
        run_progress,
        in_memory,
        timeout_s=timeout_s,
        paths=paths,
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
        point = StartPoint(source="memory", step=step, epoch=epoch, note=note)
        return point, saving.first_clock
    epoch = min((worker.epoch for worker in m.workers), default=0)
    return StartPoint(source="checkpoint", path=str(saving.start), step=m.step, epoch=epoch), 0


def recorded(on_report: OnReport | None, recorder: RunRecorder | None) -> OnReport | None:
    """Return a function that passes workers' reports to `on_report` and to the recorder, if there is one."""
    if recorder is None:
        return on_report

    def both(worker: int, report: Report) -> None:
        recorder.report(report.epoch, report.samples, report.loss_sum)
        if on_report is not None:
            on_report(worker, report)

    return both
