"""Factorization machine of second order (Rendle, "Factorization Machines", ICDM 2010).

The logit is bias + sum_i w_i x_i + sum_{i<j} <v_i, v_j> x_i x_j, where the last sum is computed as
half of |sum_i v_i x_i|^2 - sum_i |v_i x_i|^2, in time linear in the number of entries.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from mpips.data.dataset import Batch
from mpips.data.info import DataInfo
from mpips.data.metrics import BINARY_METRICS
from mpips.data.moments import Moments
from mpips.model.optimizer import FTRL, Adagrad
from mpips.model.table import EmbeddingTable, Table
from mpips.tasks.base import Float32, Schedule, StepResult, Task, Worker
from mpips.tasks.features import Entries, SparseFeatures
from mpips.tasks.logistic import (
    Logistic,
    linear_gradient,
    linear_logits,
    prior_gradient,
    with_bias,
)
from mpips.tasks.losses import logistic_loss, sigmoid
from mpips.tasks.options import INITIAL_ACCUMULATOR, Count, Penalty, Rate


class FmOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the task `fm`.

    Attributes:
        dim: Length of a factor.
        learning_rate: Of the linear weights' FTRL.
        beta: Of FTRL: damps the first steps.
        l1: Of the linear weights, as in the task `logistic`.
        prior: Precision of the linear weights' normal prior, as in the task `logistic`.
        factor_learning_rate: Of the factors' Adagrad.
        factor_prior: Precision of the factors' normal prior.
        init_std: Of the factors' normal initial values; not 0, where all gradients are 0.
    """

    dim: Count = 8
    learning_rate: Rate = 0.5
    beta: Rate = 0.03
    l1: Penalty = 0.0
    prior: Penalty = 1.0
    factor_learning_rate: Rate = 0.05
    factor_prior: Penalty = 20.0
    init_std: Rate = 0.01


class FactorizationMachine(Task):
    """Linear weights in one table, factors in another; the bias is key -1 of the first."""

    name = "fm"
    Options = FmOptions
    default_epochs = 30
    default_batch_size = 32
    optimizer_options: ClassVar = {
        **Logistic.optimizer_options,
        "factor_learning_rate": ("factor", "lr"),
    }
    metrics = tuple(BINARY_METRICS)

    def __init__(self, info: DataInfo, options: FmOptions, seed: int) -> None:
        """Check that the data suits the task; see `Task`."""
        self._features = SparseFeatures(info, self.name)
        self._options = options
        self._schedule = Schedule(self.default_epochs, self.default_batch_size)

    def schedule(self, schedule: Schedule) -> None:
        """Take note of the run's length, which `l1` needs."""
        self._schedule = schedule

    def tables(self) -> list[Table]:
        """Return `weight`, rows of one value, and `factor`, rows of `dim` values."""
        own = self._options
        l1 = own.l1 * self._schedule.epochs_per_sample("weight")
        linear = FTRL(lr=own.learning_rate, beta=own.beta, l1=l1)
        factor = Adagrad(lr=own.factor_learning_rate, initial_accumulator=INITIAL_ACCUMULATOR)
        init = f"normal({own.init_std!r})"
        return [
            EmbeddingTable("weight", 1, optimizer=linear),
            EmbeddingTable("factor", own.dim, optimizer=factor, init=init),
        ]

    def prepare(self, worker: Worker, moments: Moments) -> None:
        """Take the scale of the features."""
        self._features.prepare(moments)

    def prefetch(self, worker: Worker, batch: Batch) -> None:
        """Announce the rows of a batch."""
        keys = self._features.announce(batch)
        worker.table("weight").prefetch(with_bias(keys))
        worker.table("factor").prefetch(keys)

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """Pull both tables, compute the gradients, push both."""
        entries = self._features.of(batch)
        keys = with_bias(entries.keys)
        rows, factors = worker.table("weight").pull(keys), worker.table("factor").pull(entries.keys)
        interactions, sums = _interactions(entries, factors)
        logits = linear_logits(entries, rows) + interactions
        loss_sum, error = logistic_loss(logits, batch.labels)

        error *= np.float32(batch.weight / batch.n)
        gradient = linear_gradient(entries, error)
        gradient[1:] += prior_gradient(entries, rows[1:], self._options.prior, batch)
        worker.table("weight").push(keys, gradient, base=rows)
        factor_gradient = _factor_gradient(entries, factors, sums, error)
        factor_gradient += prior_gradient(entries, factors, self._options.factor_prior, batch)
        worker.table("factor").push(entries.keys, factor_gradient, base=factors)
        return StepResult(loss_sum, batch.n)

    def predict(self, worker: Worker, batch: Batch) -> Float32:
        """Return the probability of class 1."""
        return sigmoid(self.logits(worker, batch))

    def logits(self, worker: Worker, batch: Batch) -> Float32:
        """Return the logits of class 1; a feature that was never trained on takes no part in pairs."""
        entries = self._features.of_unseen(batch)
        rows = worker.table("weight").pull(with_bias(entries.keys))
        factors = worker.table("factor").pull(entries.keys)
        if self._features.hashed:
            # A row that is as it was made has taken no update.
            untrained = (factors == worker.table("factor").initial(entries.keys)).all(axis=1)
            factors[untrained] = 0
        interactions, _ = _interactions(entries, factors)
        return linear_logits(entries, rows) + interactions

    def report(self) -> str:
        """Return how features were scaled."""
        return self._features.report()


def _interactions(entries: Entries, factors: Float32) -> tuple[Float32, Float32]:
    """Return the second-order term, shape (n,), and sum_i v_i x_i, shape (n, dim)."""
    scaled = factors[entries.key_ids] * entries.values[:, np.newaxis]
    sums = entries.sum_by_row(scaled)
    squares = entries.sum_by_row((scaled * scaled).sum(axis=1))
    return ((sums * sums).sum(axis=1) - squares) / 2, sums


def _factor_gradient(entries: Entries, factors: Float32, sums: Float32, error: Float32) -> Float32:
    """Return the gradient by the factors, shape (m, dim).

    By v_i it is the sum over the samples that hold i of error * x_i * (sums - v_i x_i).
    """
    by_value = error[entries.row_ids] * entries.values
    from_others = entries.sum_by_key(by_value[:, np.newaxis] * sums[entries.row_ids])
    own = entries.sum_by_key(by_value * entries.values)
    return from_others - own[:, np.newaxis] * factors
