"""The meaning of a network's outputs: classes, a number, or several labels; with their loss and scores.

`outputs_of` chooses by the labels of the training data. A target is standardised by mean and standard
deviation of the training data's targets, so that the same learning rates and penalties suit any unit; its
loss is half the squared error in standard deviations, so 0.5 is that of predicting the mean.
"""

from __future__ import annotations

from typing import Annotated, Literal, Protocol, TypeAlias

import numpy as np
from msgspec import Meta

from mpips.data.dataset import Labels, Weights
from mpips.data.info import DataInfo
from mpips.data.metrics import (
    BINARY_METRICS,
    LABEL_METRICS,
    MORE_REGRESSION,
    REGRESSION_METRICS,
    Scores,
)
from mpips.data.moments import Moments
from mpips.errors import DataError
from mpips.tasks.losses import (
    Float32,
    class_count,
    class_logits,
    class_metrics,
    class_scores,
    logistic_loss,
    sigmoid,
    softmax_loss,
    squared_loss,
)

_ROUNDING = 2.0**-24  # greatest relative error of rounding to float32
_VISIBLE = 1e-3  # least error of a predicted number, in standard deviations, that is refused

LabelKind: TypeAlias = Annotated[
    Literal["classes", "targets", "several"],
    Meta(
        description="Meaning of the labels. classes: one class for each sample, numbers or texts. targets: a "
        "number, which is predicted (regression). several: any number of labels for each sample, in columns "
        "that data.label names, or in front of the lines of LIBSVM text (1,3,7 5:0.2)."
    ),
]


class Outputs(Protocol):
    """The meaning of outputs, float32, shape (n, `n`).

    Attributes:
        n: Number of outputs of a sample.
        metrics: Names of the metrics.
    """

    n: int
    metrics: tuple[str, ...]

    def prepare(self, moments: Moments) -> None:
        """Take the moments of the training data."""

    def loss(
        self, outputs: Float32, labels: Labels, weights: Weights | None
    ) -> tuple[float, Float32]:
        """Return the summed loss and its gradient by the outputs, of their shape; may overwrite them.

        Args:
            outputs: See the class.
            labels: Classes or targets, shape (n,), or several labels, shape (n, k).
            weights: Weights of the samples, float32, shape (n,); None: all are 1.
        """

    def predict(self, outputs: Float32) -> Float32:
        """Return what a task predicts; see `mpips.tasks.Task.predict`."""

    def logits(self, outputs: Float32) -> Scores | None:
        """Return logits, as of `mpips.tasks.Task.logits`."""

    def report(self) -> str:
        """Return what is remarkable about the labels, after a semicolon; "": nothing."""


class ClassOutputs:
    """Two or more classes with an output for each: softmax."""

    def __init__(self, info: DataInfo, task: str) -> None:
        """Raise DataError for data of one class."""
        self.n = class_count(info, task)
        self.metrics = class_metrics(info)

    def prepare(self, moments: Moments) -> None:
        """Do nothing."""

    def loss(
        self, outputs: Float32, labels: Labels, weights: Weights | None
    ) -> tuple[float, Float32]:
        """Return the summed cross-entropy and its gradient; overwrites the outputs."""
        return softmax_loss(outputs, labels, weights)

    def predict(self, outputs: Float32) -> Float32:
        """Return the probability of class 1, shape (n,), if there are two classes, else of all, (n, k)."""
        return class_scores(outputs)

    def logits(self, outputs: Float32) -> Scores:
        """Return log(p1 / p0), shape (n,), if there are two classes, else the logits, shape (n, k)."""
        return class_logits(outputs)

    def report(self) -> str:
        """Return "": nothing is remarkable."""
        return ""


class OneLogit:
    """Two classes with one output, the logit of class 1."""

    n = 1
    metrics: tuple[str, ...] = tuple(BINARY_METRICS)

    def prepare(self, moments: Moments) -> None:
        """Do nothing."""

    def loss(
        self, outputs: Float32, labels: Labels, weights: Weights | None
    ) -> tuple[float, Float32]:
        """Return the summed logistic loss and its gradient."""
        loss_sum, error = logistic_loss(outputs[:, 0], labels, weights)
        return loss_sum, error[:, np.newaxis]

    def predict(self, outputs: Float32) -> Float32:
        """Return the probability of class 1, shape (n,)."""
        return sigmoid(outputs[:, 0])

    def logits(self, outputs: Float32) -> Float32:
        """Return the logit of class 1, shape (n,)."""
        return outputs[:, 0]

    def report(self) -> str:
        """Return "": nothing is remarkable."""
        return ""


