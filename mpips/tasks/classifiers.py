"""Two bases of tasks: one on outputs with a meaning, and one with layers, on rows of numbers or of words."""

from __future__ import annotations

from typing import Any

from mpips.data.dataset import Batch
from mpips.data.info import DataInfo
from mpips.data.metrics import Scores
from mpips.data.moments import Moments
from mpips.tasks.base import Float32, Task, Worker
from mpips.tasks.inputs import inputs_of
from mpips.tasks.outputs import Outputs, outputs_of


class OutputsTask(Task):
    """Task whose predictions are computed from outputs.

    A subclass defines `tables`, `step` and `evaluate`.

    Attributes:
        outputs: Meaning of the outputs.
        n_classes: Number of classes of the training data; 0 for numbers and several labels.
    """

    def __init__(self, info: DataInfo, outputs: Outputs) -> None:
        """Take the outputs of a task on these data."""
        self.outputs = outputs
        self.n_classes = info.n_classes
        self.labels = info.wants  # type: ignore[misc]
        self.metrics = outputs.metrics

    def predict(self, worker: Worker, batch: Batch) -> Float32:
        """Return probabilities of class 1, shape (n,), of all classes or labels, (n, k), or numbers, (n,)."""
        return self.outputs.predict(self.evaluate(worker, batch))

    def logits(self, worker: Worker, batch: Batch) -> Scores | None:
        """Return log(p1 / p0), shape (n,), or logits of all classes or labels, (n, k); None for numbers."""
        return self.outputs.logits(self.evaluate(worker, batch))

    def evaluate(self, worker: Worker, batch: Batch) -> Float32:
        """Pull the model and return the outputs, float32, shape (n, k)."""
        raise NotImplementedError


class LayeredTask(OutputsTask):
    """Task of classes, of a number or of several labels, with one or more layers.

    Attributes:
        inputs: Inputs of the first layer.
    """

    first: str  # name of the table with the weights of the first layer

    def __init__(self, info: DataInfo, options: Any, seed: int) -> None:
        """Check that the data suits the task; see `Task`."""
        self.inputs = inputs_of(info, self.name)
        super().__init__(info, outputs_of(info, self.name, one_logit=False))
        self._options = options

    def prepare(self, worker: Worker, moments: Moments) -> None:
        """Take mean and standard deviation of the features, and of the targets."""
        self.inputs.prepare(moments)
        self.outputs.prepare(moments)

    def prefetch(self, worker: Worker, batch: Batch) -> None:
        """Prefetch the rows of a batch, if there are any."""
        self.inputs.prefetch(worker, self.first, batch)

    def report(self) -> str:
        """Return how many features were standardised, which have no influence, and constant labels."""
        return self.inputs.report() + self.outputs.report()
