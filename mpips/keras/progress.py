"""The automatic reports of a Keras script: epoch, part of the run that is done, samples, rate, loss.

    epoch       of the current fit, behind the epochs of earlier fits; unknown outside of a fit
    n_epochs    of all fits so far; a fit that begins at an epoch beyond (initial_epoch) continues the count
    samples     this worker's shares of the batches
    rate        that of the optimizer at the newest step
    loss        of compute_loss in the step, on this worker's share, with regularizers. Unknown if train_step
                does not call it once, and where several models step outside of a fit: none is the loss then

A report has the mean over its steps; see mpips.session.library_progress.
"""

from __future__ import annotations

from typing import Any

from mpips.session.library_progress import Known, LibraryProgress
from mpips.session.script import Script
from mpips.torch.losses import MOST, Term, WaitingLosses, term_of


class FitProgress(LibraryProgress):
    """The reports of one Keras script. No method blocks, but for a device whose losses are read."""

    def __init__(self, script: Script) -> None:
        """Report nothing yet."""
        super().__init__(script)
        self._waiting = WaitingLosses()
        self._terms: list[Term] = []  # losses of the current step
        self._samples = 0  # since the report before
        self._rates: dict[int, float] = {}  # at the newest step of each model
        self._is_within = False  # a fit
        self._offset = 0  # epochs of earlier fits
        self._n_epochs = 0  # of all fits so far
        self._n_batches: int | None = None  # of an epoch of the fit; None: unknown
        self._epoch = 0  # of the fit
        self._batch = 0  # complete batches of this epoch

    def begin_fit(self, first: int, n_epochs: int, n_batches: int | None) -> None:
        """Count the epochs of a fit, also of one that was complete before a restart.

        Args:
            first: Index of its first epoch.
            n_epochs: Index behind its last epoch, as in `fit(epochs=...)`.
            n_batches: Batches of an epoch; None: unknown.
        """
        self.flush()
        self._offset = self._n_epochs - first if first < self._n_epochs else 0
        self._n_epochs = max(self._n_epochs, self._offset + n_epochs)
        self._n_batches = n_batches
        self._is_within = True
        self._rates.clear()  # the fit trains one model

    def end_fit(self) -> None:
        """Send what is known of the fit."""
        self.flush()
        self._is_within = False

    def note_loss(self, loss: Any) -> None:
        """Note the loss of the current step; None: the model has none."""
        # A second loss of the step makes it unknown.
        if loss is not None and self.wants_loss and self._waiting.n_steps < MOST:
            self._terms.append(term_of(loss))

    def note_step(
        self, model: int, samples: int, rate: float | None, epoch: int, batch: int
    ) -> None:
        """Note a step.

        Args:
            model: Identifies its model.
            samples: Samples of this worker's share; 0: unknown, or none.
            rate: Learning rate of the step.
            epoch: Epoch of the fit.
            batch: Complete batches of this epoch.
        """
        terms, self._terms = self._terms, []
        if not self.is_observed:
            return
        self.n_steps += 1
        if rate is not None:
            self._rates[model] = rate
        if next(iter(self._rates), model) == model:
            self._samples += samples  # another model trains on the same
        self._epoch, self._batch = epoch, batch
        if len(terms) == 1:
            self._waiting.add(terms)

    def known(self) -> Known:
        """See LibraryProgress."""
        samples, self._samples = self._samples, 0
        loss = self._waiting.read()
        if len(self._rates) > 1 or not self.wants_loss:
            loss = None
        rates = list(self._rates.values())
        if not self._is_within:
            return Known(samples=samples, loss=loss, rates=rates)
        epoch = self._offset + self._epoch
        part = min(self._batch / self._n_batches, 1.0) if self._n_batches else 0.0
        share = min((epoch + part) / self._n_epochs, 1.0) if self._n_epochs else 0.0
        return Known(min(epoch, self._n_epochs - 1), self._n_epochs, share, samples, loss, rates)