class OneTarget:
    """A number, whose standardised value is the output.

    Attributes:
        mean, deviation: Mean and standard deviation of the training data's targets.
    """

    n = 1
    metrics: tuple[str, ...] = (*REGRESSION_METRICS, *MORE_REGRESSION)

    def __init__(self, info: DataInfo, task: str) -> None:
        """Raise DataError for targets that are all equal."""
        if info.target_range and info.target_range[0] == info.target_range[1]:
            raise DataError(
                f"task '{task}': all targets are {info.target_range[0]:g}, so nothing can be learned from "
                "them; check the label column (data.label)"
            )
        self.mean, self.deviation = 0.0, 1.0

    def prepare(self, moments: Moments) -> None:
        """Take mean and standard deviation of the targets.

        Raises:
            DataError: The moments of the targets are missing, or float32 would hide how targets differ.
        """
        if moments.targets is None:
            raise DataError("the moments of the targets of the training data are missing")
        mean, scale = moments.targets.standardise()
        self.mean = float(mean[0])
        # All targets of the training part are equal if only samples that are held out differ.
        self.deviation = 1 / float(scale[0]) if scale[0] else 1.0
        if abs(self.mean) * _ROUNDING > _VISIBLE * self.deviation:
            raise DataError(
                f"the targets are about {self.mean:g} and differ by {self.deviation:g}, which float32 "
                "predictions would hide: subtract a constant from them"
            )

    def loss(
        self, outputs: Float32, labels: Labels, weights: Weights | None
    ) -> tuple[float, Float32]:
        """Return half the summed squared error in standard deviations, and its gradient."""
        standardised = ((labels - self.mean) / self.deviation).astype(np.float32)
        return squared_loss(outputs, standardised[:, np.newaxis], weights)

    def predict(self, outputs: Float32) -> Float32:
        """Return the numbers in the unit of the targets, shape (n,)."""
        numbers = outputs[:, 0].astype(np.float64) * self.deviation + self.mean
        return numbers.astype(np.float32)

    def logits(self, outputs: Float32) -> None:
        """Return None: numbers have no logits."""

    def report(self) -> str:
        """Return "": nothing is remarkable."""
        return ""


class LabelOutputs:
    """Several labels, each 0 or 1, with an output for each: its logit."""

    metrics: tuple[str, ...] = LABEL_METRICS

    def __init__(self, info: DataInfo) -> None:
        """Take the number of labels."""
        self.n = len(info.label_names)
        self._names = np.array(info.label_names)
        self._constant: list[str] = []

    def prepare(self, moments: Moments) -> None:
        """Find labels that are equal in all samples.

        Raises:
            DataError: All labels are; or their moments are missing.
        """
        if moments.targets is None:
            raise DataError("the moments of the labels of the training data are missing")
        constant = moments.targets.constant()
        if constant.all():
            raise DataError(
                "each label has one value in all samples, so nothing can be learned from them; check the "
                "label columns (data.label)"
            )
        means = moments.targets.mean[constant]
        pairs = zip(self._names[constant], means, strict=True)
        self._constant = [f"'{name}' ({mean:g})" for name, mean in pairs]

    def loss(
        self, outputs: Float32, labels: Labels, weights: Weights | None
    ) -> tuple[float, Float32]:
        """Return the logistic loss, summed over samples and labels, and its gradient."""
        each = weights[:, np.newaxis] if weights is not None else None
        return logistic_loss(outputs, labels, each)

    def predict(self, outputs: Float32) -> Float32:
        """Return the probability that each label is 1, shape (n, k)."""
        return sigmoid(outputs)

    def logits(self, outputs: Float32) -> Float32:
        """Return the outputs."""
        return outputs

    def report(self) -> str:
        """Return which labels have one value in all samples."""
        if not self._constant:
            return ""
        more = f" and {len(self._constant) - 10} more" if len(self._constant) > 10 else ""
        return f"; labels that are equal in all samples: {', '.join(self._constant[:10])}{more}"


def outputs_of(info: DataInfo, task: str, one_logit: bool) -> Outputs:
    """Return the outputs that suit the labels of the training data.

    Args:
        info: Description of the training data.
        task: Name of the task, for errors.
        one_logit: Two classes have one output; else one for each class.

    Raises:
        DataError: There is one class or one number only.
    """
    if info.wants == "targets":
        return OneTarget(info, task)
    if info.wants == "several":
        return LabelOutputs(info)
    if one_logit and info.n_classes == 2:
        return OneLogit()
    return ClassOutputs(info, task)
