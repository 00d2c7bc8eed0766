"""The automatic reports of a script with fits: epoch, samples, rate and loss.

    epoch       of the current fit, behind the epochs of earlier fits. Their number is unknown, since a fit
                ends when its loss stops falling, and others may follow
    samples     this worker's shares of the batches
    rate        that of the parameters
    loss        that of loss_curve_, with the penalty

A report has the mean loss of its samples; see mpips.session.library_progress.
"""

from __future__ import annotations

from mpips.session.library_progress import Known, LibraryProgress
from mpips.session.script import Script


class FitsProgress(LibraryProgress):
    """The reports of one script with fits. No method blocks."""

    def __init__(self, script: Script) -> None:
        """Report nothing yet."""
        super().__init__(script)
        self._samples = 0  # since the report before
        self._loss_sum = 0.0  # of these samples
        self._rate = 0.0  # of the newest step
        self._before = 0  # epochs of earlier fits
        self._epoch = 0  # of the current fit

    def note_step(self, epoch: int, samples: int, loss_sum: float, rate: float) -> None:
        """Note a step.

        Args:
            epoch: Epoch of the current fit.
            samples: Samples of this worker's share of the batch.
            loss_sum: Sum of their losses.
            rate: The learning rate.
        """
        self.n_steps += self.is_observed
        self._epoch, self._rate = epoch, rate
        self._samples += samples
        self._loss_sum += loss_sum

    def end_fit(self, n_epochs: int) -> None:
        """Send what is known of a fit that has ended after `n_epochs`, here or before a restart."""
        self.flush()
        self._before += n_epochs

    def known(self) -> Known:
        """See LibraryProgress."""
        samples, loss = self._samples, None
        if samples:
            loss = self._loss_sum / samples
            self._samples, self._loss_sum = 0, 0.0
        epoch = self._before + self._epoch
        return Known(epoch, samples=samples, loss=loss, rates=[self._rate])
