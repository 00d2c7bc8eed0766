"""Further forms of a run's metrics beside metrics.jsonl, written by the scheduler: the option monitor.log.

    csv          metrics.csv, a row for each line of progress, and evaluations.csv, a row for each metric of
                 an evaluation; see `mpips.scheduler.csv_log`
    tensorboard  event files in the folder tensorboard/; see `mpips.scheduler.event_log`

A log has the series of the run: after a restart it goes on at the step with which the attempt begins, and
what earlier attempts have logged about later steps is taken back. A log that cannot be written, as on a full
disk, does not stop the run: the recorder warns once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from mpips.rundir.directory import Supervised


class MetricsLog(Protocol):
    """One form of the metrics. One per attempt, on the scheduler's rank. No method blocks for long."""

    def begin(self) -> None:
        """Begin the log of this attempt, behind its event "began".

        Raises:
            OSError: It cannot be written.
        """

    def add(self, line: dict[str, Any], staleness: Sequence[int]) -> None:
        """Add a line.

        Args:
            line: All fields of a line of metrics.jsonl.
            staleness: Number of updates by their staleness, since the start of the attempt.

        Raises:
            OSError: It cannot be written.
        """

    def thinned(self) -> None:
        """Follow a change of old lines of metrics.jsonl.

        Raises:
            OSError: It cannot be written.
        """

    def close(self) -> None:
        """Write what is not written yet, at the end of the attempt.

        Raises:
            OSError: It cannot be written.
        """


def make_logs(names: Sequence[str], run: Supervised, start_step: int) -> list[MetricsLog]:
    """Return the logs with these names; nothing is written yet.

    Args:
        names: Names as in monitor.log, which `MonitorConfig.check` has accepted.
        run: The run and this attempt of it.
        start_step: Step of the run at which the attempt begins.
    """
    found: list[MetricsLog] = []
    if "csv" in names:
        from mpips.scheduler.csv_log import CsvLog

        found.append(CsvLog(run.folder))
    if "tensorboard" in names:
        from mpips.scheduler.event_log import EventLog

        found.append(EventLog(run.folder, run.generation, start_step))
    return found
