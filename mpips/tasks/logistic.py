"""Sparse logistic regression: a weight for each key that occurs, by FTRL-Proximal.

McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from mpips.data.dataset import Batch
from mpips.data.info import DataInfo
from mpips.data.metrics import BINARY_METRICS
from mpips.data.moments import Moments
from mpips.model.optimizer import FTRL
from mpips.model.table import EmbeddingTable, Table
from mpips.tasks.base import Float32, Keys, Schedule, StepResult, Task, Worker
from mpips.tasks.features import Entries, SparseFeatures
from mpips.tasks.losses import logistic_loss, sigmoid
from mpips.tasks.options import Penalty, Rate

# The bias is a row like any other; features have keys from 0 on.
BIAS_KEY = np.int64(-1)


class LogisticOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the task `logistic`.

    Attributes:
        learning_rate: Of FTRL.
        beta: Of FTRL: damps the first steps.
        l1: To the summed loss of all samples is added l1 times the sum of the weights' absolute values, which
            keeps weights at exactly 0. FTRL's own lambda_1 (McMahan et al.) is compared with the sum of all
            gradients that it has been given: means over batches, over all epochs. So it is set to
            l1 * epochs / (batch size * workers per update), with which the threshold reached at the
            end of the run is this penalty's, for any batch size and numbers of epochs and workers.
            The bias has the same threshold.
        prior: Precision of the weights' normal prior: to the summed loss of all samples is added
            prior / 2 times the sum of squared weights, the bias excepted. Its meaning does not
            depend on the number of samples, workers, or steps.
    """

    learning_rate: Rate = 0.5
    beta: Rate = 0.03
    l1: Penalty = 0.0
    prior: Penalty = 1.0


class Logistic(Task):
    """Probability sigmoid(bias + sum of weight[key] * value)."""

    name = "logistic"
    Options = LogisticOptions
    default_epochs = 30
    default_batch_size = 32
    optimizer_options: ClassVar = {
        "learning_rate": ("weight", "lr"),
        "beta": ("weight", "beta"),
        "l1": ("weight", "l1"),
    }
    metrics = tuple(BINARY_METRICS)

    def __init__(self, info: DataInfo, options: LogisticOptions, seed: int) -> None:
        """Check that the data suits the task; see `Task`."""
        self._features = SparseFeatures(info, self.name)
        self._options = options
        self._schedule = Schedule(self.default_epochs, self.default_batch_size)

    def schedule(self, schedule: Schedule) -> None:
        """Take note of the run's length, which `l1` needs."""
        self._schedule = schedule

    def tables(self) -> list[Table]:
        """Return `weight`, rows of one value; the bias has key -1."""
        own = self._options
        l1 = own.l1 * self._schedule.epochs_per_sample("weight")
        optimizer = FTRL(lr=own.learning_rate, beta=own.beta, l1=l1)
        return [EmbeddingTable("weight", 1, optimizer=optimizer)]

    def prepare(self, worker: Worker, moments: Moments) -> None:
        """Take the scale of the features."""
        self._features.prepare(moments)

    def prefetch(self, worker: Worker, batch: Batch) -> None:
        """Announce the rows of a batch."""
        worker.table("weight").prefetch(with_bias(self._features.announce(batch)))

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """Pull, compute the gradient, push."""
        entries = self._features.of(batch)
        keys = with_bias(entries.keys)
        rows = worker.table("weight").pull(keys)
        loss_sum, error = logistic_loss(linear_logits(entries, rows), batch.labels)

        error *= np.float32(batch.weight / batch.n)
        gradient = linear_gradient(entries, error)
        gradient[1:] += prior_gradient(entries, rows[1:], self._options.prior, batch)
        worker.table("weight").push(keys, gradient, base=rows)
        return StepResult(loss_sum, batch.n)

    def predict(self, worker: Worker, batch: Batch) -> Float32:
        """Return the probability of class 1."""
        return sigmoid(self.logits(worker, batch))

    def logits(self, worker: Worker, batch: Batch) -> Float32:
        """Return the logits of class 1."""
        entries = self._features.of_unseen(batch)
        return linear_logits(entries, worker.table("weight").pull(with_bias(entries.keys)))

    def report(self) -> str:
        """Return how features were scaled."""
        return self._features.report()


def with_bias(keys: Keys) -> Keys:
    """Return the keys with the bias in front."""
    return np.concatenate(([BIAS_KEY], keys))


def linear_logits(entries: Entries, rows: Float32) -> Float32:
    """Return bias + sum of weight * value, shape (n,); `rows`: (1 + m, 1), the bias first."""
    products = rows[1:, 0].take(entries.key_ids)
    products *= entries.values
    logits = entries.sum_by_row(products)
    logits += rows[0, 0]
    return logits


def linear_gradient(entries: Entries, error: Float32) -> Float32:
    """Return the gradient by the rows, shape (1 + m, 1), from that by the logits, shape (n,)."""
    products = error.take(entries.row_ids)
    products *= entries.values
    gradient = np.empty((1 + len(entries.keys), 1), np.float32)
    gradient[0] = error.sum()
    gradient[1:, 0] = entries.sum_by_key(products)
    return gradient


def prior_gradient(entries: Entries, rows: Float32, prior: float, batch: Batch) -> Float32:
    """Return the gradient of the penalty by the rows, shape (m, dim).

    A batch bears the share of a key's penalty that it holds of the key's entries: over an epoch
    that adds up to the whole, and no key needs a push without one.
    """
    shares: Float32 = np.float32(prior * batch.weight / batch.n) * entries.shares
    return shares[:, np.newaxis] * rows
