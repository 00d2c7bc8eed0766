"""Logistic regression, of more than two classes softmax regression, optimized by FTRL-Proximal.

McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from mpips.data.dataset import Batch
from mpips.data.info import DataInfo
from mpips.data.moments import Moments
from mpips.model.optimizer import FTRL
from mpips.model.table import Table
from mpips.tasks.base import Float32, Schedule, StepResult, Worker
from mpips.tasks.classifiers import OutputsTask
from mpips.tasks.linear import LinearMatrix, LinearModel, LinearRows
from mpips.tasks.options import Penalty, Rate
from mpips.tasks.outputs import outputs_of
from mpips.tasks.proposals import PENALTY, RATE, Proposal, around

# Updates that a run needs. Larger batches take less time for a sample, and fewer updates lose quality: on
# w6a, 30 epochs, AUC is 0.9889 with 11,500 updates, 0.9885 with 2,900, 0.9873 with 1,400, 0.9849 with 720.
_LEAST_UPDATES = 1900
_MOST_SAMPLES = 512  # of a batch; larger ones are hardly faster
LONGER = "by default more epochs, since there are fewer samples than features"
_LEAST_SAMPLES = 8  # of a batch, where several workers divide few samples


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


class Logistic(OutputsTask):
    """Probability sigmoid(bias + sum of weight * value); of more classes, softmax of such a sum for each.

    Lists of features and words have weights in rows by key, rows of numbers in a dense table.
    """

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

    def __init__(self, info: DataInfo, options: LogisticOptions, seed: int) -> None:
        """Check that the data suits the task; see `Task`."""
        super().__init__(info, outputs_of(info, self.name, one_logit=True))
        made = LinearRows if info.kind == "sparse" else LinearMatrix
        self.model: LinearModel = made(info, self.name, self.outputs)
        self._options = options
        self._n_samples = info.n_samples_total
        self._is_long = "train.epochs" in info.chosen
        self._schedule = Schedule(self.default_epochs, self.default_batch_size)

    @classmethod
    def choose(cls, info: DataInfo, options: LogisticOptions) -> dict[str, Any]:
        """Choose more epochs where there are fewer samples than features.

        There all weights that separate the samples have nearly the same loss, and the prior determines which
        of them is the solution. Its gradient is small, so a run of few updates ends far from it.
        """
        least = math.ceil(_LEAST_UPDATES * cls.default_batch_size / max(info.n_samples_total, 1))
        if info.n_features <= info.n_samples_total or least <= cls.default_epochs:
            return {}
        return {"train.epochs": least}

    def schedule(self, schedule: Schedule) -> None:
        """Store the length of the run, which the option `l1` needs."""
        self._schedule = schedule

    def suitable_batch_size(self, n_workers: int, n_epochs: int) -> int:
        """Return the greatest power of two with which a run has `_LEAST_UPDATES` updates under BSP.

        It is at least the default; less only in a run that `choose` has made longer.
        """
        most = self._n_samples * n_epochs // (_LEAST_UPDATES * n_workers)
        size = _LEAST_SAMPLES if self._is_long else self.default_batch_size
        while 2 * size <= min(most, _MOST_SAMPLES):
            size *= 2
        return size

    def prepare(self, worker: Worker, moments: Moments) -> None:
        """Take the scale of the features."""
        self.model.prepare(moments)

    def tables(self) -> list[Table]:
        """Return the tables of the linear model."""
        own = self._options
        l1 = own.l1 * self._schedule.epochs_per_sample("weight")
        return self.model.tables(FTRL(lr=own.learning_rate, beta=own.beta, l1=l1))

    def prefetch(self, worker: Worker, batch: Batch) -> None:
        """Prefetch the rows of a batch."""
        self.model.prefetch(worker, batch)

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """Pull, compute the gradient, push."""
        return self.model.step(worker, batch, self._options.prior)

    def evaluate(self, worker: Worker, batch: Batch) -> Float32:
        """Pull what the batch needs and return the outputs, float32, shape (n, k)."""
        return self.model.evaluate(worker, batch)

    def proposals(self) -> list[Proposal]:
        """Propose the prior and the rate."""
        own = self._options
        return [
            around("prior", own.prior or 1.0, 100, PENALTY),
            around("learning_rate", own.learning_rate, 10, RATE),
        ]

    def describe_model(self) -> str:
        """Return what is trained: logistic or softmax regression, of which features."""
        kind, each = "logistic", "each of"
        if self.outputs.n > 1:
            kind, each = "softmax", "each class and each of"
        count, parts = self.n_classes, self.model.parts
        text = f"{kind} regression of {count:,} classes, a weight for {each} {parts}"
        return f"{text}; {LONGER}" if self._is_long else text

    def report(self) -> str:
        """Return how the features were scaled."""
        return self.model.report()
