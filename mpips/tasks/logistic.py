"""Sparse logistic regression: a weight for each key that occurs, optimized by FTRL-Proximal.

McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from mpips.data.dataset import Batch
from mpips.model.optimizer import FTRL
from mpips.model.table import EmbeddingTable, Table
from mpips.tasks.base import Float32, Keys, StepResult, Worker
from mpips.tasks.classifiers import SparseClassifier
from mpips.tasks.features import Entries
from mpips.tasks.losses import logistic_loss
from mpips.tasks.options import Penalty, Rate

# The bias is a row of the table; features have keys from 0 on.
BIAS_KEY = np.int64(-1)
# Updates that a run needs. Larger batches take less time for a sample, and fewer updates lose quality: on
# w6a, 30 epochs, AUC is 0.9889 with 11,500 updates, 0.9885 with 2,900, 0.9873 with 1,400, 0.9849 with 720.
_LEAST_UPDATES = 1900
_MOST_SAMPLES = 512  # of a batch; larger ones are hardly faster


class LogisticOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[options] of the task `logistic`.

    The penalty of `l1` is l1 times the sum of the absolute values of the weights, added to the summed loss of
    all samples. FTRL compares its own lambda_1 (McMahan et al.) with the sum of all gradients that it has
    received: means over batches, over all epochs. So lambda_1 is set to
    l1 * epochs / (batch size * workers per update). With this value the threshold at the end of the run is
    that of the penalty, for any batch size and any number of epochs and workers. The bias has the same
    threshold.

    The penalty of `prior` is prior / 2 times the sum of squared weights without the bias, added to the summed
    loss of all samples. Its meaning does not depend on the number of samples, workers or steps.
    """

    learning_rate: Annotated[Rate, Meta(description="Learning rate of FTRL.")] = 0.5
    beta: Annotated[Rate, Meta(description="beta of FTRL, which damps the first steps.")] = 0.03
    l1: Annotated[
        Penalty,
        Meta(
            description="The summed loss of all samples has l1 times the sum of the absolute weights added, "
            "which makes weights exactly 0."
        ),
    ] = 0.0
    prior: Annotated[
        Penalty,
        Meta(
            description="Precision of the normal prior of the weights: the summed loss of all samples has "
            "prior / 2 times the sum of squared weights added. The bias has no prior."
        ),
    ] = 1.0


class Logistic(SparseClassifier):
    """Probability sigmoid(bias + sum of weight[key] * value)."""

    name = "logistic"
    Options = LogisticOptions
    uses_weights = True
    default_epochs = 30
    default_batch_size = 32
    optimizer_options: ClassVar = {
        "learning_rate": ("weight", "lr"),
        "beta": ("weight", "beta"),
        "l1": ("weight", "l1"),
    }

    def suitable_batch_size(self, n_workers: int, n_epochs: int) -> int:
        """Return the greatest power of two with which a run has `_LEAST_UPDATES` updates under BSP."""
        most = self._n_samples * n_epochs // (_LEAST_UPDATES * n_workers)
        size = self.default_batch_size
        while 2 * size <= min(most, _MOST_SAMPLES):
            size *= 2
        return size

    def tables(self) -> list[Table]:
        """Return `weight`, with rows of one value; the bias has key -1."""
        own = self._options
        l1 = own.l1 * self._schedule.epochs_per_sample("weight")
        optimizer = FTRL(lr=own.learning_rate, beta=own.beta, l1=l1)
        return [EmbeddingTable("weight", 1, optimizer=optimizer)]

    def prefetch(self, worker: Worker, batch: Batch) -> None:
        """Prefetch the rows of a batch."""
        worker.table("weight").prefetch(with_bias(self._features.announce(batch)))

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """Pull, compute the gradient, push."""
        entries = self._features.of(batch)
        keys = with_bias(entries.keys)
        rows = worker.table("weight").pull(keys)
        loss_sum, error = logistic_loss(linear_logits(entries, rows), batch.labels, batch.weights)

        # Turn the summed gradient into the weighted mean over the batch.
        error *= np.float32(batch.weight / batch.n)
        gradient = linear_gradient(entries, error)
        gradient[1:] += prior_gradient(entries, rows[1:], self._options.prior, batch)
        worker.table("weight").push(keys, gradient, base=rows)
        return StepResult(loss_sum, batch.n)

    def logits(self, worker: Worker, batch: Batch) -> Float32:
        """Pull the rows of the batch and return the logits of class 1, float32, shape (n,)."""
        entries = self._features.of_unseen(batch)
        return linear_logits(entries, worker.table("weight").pull(with_bias(entries.keys)))


def with_bias(keys: Keys) -> Keys:
    """Return the keys with the key of the bias in front, int64, shape (1 + n,)."""
    return np.concatenate(([BIAS_KEY], keys))


def linear_logits(entries: Entries, rows: Float32) -> Float32:
    """Return bias + sum of weight * value, float32, shape (n,); `rows`: shape (1 + m, 1), the bias first."""
    products = rows[1:, 0].take(entries.key_ids)
    products *= entries.values
    logits = entries.sum_by_row(products)
    logits += rows[0, 0]
    return logits


def linear_gradient(entries: Entries, error: Float32) -> Float32:
    """Return the gradient by the rows, shape (1 + m, 1), from `error`, that by the logits, shape (n,)."""
    products = error.take(entries.row_ids)
    products *= entries.values
    gradient = np.empty((1 + len(entries.keys), 1), np.float32)
    gradient[0] = error.sum()
    gradient[1:, 0] = entries.sum_by_key(products)
    return gradient


def prior_gradient(entries: Entries, rows: Float32, prior: float, batch: Batch) -> Float32:
    """Return the gradient of the penalty by the rows, shape (m, dim).

    A batch adds the part of a key's penalty that equals its part of the key's entries in the training data.
    Over an epoch the parts sum to the whole penalty, and no key needs a push in a batch that does not contain
    it.
    """
    shares: Float32 = np.float32(prior * batch.weight / batch.n) * entries.shares
    return shares[:, np.newaxis] * rows
