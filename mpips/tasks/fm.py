"""Factorization machine of second order (Rendle, "Factorization Machines", ICDM 2010).

The logit is bias + sum_i w_i x_i + sum_{i<j} <v_i, v_j> x_i x_j. The last sum is computed as half of
|sum_i v_i x_i|^2 - sum_i |v_i x_i|^2, in time linear in the number of entries.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from mpips.data.dataset import Batch
from mpips.data.info import DataInfo
from mpips.data.metrics import BINARY_METRICS
from mpips.data.moments import Moments
from mpips.errors import DataError
from mpips.model.optimizer import FTRL, Adagrad
from mpips.model.table import EmbeddingTable, Table
from mpips.tasks.base import Float32, Schedule, StepResult, Task, Worker
from mpips.tasks.features import Entries, SparseFeatures
from mpips.tasks.linear import linear_gradient, linear_logits, prior_gradient, with_bias
from mpips.tasks.logistic import Logistic
from mpips.tasks.losses import logistic_loss, sigmoid
from mpips.tasks.options import INITIAL_ACCUMULATOR, Count, Penalty, Rate
from mpips.tasks.proposals import FACTORS, PENALTY, RATE, Proposal, among, around


class FmOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[options] of the task `fm`. For `l1` and `prior` see `mpips.tasks.logistic`."""

    dim: Annotated[Count, Meta(description="Length of a factor.")] = 8
    learning_rate: Annotated[
        Rate, Meta(description="Learning rate of FTRL, which optimizes the linear weights.")
    ] = 0.5
    beta: Annotated[Rate, Meta(description="beta of FTRL, which damps the first steps.")] = 0.03
    l1: Annotated[
        Penalty,
        Meta(
            description="The summed loss of all samples has l1 times the sum of the absolute linear weights "
            "added, which makes weights exactly 0."
        ),
    ] = 0.0
    prior: Annotated[
        Penalty,
        Meta(
            description="Precision of the normal prior of the linear weights, as in the task logistic."
        ),
    ] = 1.0
    factor_learning_rate: Annotated[
        Rate, Meta(description="Learning rate of Adagrad, which optimizes the factors.")
    ] = 0.05
    factor_prior: Annotated[
        Penalty, Meta(description="Precision of the normal prior of the factors.")
    ] = 20.0
    # With all factors 0, all their gradients are 0.
    init_std: Annotated[Rate, Meta(description="Standard deviation of the initial factors.")] = 0.01


