"""What the scheduler writes of a supervised run: status.json, metrics.jsonl, the mark that it is finished.

At most about one write of each a second, none of them waited for: they are for people and for the
supervisor, and a full disk costs no training. Only the finished mark is made durable, and must be written. A
scheduler whose attempt has been replaced stops here.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mpips.errors import ConfigError, MpipsError
from mpips.rundir import (
    Finished,
    Progress,
    RankPlace,
    StartPoint,
    Status,
    Supervised,
    current,
    replace_json,
)
from mpips.saving import Saving

INTERVAL_S = 1.0


class ReplacedError(MpipsError):
    """A later attempt of the run has taken over."""


class Chronicle:
    """Keeps the record of one attempt. Not collective; one per job, on the scheduler's rank."""

    def __init__(self, run: Supervised, ranks: Sequence[RankPlace], start: StartPoint) -> None:
        """Write that the attempt runs now."""
        self._run = run
        self._ranks = tuple(ranks)
        self._start = start
        before = run.folder.status()
        self._restarts = before.restarts if before is not None else 0
        self._progress = Progress(step=start.step, epoch=start.epoch)
        self._samples = self._window_samples = 0
        self._window_loss = 0.0
        self._window_since = self._next = time.monotonic()
        self._checkpoint = ""
        self._warned = False
        self.look({})

    @property
    def recoverable(self) -> int:
        """Steps that memory would bring back after a failure."""
        return self._progress.recoverable

    @recoverable.setter
    def recoverable(self, step: int) -> None:
        self._progress = msgspec.structs.replace(self._progress, recoverable=step)

    def report(self, epoch: int, samples: int, loss_sum: float) -> None:
        """Count what a worker has done since its last report."""
        self._samples += samples
        self._window_samples += samples
        self._window_loss += loss_sum
        if epoch > self._progress.epoch:
            self._progress = msgspec.structs.replace(self._progress, epoch=epoch)

    def saved(self, path: str) -> None:
        """Note a checkpoint that was published."""
        self._checkpoint = path

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
            changes["step"] = self._start.step + max(clocks.values())
            changes["updates"] = sum(clocks.values())
        if n:
            changes["loss"] = self._window_loss / n
            changes["samples_per_s"] = round(n / seconds, 1)
        self._progress = msgspec.structs.replace(self._progress, **changes)
        if n:
            self._write_metrics()
            self._window_samples, self._window_loss, self._window_since = 0, 0.0, now
        self._write_status("running")

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
        }
        # One write of a whole line: a rank that is killed leaves no half of it.
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
            ranks=self._ranks,
        )
        replace_json(self._run.folder.status_file, status)

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
        if "error" in saved:
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


def open_chronicle(ranks: Sequence[RankPlace], saving: Saving | None) -> Chronicle | None:
    """The record of this attempt; None if nobody supervises.

    Args:
        ranks: Where every rank is.
        saving: What the job starts from.
    """
    run = current()
    if run is None:
        return None
    if saving is None or saving.start is None or saving.origin is None:
        return Chronicle(run, ranks, StartPoint())
    m = saving.origin
    epoch = min((worker.epoch for worker in m.workers), default=0)
    point = StartPoint(source="checkpoint", path=str(saving.start), step=m.step, epoch=epoch)
    return Chronicle(run, ranks, point)
