"""What the scheduler writes of a supervised run: status, ranks, metrics, the mark that it is finished.

At most about one write of each a second, none of them waited for: they are for people and for the
supervisor, and a full disk costs no training. Only the finished mark is made durable, and must be written. A
scheduler whose attempt has been replaced stops here.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mpips.errors import ConfigError, MpipsError
from mpips.mpi.messages import Evaluated, Report
from mpips.recovery.saving import Saving
from mpips.rundir.directory import (
    Finished,
    Progress,
    StartPoint,
    Status,
    Supervised,
    replace_json,
)
from mpips.rundir.files import Event, Ranks
from mpips.scheduler.rank_table import RankTable
from mpips.scheduler.run_progress import RunProgress
from mpips.snapshot.coordinator import Coordinator

INTERVAL_S = 1.0
OnReport = Callable[[int, Report], None]


class ReplacedError(MpipsError):
    """A later attempt of the run has taken over."""


def is_saved(statistics: Mapping[str, Any]) -> bool:
    """Whether the checkpoint at the end of a job was written, or none was wanted.

    Args:
        statistics: Of the job, as `Outcome.statistics`.
    """
    return "error" not in (statistics["servers"][0].get("checkpoint") or {})


class RunRecorder:
    """Keeps the record of one attempt. Not collective; one per job, on the scheduler's rank."""

    def __init__(
        self,
        run: Supervised,
        rank_table: RankTable,
        start: StartPoint,
        first_clock: int = 0,
        run_progress: RunProgress | None = None,
        in_memory: bool = False,
    ) -> None:
        """Write that the attempt runs now.

        Args:
            run: The run.
            rank_table: What every rank does.
            start: What the attempt starts from.
            first_clock: Of the workers at `start`.
            run_progress: How far the run is; the program counts the progress reports in it.
            in_memory: The next launch can go on in what this one leaves.
        """
        self._run = run
        self._rank_table = rank_table
        self._run_progress = run_progress
        self._start = start
        self._first_clock = first_clock
        before = run.folder.status()
        self._restarts = before.restarts if before is not None else 0
        self._in_memory = in_memory
        recoverable = start.step if in_memory else 0
        self._progress = Progress(step=start.step, epoch=start.epoch, recoverable=recoverable)
        self._samples = self._window_samples = 0
        self._window_loss = 0.0
        self._window_since = self._next = time.monotonic()
        self._checkpoint = ""
        self._warned = False
        rank_table.on_evaluated.append(self.evaluated)
        self.look({})
        self._note_start()

    def _note_start(self) -> None:
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
        """Count what a worker has done since its last report."""
        self._samples += samples
        self._window_samples += samples
        self._window_loss += loss_sum
        if epoch > self._progress.epoch:
            self._progress = msgspec.structs.replace(self._progress, epoch=epoch)

    def evaluated(self, found: Evaluated) -> None:
        """Write the metrics of an evaluation; `epoch` as in the other lines, from 0."""
        line = {
            "time_s": round(time.time(), 3),
            "generation": self._run.generation,
            "epoch": max(found.epochs - 1, 0),
            "step": found.step,
            "test": {name: _finite(value) for name, value in found.metrics.items()},
        }
        try:
            if self._run.holds_lease():
                self._append(line)
        except (OSError, ConfigError) as error:
            self._warn(error)

    def saved(self, path: str) -> None:
        """Note a checkpoint that was published."""
        self._checkpoint = path

    def look_at(self, coordinator: Coordinator | None, clocks: Mapping[int, int]) -> None:
        """`look`, with the newest checkpoint that the coordinator knows of."""
        if coordinator is not None:
            self.saved(coordinator.statistics.get("path", ""))
        self.look(clocks)

    def look(self, clocks: Mapping[int, int]) -> None:
        """Write status and metrics if it is time. Call it often.

        Args:
            clocks: Clock of each worker, by any key.

        Raises:
            ReplacedError: A later attempt has the lease.
        """
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + INTERVAL_S
        # The supervisor must see this also where status.json cannot be written.
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
        run = self._run
        return ReplacedError(
            f"attempt {run.generation} of {run.folder.path} has been replaced by a later one"
        )

    def _warn(self, error: Exception) -> None:
        """Say once that the record has gaps."""
        if not self._warned:
            self._warned = True
            print(
                f"mpips: warning: the record of the run cannot be kept: {error}; training goes on",
                file=sys.stderr,
                flush=True,
            )

    def _write(self, now: float, clocks: Mapping[int, int]) -> None:
        seconds = max(now - self._window_since, 1e-9)
        n = self._window_samples
        changes: dict[str, Any] = {"samples": self._samples}
        if clocks:
            changes["step"] = self._start.step + max(max(clocks.values()) - self._first_clock, 0)
            if self._in_memory:
                least = max(min(clocks.values()) - self._first_clock, 0)
                changes["recoverable"] = self._start.step + least
            changes["updates"] = sum(max(c - self._first_clock, 0) for c in clocks.values())
        if n:
            changes["loss"] = self._window_loss / n
            changes["samples_per_s"] = round(n / seconds, 1)
        changes |= self._pace()
        self._progress = msgspec.structs.replace(self._progress, **changes)
        if n:
            self._write_metrics()
            self._window_samples, self._window_loss, self._window_since = 0, 0.0, now
        self._write_status("running")

    def _pace(self) -> dict[str, Any]:
        """Return the figures of the rank table and of the progress of the run."""
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
        p = self._progress
        line = {
            "time_s": round(time.time(), 3),
            "generation": self._run.generation,
            "epoch": p.epoch,
            "step": p.step,
            "samples": p.samples,
            "loss": p.loss,
            "samples_per_s": p.samples_per_s,
            "staleness": p.staleness,
            "push_bytes_per_s": p.push_bytes_per_s,
            "pull_bytes_per_s": p.pull_bytes_per_s,
        }
        self._append(line)

    def _append(self, line: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl in one write: a rank that is killed leaves no half of it."""
        with self._run.folder.metrics_file.open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(line) + b"\n")

    def _write_status(self, state: str) -> None:
        status = Status(
            state=state,
            generation=self._run.generation,
            time_s=time.time(),
            restarts=self._restarts,
            start=self._start,
            progress=self._progress,
            checkpoint=self._checkpoint,
            ranks=self._rank_table.places,
        )
        replace_json(self._run.folder.status_file, status)
        ranks = Ranks(
            generation=self._run.generation, time_s=time.time(), ranks=self._rank_table.rows()
        )
        replace_json(self._run.folder.ranks_file, ranks)

    def finish(self, statistics: Mapping[str, Any]) -> None:
        """Say durably that the run is done, if it is: its last checkpoint was written, if it has any.

        Args:
            statistics: Of the job, as `Outcome.statistics`.

        Raises:
            ReplacedError: A later attempt has the lease.
            OSError: The mark cannot be written.
        """
        self._next = 0.0
        saved = statistics["servers"][0].get("checkpoint") or {}
        self._checkpoint = saved.get("path", self._checkpoint)
        self.look({row["worker"]: row["clock"] for row in statistics["workers"]})
        if not is_saved(statistics):
            return
        if not self._run.holds_lease():
            raise self._replaced()
        mark = Finished(
            generation=self._run.generation,
            time_s=time.time(),
            step=self._progress.step,
            checkpoint=self._checkpoint,
        )
        replace_json(self._run.folder.finished_file, mark, durable=True)


def _finite(value: float) -> float | None:
    """Return None for what JSON has no number for."""
    return value if math.isfinite(value) else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def open_recorder(
    run: Supervised | None,
    rank_table: RankTable,
    saving: Saving | None,
    run_progress: RunProgress | None = None,
    in_memory: bool = False,
) -> RunRecorder | None:
    """The record of this attempt; None if nobody supervises.

    Args:
        run: The supervised run of which this launch is an attempt, or None.
        rank_table: What every rank does.
        saving: What the job starts from.
        run_progress: How far the run is.
        in_memory: The next launch can go on in what this one leaves.
    """
    if run is None:
        return None
    start, first_clock = _start_of(saving)
    return RunRecorder(run, rank_table, start, first_clock, run_progress, in_memory)


def _start_of(saving: Saving | None) -> tuple[StartPoint, int]:
    """What the attempt starts from, and the workers' first clock."""
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
    """What hears the workers' reports: whoever shows progress, and the record of a supervised run."""
    if recorder is None:
        return on_report

    def both(worker: int, report: Report) -> None:
        recorder.report(report.epoch, report.samples, report.loss_sum)
        if on_report is not None:
            on_report(worker, report)

    return both
