"""Two bases of tasks that predict classes: one on standardised dense features, one on sparse features."""

from __future__ import annotations

from typing import Any

from mpips.data.dataset import Batch
from mpips.data.info import DataInfo
from mpips.data.metrics import BINARY_METRICS, Scores
from mpips.data.moments import Moments
from mpips.tasks.base import Float32, Schedule, Task, Worker
from mpips.tasks.features import DenseFeatures, SparseFeatures
from mpips.tasks.losses import class_count, class_logits, class_metrics, class_scores, sigmoid


class DenseClassifier(Task):
    """Task of two or more classes on standardised features.

    A subclass defines `tables`, `step` and `evaluate`.

    Attributes:
        features: Scale of the features.
    """

    def __init__(self, info: DataInfo, options: Any, seed: int) -> None:
        """Check that the data suits the task; see `Task`."""
        self.features = DenseFeatures(info, self.name)
        self._options = options
        self._n_classes = class_count(info, self.name)
        self.metrics = class_metrics(info)

    def prepare(self, worker: Worker, moments: Moments) -> None:
        """Take mean and standard deviation of the features."""
        self.features.prepare(moments)

    def predict(self, worker: Worker, batch: Batch) -> Float32:
        """Return the probability of class 1, shape (n,), if there are two classes, else of all, (n, k)."""
        return class_scores(self.evaluate(worker, batch))

    def logits(self, worker: Worker, batch: Batch) -> Scores:
        """Return log(p1 / p0), shape (n,), if there are two classes, else the logits, shape (n, k)."""
        return class_logits(self.evaluate(worker, batch))

    def report(self) -> str:
        """Return how many features were standardised, and which have no influence."""
        return self.features.report()

    def evaluate(self, worker: Worker, batch: Batch) -> Float32:
        """Pull the model and return the logits of the classes, float32, shape (n, k)."""
        raise NotImplementedError


class SparseClassifier(Task):
    """Task of two classes on sparse features.

    A subclass defines `tables`, `prefetch`, `step` and `logits`.
    """

    metrics = tuple(BINARY_METRICS)

    def __init__(self, info: DataInfo, options: Any, seed: int) -> None:
        """Check that the data suits the task; see `Task`."""
        self._features = SparseFeatures(info, self.name)
        self._options = options
        self._n_samples = info.n_samples_total
        self._schedule = Schedule(self.default_epochs, self.default_batch_size)

    def schedule(self, schedule: Schedule) -> None:
        """Store the length of the run, which the option `l1` needs."""
        self._schedule = schedule

    def prepare(self, worker: Worker, moments: Moments) -> None:
        """Take the scale of the features."""
        self._features.prepare(moments)

    def predict(self, worker: Worker, batch: Batch) -> Float32:
        """Return the probability of class 1, shape (n,)."""
        return sigmoid(self.logits(worker, batch))

    def logits(self, worker: Worker, batch: Batch) -> Float32:
        """Pull the rows of the batch and return the logits of class 1, float32, shape (n,)."""
        raise NotImplementedError

    def report(self) -> str:
        """Return how the features were scaled."""
        return self._features.report()
