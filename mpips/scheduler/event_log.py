"""The metrics of a run as event files of TensorBoard, in the folder tensorboard/ of the run directory.

Each attempt writes one file. Its first event tells readers to forget all steps after the one with which the
attempt begins (SessionLog.START), so restarts make one series. Names sort by attempt, in which order readers
take them. An attempt that begins at the end of an epoch may evaluate the step with which it begins once more:
what an earlier attempt has logged of it stays, and is not written again.

Readers cannot merge old points, so points become rarer while the run ages: as many seconds apart as the run
is hours old, at least the interval of metrics.jsonl. In t hours that is about 3600 (1 + ln t) points. A
point has the mean of the loss and of the rate since the point before. Evaluations are all written.

The events are written by the scheduler's thread, because tensorboardX's own writer has a thread and a bounded
queue, which would block the scheduler for ever once the disk is full.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

from mpips.process.hidden import hidden
from mpips.rundir.directory import RunFolder
from mpips.rundir.series import evaluations_of, metrics_of, series

# tensorboardX imports PyTorch wherever it is installed, which takes the scheduler a second of processor time
# and 190 MB. It works without.
with hidden("torch"):
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.proto.summary_pb2 import HistogramProto, Summary
    from tensorboardX.record_writer import masked_crc32c

_FULL_S = 3600.0  # s, age of a run for each second between two points
# TensorBoard sorts groups by name: test/ and train/ come first, the work of the machine after them.
_SCALARS = {
    "learning_rate": "train/learning_rate",
    "epoch": "work/epoch",
    "samples": "work/samples",
    "loss": "train/loss",
    "samples_per_s": "work/samples_per_s",
    "staleness": "work/staleness_mean",
    "push_bytes_per_s": "work/pushed_bytes_per_s",
    "pull_bytes_per_s": "work/pulled_bytes_per_s",
}
HISTOGRAM = "work/staleness"


class EventLog:
    """The event file of one attempt; see `mpips.scheduler.logs.MetricsLog`."""

    def __init__(self, run: RunFolder, generation: int, start_step: int) -> None:
        """Write nothing yet.

        Args:
            run: The run.
            generation: Generation number of the attempt.
            start_step: Step of the run at which the attempt begins.
        """
        self._run = run
        self._folder = run.path / "tensorboard"
        self._created_s = run.info().created_s
        self._name = f"attempt-{generation:06d}.out.tfevents.{max(int(self._created_s), 0):010d}"
        self._start_step = start_step
        # Evaluations that earlier attempts have logged; see `evaluations_of`.
        self._evaluated: set[tuple[int, str, str]] = set()
        self._next_s = 0.0  # Unix time of the next point
        self._before: dict[str, Any] = {}  # the line of the last point
        self._loss_sum = self._loss_n = 0.0  # since the last point, weighted by samples
        self._pending: tuple[dict[str, Any], Sequence[int]] | None = (
            None  # a line after the last point
        )
        self._samples = 0  # at the last line
        self._staleness: Sequence[int] = ()  # histogram at the last point
        self._file: BinaryIO | None = None

    def begin(self) -> None:
        """Make the file, with the order to forget later steps of earlier attempts; see MetricsLog."""
        self._folder.mkdir(exist_ok=True)
        # Without event files of earlier attempts, as when the log is new, nothing of them is logged.
        if any(self._folder.iterdir()):
            for line in series(self._run):
                self._evaluated |= evaluations_of(line)
        self._file = (self._folder / self._name).open("ab", buffering=0)
        self._write(Event(file_version="brain.Event:2"))
        start = SessionLog(status=SessionLog.START)
        self._write(Event(step=self._start_step + 1, session_log=start))

    def add(self, line: dict[str, Any], staleness: Sequence[int]) -> None:
        """Add a line, which becomes a point if one is due; see MetricsLog."""
        data, metrics = metrics_of(line)
        if data:
            found = [
                _scalar(f"{data}/{name}", value)
                for name, value in metrics.items()
                if value is not None and (line["step"], data, name) not in self._evaluated
            ]
            if found:
                self._write_summary(line, found)
            return
        n = line["samples"] - self._samples
        self._samples = line["samples"]
        if line["loss"] is not None:
            self._loss_sum += line["loss"] * n
            self._loss_n += n
        self._pending = line, staleness
        if line["time_s"] >= self._next_s:
            self._next_s = line["time_s"] + (line["time_s"] - self._created_s) / _FULL_S
            self._write_point()

    def _write_point(self) -> None:
        """Write a point for all lines since the last one."""
        assert self._pending is not None
        line, staleness = self._pending
        self._pending = None
        values = dict(line)
        if self._loss_n:
            values["loss"] = self._loss_sum / self._loss_n
        self._loss_sum = self._loss_n = 0.0
        if not line["samples"]:
            # A script may count no samples.
            values["samples"] = values["samples_per_s"] = None
        before = self._before
        if line["samples"] and before and line["time_s"] > before["time_s"]:
            seconds = line["time_s"] - before["time_s"]
            values["samples_per_s"] = (line["samples"] - before["samples"]) / seconds
        self._before = line
        found = [
            _scalar(tag, values[name])
            for name, tag in _SCALARS.items()
            if values.get(name) is not None
        ]
        # The first rate has the name that the only one of other runs has.
        found += [
            _scalar(f"train/learning_rate_{i}", rate)
            for i, rate in enumerate(line.get("learning_rates", ()))
            if i and rate is not None
        ]
        new = [n - old for n, old in itertools.zip_longest(staleness, self._staleness, fillvalue=0)]
        self._staleness = staleness
        if any(n > 0 for n in new):
            found.append(Summary.Value(tag=HISTOGRAM, histo=_histogram(new)))
        self._write_summary(line, found)

    def _write_summary(self, line: dict[str, Any], values: list[Summary.Value]) -> None:
        self._write(
            Event(wall_time=line["time_s"], step=line["step"], summary=Summary(value=values))
        )

    def _write(self, event: Event) -> None:
        """Append an event in one write, as a TFRecord: length and data, each with its checksum."""
        if self._file is None:
            return
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        sums = [struct.pack("<I", masked_crc32c(part)) for part in (length, data)]
        self._file.write(length + sums[0] + data + sums[1])

    def thinned(self) -> None:
        """Do nothing: event files are not rewritten."""

    def close(self) -> None:
        """Write the last lines as a point, and close the file; see MetricsLog."""
        if self._pending is not None:
            self._write_point()
        if self._file is not None:
            self._file.close()
            self._file = None


def _scalar(tag: str, value: float) -> Summary.Value:
    return Summary.Value(tag=tag, simple_value=value)


def _histogram(counts: Sequence[int]) -> HistogramProto:
    """Return the histogram of values 0, 1, 2, ... with these numbers."""
    present = [(value, n) for value, n in enumerate(counts) if n > 0]

    def total(of: Callable[[int], int]) -> int:
        return sum(of(value) * n for value, n in present)

    return HistogramProto(
        min=present[0][0],
        max=present[-1][0],
        num=total(lambda value: 1),
        sum=total(lambda value: value),
        sum_squares=total(lambda value: value * value),
        bucket_limit=[value + 0.5 for value in range(present[-1][0] + 1)],
        bucket=[max(n, 0) for n in counts[: present[-1][0] + 1]],
    )
