"""Reports of a script's progress: by its calls of `mpips.report`, and by the library of its loop.

The reports of the script count. From its first report of a loss on, the library of this worker reports no
losses; those of other workers do not count either, since the script may report another kind of loss, and on
one worker only (see RunTracker.report). A library counts samples until the script reports a number of them.
Samples that it has reported until then are part of those that the script reports, and are not counted again.
A library goes on to report what the script cannot: the epochs, the part of the run that is done, and the
learning rates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mpips.mpi.messages import ReportDetails

if TYPE_CHECKING:
    from mpips.worker.worker import Worker


class ScriptReports:
    """The reports of one script. No method blocks.

    Attributes:
        has_own: The script has reported a loss.
        flush: Sends what a library has not sent yet.
    """

    def __init__(self) -> None:
        """Begin without reports."""
        self.has_own = False
        self._has_samples = False  # the script has reported a number of samples
        self._library_counts = False  # a library has counted samples
        self.flush: Callable[[], object] = lambda: None
        self._n_counted = 0  # samples that a library has reported, and the script has not
        self._epoch: int | None = None  # of the newest report of a library that counts epochs

    def report(self, worker: Worker, epoch: int | None, samples: int | None, loss: float) -> None:
        """Report what the script has trained on.

        Args:
            worker: The worker.
            epoch: Index of the current epoch; None: the one that the library counts, or 0.
            samples: Number of samples since the script's report before; None: the library counts them, or
                one sample if it does not.
            loss: Mean loss of these samples.
        """
        if samples is None:
            self.flush()  # those that the library counts belong to this report
        self.has_own = True
        known = self._epoch if epoch is None else epoch
        weight = 1 if samples is None else samples
        n_new = 0
        if samples is not None or not self._library_counts:
            self._has_samples = self._has_samples or samples is not None
            n_new = max(weight - self._n_counted, 0)
            self._n_counted -= weight - n_new
        else:
            self._n_counted = 0
        details = ReportDetails(loss_weight=weight, has_epoch=known is not None)
        _send(worker, known or 0, n_new, loss * weight, details)

    def evaluated(self, worker: Worker, epoch: int | None, metrics: dict[str, float]) -> None:
        """Report an evaluation of the script; the arguments are those of `report`."""
        self.flush()
        known = self._epoch if epoch is None else epoch
        worker.report_metrics((known or 0) + 1, worker.now, metrics)

    def library_report(
        self,
        worker: Worker,
        epoch: int | None,
        samples: int,
        loss_sum: float,
        details: ReportDetails,
    ) -> None:
        """Report what a library knows, without what the script reports.

        Args:
            worker: The worker.
            epoch: Index of the current epoch; None: unknown.
            samples: Number of samples since the library's report before; 0: unknown.
            loss_sum: Sum of losses.
            details: Further parts, with the weight of `loss_sum`.
        """
        self._epoch = epoch
        details.has_epoch = epoch is not None
        if self.has_own:
            loss_sum, details.loss_weight = 0.0, 0
        if self._has_samples:
            samples = 0
        self._library_counts = self._library_counts or samples > 0
        self._n_counted += samples
        _send(worker, epoch or 0, samples, loss_sum, details)


def _send(
    worker: Worker, epoch: int, samples: int, loss_sum: float, details: ReportDetails
) -> None:
    from mpips.worker.worker import connection_of

    connection_of(worker).report(epoch, worker.now, samples, loss_sum, details)
