"""Two bases of tasks: one on standardised dense features, one of two classes on sparse features."""

from __future__ import annotations

from typing import Any

from mpips.data.dataset import Batch
from mpips.data.info import DataInfo
from mpips.data.metrics import BINARY_METRICS, Scores
from mpips.data.moments import Moments
from mpips.errors import DataError
from mpips.tasks.base import Float32, Schedule, Task, Worker
from mpips.tasks.features import DenseFeatures, SparseFeatures
from mpips.tasks.losses import sigmoid
from mpips.tasks.outputs import outputs_of


class DenseTask(Task):
    """Task of classes, of a number or of several labels, on standardised features.

    A subclass defines `tables`, `step` and `evaluate`.

    Attributes:
        features: Scale of the features.
        outputs: Meaning of the outputs.
    """

    def __init__(self, info: DataInfo, options: Any, seed: int) -> None:
        """Check that the data suits the task; see `Task`."""
        self.features = DenseFeatures(info, self.name)
        self.outputs = outputs_of(info, self.name, one_logit=False)
        self._options = options
        self.labels = info.wants  # type: ignore[misc]
        self.metrics = self.outputs.metrics

    def prepare(self, worker: Worker, moments: Moments) -> None:
        """Take mean and standard deviation of the features, and of the targets."""
        self.features.prepare(moments)
        self.outputs.prepare(moments)

    def predict(self, worker: Worker, batch: Batch) -> Float32:
        """Return probabilities of class 1, shape (n,), of all classes or labels, (n, k), or numbers, (n,)."""
        return self.outputs.predict(self.evaluate(worker, batch))

    def logits(self, worker: Worker, batch: Batch) -> Scores | None:
        """Return log(p1 / p0), shape (n,), or logits of all classes or labels, (n, k); None for numbers."""
        return self.outputs.logits(self.evaluate(worker, batch))

    def report(self) -> str:
        """Return how many features were standardised, which have no influence, and constant labels."""
        return self.features.report() + self.outputs.report()

    def evaluate(self, worker: Worker, batch: Batch) -> Float32:
        """Pull the model and return the outputs, float32, shape (n, k)."""
        raise NotImplementedError


class SparseClassifier(Task):
    """Task of two classes on sparse features.

    A subclass defines `tables`, `prefetch`, `step` and `logits`.
    """

    metrics = tuple(BINARY_METRICS)

    def __init__(self, info: DataInfo, options: Any, seed: int) -> None:
        """Check that the data suits the task; see `Task`."""
        self._features = SparseFeatures(info, self.name)
        if info.n_classes != 2:
            others = "'wide_deep'" if info.n_fields else "'softmax' or 'mlp'"
            raise DataError(
                f"task '{self.name}' takes two classes, the data has {info.n_classes}; use task {others} for "
                "more"
            )
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