class FactorizationMachine(Task):
    """Linear weights in one table, factors in another; the bias is key -1 of the first.

    Attributes:
        features: Scale of the features.
    """

    name = "fm"
    Options = FmOptions
    uses_weights = True
    default_epochs = 30
    default_batch_size = 32
    optimizer_options: ClassVar = {
        **Logistic.optimizer_options,
        "factor_learning_rate": ("factor", "lr"),
    }
    metrics = tuple(BINARY_METRICS)

    def __init__(self, info: DataInfo, options: FmOptions, seed: int) -> None:
        """Check that the data suits the task; see `Task`."""
        self.features = SparseFeatures(info, self.name)
        if info.n_classes != 2:
            others = "'wide_deep'" if info.n_fields else "'logistic', 'softmax' or 'mlp'"
            raise DataError(
                f"task '{self.name}' takes two classes, the data has {info.n_classes}; use task {others} for "
                "more"
            )
        self._options = options
        self._schedule = Schedule(self.default_epochs, self.default_batch_size)

    def schedule(self, schedule: Schedule) -> None:
        """Store the length of the run, which the option `l1` needs."""
        self._schedule = schedule

    def prepare(self, worker: Worker, moments: Moments) -> None:
        """Take the scale of the features."""
        self.features.prepare(moments)

    def tables(self) -> list[Table]:
        """Return `weight`, with rows of one value, and `factor`, with rows of `dim` values."""
        own = self._options
        l1 = own.l1 * self._schedule.epochs_per_sample("weight")
        linear = FTRL(lr=own.learning_rate, beta=own.beta, l1=l1)
        factor = Adagrad(lr=own.factor_learning_rate, initial_accumulator=INITIAL_ACCUMULATOR)
        init = f"normal({own.init_std!r})"
        return [
            EmbeddingTable("weight", 1, optimizer=linear),
            EmbeddingTable("factor", own.dim, optimizer=factor, init=init),
        ]

    def proposals(self) -> list[Proposal]:
        """Propose rate, prior and length of the factors, and the prior of the linear weights."""
        own = self._options
        return [
            around("factor_learning_rate", own.factor_learning_rate, 10, RATE),
            around("factor_prior", own.factor_prior or 20.0, 20, PENALTY),
            around("prior", own.prior or 1.0, 30, PENALTY),
            among("dim", own.dim, [4, 8, 16, 32], FACTORS),
        ]

    def prefetch(self, worker: Worker, batch: Batch) -> None:
        """Prefetch the rows of a batch in both tables."""
        keys = self.features.announce(batch)
        worker.table("weight").prefetch(with_bias(keys))
        worker.table("factor").prefetch(keys)

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """Pull both tables, compute the gradients, push both."""
        entries = self.features.of(batch)
        keys = with_bias(entries.keys)
        rows, factors = worker.table("weight").pull(keys), worker.table("factor").pull(entries.keys)
        second_order, sums = interactions(entries, factors)
        logits = linear_logits(entries, rows) + second_order
        loss_sum, error = logistic_loss(logits, batch.labels, batch.weights)

        # Turn the summed gradient into the weighted mean over the batch.
        error *= np.float32(batch.weight / batch.n)
        gradient = linear_gradient(entries, error)
        gradient[1:] += prior_gradient(entries, rows[1:], self._options.prior, batch)
        worker.table("weight").push(keys, gradient, base=rows)
        by_factors = factor_gradient(entries, factors, sums, error)
        by_factors += prior_gradient(entries, factors, self._options.factor_prior, batch)
        worker.table("factor").push(entries.keys, by_factors, base=factors)
        return StepResult(loss_sum, batch.n)

    def predict(self, worker: Worker, batch: Batch) -> Float32:
        """Return the probability of class 1, shape (n,)."""
        return sigmoid(self.logits(worker, batch))

    def logits(self, worker: Worker, batch: Batch) -> Float32:
        """Pull the rows of the batch and return the logits of class 1, float32, shape (n,).

        A feature that no training sample contains does not contribute to the sum over pairs.
        """
        entries = self.features.of_unseen(batch)
        rows = worker.table("weight").pull(with_bias(entries.keys))
        factors = worker.table("factor").pull(entries.keys)
        if self.features.hashed:
            # A row that equals its initial value has received no update.
            untrained = (factors == worker.table("factor").initial(entries.keys)).all(axis=1)
            factors[untrained] = 0
        second_order, _ = interactions(entries, factors)
        return linear_logits(entries, rows) + second_order

    def report(self) -> str:
        """Return how the features were scaled."""
        return self.features.report()


def interactions(entries: Entries, factors: Float32) -> tuple[Float32, Float32]:
    """Return the second-order term, float32, shape (n,), and sum_i v_i x_i, shape (n, dim)."""
    scaled = factors[entries.key_ids] * entries.values[:, np.newaxis]
    sums = entries.sum_by_row(scaled)
    squares = entries.sum_by_row((scaled * scaled).sum(axis=1))
    return ((sums * sums).sum(axis=1) - squares) / 2, sums


def factor_gradient(entries: Entries, factors: Float32, sums: Float32, error: Float32) -> Float32:
    """Return the gradient by the factors, float32, shape (m, dim).

    The gradient by v_i is the sum of error * x_i * (sums - v_i x_i) over the samples that contain i.
    """
    by_value = error[entries.row_ids] * entries.values
    from_others = entries.sum_by_key(by_value[:, np.newaxis] * sums[entries.row_ids])
    own = entries.sum_by_key(by_value * entries.values)
    return from_others - own[:, np.newaxis] * factors
