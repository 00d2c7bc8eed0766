"""One fit: what a worker does with batches, tables and clocks.

Servers have the change of all weights and biases since the beginning of the fit, in rows of an embedding
table (see layout.py). Tables must be declared before a job starts, and the fits of a script are known only
as they come; but an embedding table has rows for any keys. So a fit takes keys of its own, whose rows begin
with 0 and with a new state of the optimizer, and adds what it pulls to its initial values.

In each step all workers take the same batch. A worker pulls, computes the gradient of its share of the
samples, pushes it and ends its clock. Its push is the sum over its share, divided by the number of samples
of the batch and multiplied by the number of workers; under BSP servers apply the mean over the workers,
which is the mean over the batch. A worker without a sample also pushes, since the mean counts the pushes.

The loss of each epoch is a row of a second table, under BSP, to which all workers push their sums. So all
workers have equal losses and end a fit at the same epoch, and a worker that runs a part of the script again
after a restart finds the losses of complete epochs there.

In the first clock of a fit all workers push digests of its arguments to that table. When the clock has ended,
the mean of all digests must be that of each worker. This also holds after a restart of the script.

After a restart under BSP a worker can be one clock behind the others, in an earlier fit. It must come to its
step without them: they wait in their pulls for its clock. So a fit contains no gather and no barrier. Where
all workers must wait for all, in SSP and ASP at the end of a fit, they end a clock and pull from the table of
BSP. A worker that is past this place after a restart ends no such clock again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips.data.shares import bounds
from mpips.errors import ConfigError
from mpips.model.consistency import BSP, Consistency
from mpips.model.optimizer import SGD, Optimizer
from mpips.model.table import EmbeddingTable
from mpips.sklearn.fit import FitArguments, LossCurve, Trained, TrainingPlace
from mpips.sklearn.layout import DIM
from mpips.worker.worker import Worker

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

LOSSES = "sklearn.losses"
_KEYS_OF_A_FIT = 1 << 32
# Rows of the second table: number of workers, parts of the digest, then the losses. The parts are so small
# that float32 represents the sum of those of 65535 workers exactly.
_DIGEST_ROWS = np.arange(7)
_DIGEST_BITS = 8
_FIRST_LOSS = 8


def table_name(rule: Optimizer) -> str:
    """Return the name of the table whose rows a rule updates."""
    return f"sklearn.{rule.name}"


def table_of(rule: Optimizer, consistency: Consistency) -> EmbeddingTable:
    """Return the table of the values of fits with a rule."""
    return EmbeddingTable(table_name(rule), DIM, optimizer=rule, consistency=consistency)


def losses_table() -> EmbeddingTable:
    """Return the table of the losses: with the rate 1 a row is the sum of all pushes, negated."""
    return EmbeddingTable(LOSSES, 1, optimizer=SGD(1.0), consistency=BSP(reduce="sum"))


class Training:
    """A worker's part of one fit."""

    def __init__(
        self,
        worker: Worker,
        fit: FitArguments,
        number: int,
        first: int,
        place: TrainingPlace | None,
        digest: int | None,
        end_clock: Callable[[TrainingPlace], object],
        note_step: Callable[[int, int, float, float], object] | None = None,
    ) -> None:
        """Train nothing yet.

        Args:
            worker: The worker, of a job with the tables of this module.
            fit: The arguments, equal on all workers.
            number: Number of the fit in its job, from 1.
            first: Number of the fit whose rows this one uses: its own, or an earlier one that it continues.
            place: Where a restart continues; None: the fit was complete before the restart.
            digest: That of the arguments; None: the job cannot be restarted, and no table has it.
            end_clock: Ends a clock of the worker, behind which the fit is at the given place.
            note_step: Receives each step; see FitsProgress.note_step. None: steps are not noted.
        """
        self._worker = worker
        self._fit = fit
        self._number = number
        self._place = place
        self._digest = digest
        self._end_clock = end_clock
        self._note_step = note_step
        self._handle = worker.table(table_name(fit.settings.rule))
        self._losses = worker.table(LOSSES)
        self._keys: Int64 = first * _KEYS_OF_A_FIT + np.arange(fit.layout.n_rows, dtype=np.int64)
        self._n_samples = int(fit.x.shape[0])
        self._n_batches = -(-self._n_samples // fit.settings.batch_size)
        self._has_trained = False  # in this launch

    def run(self) -> Trained:
        """Train, and return the values at the end. Collective over workers; blocks.

        Raises:
            ConfigError: Another worker, or the script before a restart, has other arguments.
            ValueError: The loss is not finite.
        """
        settings = self._fit.settings
        if self._place != TrainingPlace():
            self._check_digests("before the restart", "or begin a new run (resume='never')")
        curve = LossCurve(settings.tol, settings.n_iter_no_change)
        while not curve.has_converged and len(curve.losses) < self._fit.n_epochs:
            epoch = len(curve.losses)
            if self._place is not None and epoch >= self._place.epoch:
                self._train(epoch, self._place.batch if epoch == self._place.epoch else 0)
            loss = float(self._losses.pull(self._row(_FIRST_LOSS + epoch))[0, 0])
            curve.add(loss)
        return Trained(self._final(), curve)

    def _train(self, epoch: int, first_batch: int) -> None:
        """Train on the batches of an epoch, from a batch on."""
        settings = self._fit.settings
        order: NDArray[Any] = np.arange(self._n_samples)
        if settings.shuffle:
            rng = np.random.default_rng([self._fit.seed, 1 + self._fit.n_before + epoch])
            order = rng.permutation(self._n_samples)
        for batch in range(first_batch, self._n_batches):
            start = batch * settings.batch_size
            self._step(epoch, order[start : start + settings.batch_size])
            is_last = batch == self._n_batches - 1
            self._end_clock(
                TrainingPlace(epoch + 1) if is_last else TrainingPlace(epoch, batch + 1)
            )
            if self._place == TrainingPlace() and epoch == batch == 0:
                self._check_digests(
                    "on another worker",
                    "and all workers pass the same X, y, sample_weight and parameters, and as random_state a "
                    "number or None",
                )

    def _step(self, epoch: int, samples: NDArray[Any]) -> None:
        """Pull, compute the gradient on this worker's share of a batch, push it and the loss."""
        fit, worker = self._fit, self._worker
        first, last = bounds(len(samples), worker.index, worker.n_workers)
        # Read the samples before the pull: the servers may still be applying the last updates.
        own = samples[first:last]
        x, targets, weights = fit.x[own], fit.targets[own], fit.weights[own]
        factor = worker.n_workers / len(samples)
        pulled = self._handle.pull(self._keys)
        values, gradient = fit.base + pulled, np.zeros_like(pulled)
        # The loss, or the check of a push, finds an overflow.
        with np.errstate(over="ignore", invalid="ignore"):
            loss_sum = fit.add_gradient(values, x, targets, weights, factor, gradient)
            loss_sum += fit.add_penalty(values, gradient) / factor
        if not np.isfinite(loss_sum):
            raise ValueError(
                f"the loss is {loss_sum} in epoch {epoch} of the fit: scale the features (StandardScaler), "
                "or use a smaller learning_rate"
            )
        if not self._has_trained:
            self._begin()
        self._handle.push(self._keys, gradient, base=pulled)
        mean = np.array([[-loss_sum / self._n_samples]], np.float32)
        self._losses.push(self._row(_FIRST_LOSS + epoch), mean)
        if self._note_step is not None:
            self._note_step(epoch, last - first, loss_sum, fit.settings.rule.lr)

    def _begin(self) -> None:
        """Set the optimizer, and push the digests in the first clock. Before the pushes of a clock."""
        self._has_trained = True
        self._handle.set_optimizer(self._fit.settings.rule)
        if self._place == TrainingPlace() and self._digest is not None:
            own = -np.array(self._digest_parts(), np.float32)
            self._losses.push(self._row(_DIGEST_ROWS), own[:, np.newaxis])

    def _final(self) -> Float32:
        """Return the values at the end of the fit, equal on all workers.

        Under BSP the pull sees all clocks before it, and no other. Else the values are those of a moment at
        which the servers have all pushes of this fit, and no worker has begun the next one.
        """
        is_bsp = isinstance(self._fit.settings.consistency, BSP)
        if not is_bsp:
            self._meet(1)
        pulled: Float32 = self._handle.pull(self._keys)
        if not is_bsp:
            self._meet(2)
        return self._fit.base + pulled

    def _meet(self, n_ends: int) -> None:
        """Wait until all workers have come here and the servers have their pushes."""
        if self._place is None or self._place.n_ends >= n_ends:
            return
        self._worker.flush()
        self._end_clock(TrainingPlace(self._fit.n_epochs, 0, n_ends))
        self._losses.pull(self._row(0))

    def _check_digests(self, where: str, cure: str) -> None:
        """Raise ConfigError if the mean of the digests of all workers is not that of this worker's fit."""
        if self._digest is None:
            return
        found = self._losses.pull(self._row(_DIGEST_ROWS))[:, 0]
        if (found != found[0] * np.array(self._digest_parts())).any() or not found[0]:
            raise ConfigError(
                f"fit {self._number} of this script has other data or parameters than {where}: a script must "
                f"make the same fits in the same order, {cure}"
            )

    def _digest_parts(self) -> list[int]:
        """Return 1 and the parts of the digest."""
        assert self._digest is not None
        shifts = (_DIGEST_BITS * int(i) for i in _DIGEST_ROWS[:-1])
        return [1, *(self._digest >> shift & (1 << _DIGEST_BITS) - 1 for shift in shifts)]

    def _row(self, row: int | Int64) -> Int64:
        """Return the keys of rows of this fit in the second table."""
        return np.atleast_1d(np.int64(self._number * _KEYS_OF_A_FIT) + row)
