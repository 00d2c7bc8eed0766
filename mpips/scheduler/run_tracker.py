"""The state of a run on the scheduler: progress, activity of every rank, last evaluation.

It is computed from workers' reports and clocks and from the heartbeats in the rank table. The files of the
run directory and the metrics for Prometheus both show it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from mpips.rundir.files import Progress, Ranks, StartPoint, Status
from mpips.scheduler.reported import ReportedLength

if TYPE_CHECKING:
    from mpips.mpi.messages import Evaluated, ReportDetails
    from mpips.scheduler.rank_table import RankTable
    from mpips.scheduler.run_progress import RunProgress

CUTS = (
    "written",
    "failed",
    "given_up",
    "skipped",
)  # results of cuts, as the coordinator counts them


class RunTracker:
    """State and progress of one attempt. One per job, on the scheduler's rank. No method blocks.

    Attributes:
        progress: Progress at the last `update`.
        checkpoint: Newest checkpoint of this attempt; "": none yet.
        metrics: Address at which the scheduler answers GET /metrics; "": none.
    """

    def __init__(
        self,
        rank_table: RankTable,
        start: StartPoint,
        now: float,
        first_clock: int = 0,
        run_progress: RunProgress | None = None,
        in_memory: bool = False,
        generation: int = 0,
        restarts: int = 0,
        paths: Mapping[str, int] | None = None,
    ) -> None:
        """Begin without reports.

        Args:
            rank_table: Activity of every rank; the tracker listens to its evaluations.
            start: State from which the attempt starts.
            now: Monotonic time, seconds.
            first_clock: Least clock of a worker at `start`.
            run_progress: Progress of the run, to which the program adds the workers' reports; None: unknown.
            in_memory: True: the next launch can continue in the shared memory that this one leaves.
            generation: Generation number of this launch.
            restarts: Number of restarts of the run before it.
            paths: Number of workers by the name of a path that their dense updates take.
        """
        self.start = start
        self.checkpoint = self.metrics = ""
        self._rank_table = rank_table
        self._run_progress = run_progress
        self._first_clock = first_clock
        self._in_memory = in_memory
        self._generation = generation
        self._restarts = restarts
        self._paths = dict(paths or {})
        recoverable = start.step if in_memory else 0
        self.progress = Progress(
            step=start.step, epoch=start.epoch, recoverable=recoverable, in_memory=in_memory
        )
        self._length = ReportedLength()
        # Samples of this attempt; samples, losses, their weight and begin of the present line of the metrics.
        self._samples = self._window_samples = self._window_weight = 0
        self._window_loss = 0.0
        self._window_since = now
        self._has_rates = False  # learning rates were reported since then
        self._has_own = False  # a worker has reported losses of the script itself
        self._checkpoints: dict[str, int] = {}
        self._test: dict[str, float | None] = {}
        rank_table.listen(self._evaluated)

    def report(
        self,
        epoch: int,
        samples: int,
        loss_sum: float,
        loss_weight: int | None = None,
        by_library: bool | None = None,
    ) -> None:
        """Add a worker's progress since its last report.

        Args:
            epoch: Epoch of the worker, from 0.
            samples: Number of samples since its last report.
            loss_sum: Sum of their losses.
            loss_weight: Number of samples, or of steps, of which `loss_sum` is the sum; None: all `samples`.
            by_library: The losses are those of a library of the script. They do not count once a worker has
                reported losses of the script (False): these may be of another kind.
        """
        self._samples += samples
        self._window_samples += samples
        weight = samples if loss_weight is None else loss_weight
        if by_library is False and weight and not self._has_own:
            self._has_own = True
            self._window_loss, self._window_weight = 0.0, 0
        if not (by_library and self._has_own):
            self._window_loss += loss_sum
            self._window_weight += weight
        if epoch > self.progress.epoch:
            self.progress = msgspec.structs.replace(self.progress, epoch=epoch)

    def note_details(
        self, worker: int, epoch: int, details: ReportDetails | None, now: float
    ) -> None:
        """Take the details of a worker's report; see ReportedLength."""
        self._length.note(worker, epoch, details, now)
        self._has_rates = self._has_rates or bool(details is not None and details.rates)

    def note_checkpoints(self, statistics: Mapping[str, Any]) -> None:
        """Store path of the newest checkpoint and numbers of cuts by result, as the coordinator has them."""
        self.checkpoint = statistics.get("path", "")
        self._checkpoints = {name: statistics[name] for name in CUTS if name in statistics}

    def _evaluated(self, found: Evaluated) -> None:
        self._test = {name: finite(value) for name, value in found.metrics.items()}

    def update(self, now: float, clocks: Mapping[int, int]) -> bool:
        """Compute the progress of this moment.

        Args:
            now: Monotonic time, seconds.
            clocks: Clock of each worker, by any key; empty: not known yet.

        Returns:
            True if samples, losses or learning rates have been reported since the last `begin_line`;
            `progress` then has their loss and rate. Where the script reports losses itself: True if one has.
        """
        seconds = max(now - self._window_since, 1e-9)
        n, weight = self._window_samples, self._window_weight
        changes: dict[str, Any] = {"samples": self._samples}
        if self._length.rates:
            changes["learning_rate"] = finite(self._length.rates[0])
        if clocks:
            gained = [max(clock - self._first_clock, 0) for clock in clocks.values()]
            changes["step"] = self.start.step + max(gained)
            if self._in_memory:
                changes["recoverable"] = self.start.step + min(gained)
            changes["updates"] = sum(gained)
        if n or weight:
            if weight or not self._has_own:
                changes["loss"] = self._window_loss / weight if weight else None
            changes["samples_per_s"] = round(n / seconds, 1)
        self.progress = msgspec.structs.replace(self.progress, **changes, **self._pace(now))
        return weight > 0 or (not self._has_own and (n > 0 or self._has_rates))

    def begin_line(self, now: float) -> None:
        """Begin the next line of the metrics, because the present one is written."""
        self._window_samples = self._window_weight = 0
        self._window_loss, self._window_since = 0.0, now
        self._has_rates = False

    def line(self) -> dict[str, Any]:
        """Return the present progress as the fields of a line of metrics.jsonl."""
        p, rates = self.progress, self._length.rates
        found: dict[str, Any] = {
            "epoch": p.epoch,
            "step": p.step,
            "samples": p.samples,
            "loss": p.loss,
            "samples_per_s": p.samples_per_s,
            "staleness": p.staleness,
            "push_bytes_per_s": p.push_bytes_per_s,
            "pull_bytes_per_s": p.pull_bytes_per_s,
        }
        if rates:
            found["learning_rate"] = finite(rates[0])
        if len(rates) > 1:
            found["learning_rates"] = [finite(rate) for rate in rates]
        return found

    def _pace(self, now: float) -> dict[str, Any]:
        """Return the fields of the progress that come from the rank table and the length of the run."""
        totals, run_progress, length = (
            self._rank_table.totals(),
            self._run_progress,
            self._length,
        )
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
        found["has_epochs"] = length.has_epochs
        if length.n_epochs:
            found["share"] = round(length.share, 6)
            found["n_epochs"] = length.n_epochs
            found["left_s"] = _rounded(length.left_s(now), 1)
        return found

    def status(self, state: str) -> Status:
        """Return the content of status.json, with the places of all ranks."""
        return Status(
            state=state,
            generation=self._generation,
            time_s=time.time(),
            restarts=self._restarts,
            start=self.start,
            progress=self.progress,
            checkpoint=self.checkpoint,
            ranks=self._rank_table.places,
            paths=self._paths,
            checkpoints=self._checkpoints,
            test=self._test,
            metrics=self.metrics,
        )

    def ranks(self, interval_s: float, heartbeat_s: float) -> Ranks:
        """Return the content of ranks.json. Takes a time proportional to the number of ranks.

        Args:
            interval_s: Seconds between two calls.
            heartbeat_s: Seconds between two heartbeats of a rank.
        """
        return Ranks(
            generation=self._generation,
            time_s=time.time(),
            ranks=self._rank_table.rows(),
            interval_s=interval_s,
            heartbeat_s=heartbeat_s,
            load=self._rank_table.load(),
        )


def finite(value: float) -> float | None:
    """Return the value, or None if JSON cannot represent it (NaN, infinity)."""
    return value if math.isfinite(value) else None


def _rounded(value: float | None, digits: int) -> float | None:
    """Round a value that may be None."""
    return None if value is None else round(value, digits)
