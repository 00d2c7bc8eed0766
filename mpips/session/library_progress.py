"""The automatic reports of a script whose library knows its loop: torch, Keras, JAX or scikit-learn.

The library notes each step, and the first step that ends an interval later sends a report of what is known by
then. Nothing is sent in a job whose reports have no reader. The loss is known only where the library has it;
a report has its mean, and the mean over the reports of all workers is weighted by samples. Reports of the
script by `mpips.report` precede, see reporting.py.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from mpips.mpi.messages import ReportDetails

if TYPE_CHECKING:
    from mpips.session.script import Script
    from mpips.worker.worker import Worker

INTERVAL_S = 0.25  # s between two reports
MOST_RATES = 16  # learning rates that are reported


class Known(NamedTuple):
    """The facts that a library has of the steps since the report before.

    Attributes:
        epoch: Index of the current epoch; None: unknown.
        n_epochs: Epochs of the run; 0: unknown.
        share: Part of the run that this worker has done, 0 to 1.
        samples: Samples of this worker; 0: unknown.
        loss: Mean loss; None: unknown.
        rates: Learning rates of the newest step; empty: unknown.
    """

    epoch: int | None = None
    n_epochs: int = 0
    share: float = 0.0
    samples: int = 0
    loss: float | None = None
    rates: Sequence[float] = ()


class LibraryProgress(ABC):
    """Reports of one script. A subclass is that of one library. No method blocks, but for `known`.

    Attributes:
        n_steps: Steps since the report before.
    """

    def __init__(self, script: Script) -> None:
        """Report nothing yet."""
        self.n_steps = 0
        self._script = script
        self._worker: Worker | None = None  # while the script is observed
        self._next = 0.0  # monotonic s from which a report is due

    def begin(self, worker: Worker) -> None:
        """Begin at the start of the job, if the reports have a reader."""
        if self._script.is_observed:
            self._worker = worker
            self._next = time.monotonic() + INTERVAL_S
            self._script.reports.flush = self.flush

    @property
    def is_observed(self) -> bool:
        """True if the reports have a reader, from `begin` on."""
        return self._worker is not None

    @property
    def wants_loss(self) -> bool:
        """True if the reports have a reader, and no losses of the script replace those of the library."""
        return self._worker is not None and not self._script.reports.has_own

    def send_if_due(self) -> None:
        """Send a report, if there was a step and the interval is over. Cheap: called behind each step."""
        if self.n_steps and time.monotonic() >= self._next:
            self.flush()

    def flush(self) -> None:
        """Send what has not been sent."""
        if self._worker is None or not self.n_steps:
            return
        self._next = time.monotonic() + INTERVAL_S
        n_steps, self.n_steps = self.n_steps, 0
        known = self.known()
        weight = 0 if known.loss is None else known.samples or n_steps
        rates = list(known.rates[:MOST_RATES])
        rates = rates[:1] if len(set(rates)) == 1 else rates
        details = ReportDetails(
            loss_weight=weight,
            n_epochs=known.n_epochs,
            share=known.share,
            rates=rates,
            by_library=True,
        )
        loss_sum = 0.0 if known.loss is None else known.loss * weight
        self._script.reports.library_report(
            self._worker, known.epoch, known.samples, loss_sum, details
        )

    @abstractmethod
    def known(self) -> Known:
        """Return what is known of the steps since the report before, and forget samples and losses."""
