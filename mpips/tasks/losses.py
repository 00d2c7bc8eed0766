"""Losses and scores of logits, numerically stable for logits of any size."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data.dataset import Labels
from mpips.data.info import DataInfo
from mpips.data.metrics import BINARY_METRICS, CLASS_METRICS, Scores
from mpips.errors import DataError

Float32: TypeAlias = npt.NDArray[np.float32]


def sigmoid(logits: Float32) -> Float32:
    """Return 1 / (1 + exp(-logits)), float32, of the same shape."""
    # Use only exponents of 0 or less, so that nothing overflows.
    small = np.exp(-np.abs(logits))
    probabilities: Float32 = np.where(logits >= 0, 1, small) / (1 + small)
    return probabilities.astype(np.float32, copy=False)


def logistic_loss(
    logits: Float32, labels: Labels, weights: Float32 | None = None
) -> tuple[float, Float32]:
    """Return the summed loss and its gradient by the logits, float32, of their shape.

    The loss of a sample is log(1 + exp(z)) - y z for class y in {0, 1}, times its weight.

    Args:
        logits: float32, shape (n,), or (n, k) of several labels.
        labels: The classes, of this shape.
        weights: Weights of the samples, float32, shape (n,) or (n, 1); None: all are 1.
    """
    target = labels.astype(np.float32)
    small = np.exp(-np.abs(logits))
    losses = np.maximum(logits, 0) + np.log1p(small) - target * logits
    gradient: Float32 = np.where(logits >= 0, np.float32(1), small)
    gradient /= small + 1
    gradient -= target
    if weights is not None:
        losses *= weights
        gradient *= weights
    return float(losses.sum(dtype=np.float64)), gradient


def softmax(logits: Float32) -> Float32:
    """Return the probabilities of the classes, float32, shape (n, k); each row sums to 1."""
    exponentials: Float32 = np.exp(logits - logits.max(axis=1, keepdims=True))
    exponentials /= exponentials.sum(axis=1, keepdims=True)
    return exponentials


def softmax_loss(
    logits: Float32, labels: Labels, weights: Float32 | None = None
) -> tuple[float, Float32]:
    """Return the summed cross-entropy and its gradient by the logits, shape (n, k).

    Args:
        logits: float32, shape (n, k); overwritten with the gradient.
        labels: The classes, 0 .. k-1, shape (n,).
        weights: Weights of the samples, float32, shape (n,); None: all are 1.
    """
    rows = np.arange(len(labels))
    logits -= logits.max(axis=1, keepdims=True)
    picked = logits[rows, labels]
    np.exp(logits, out=logits)
    sums = logits.sum(axis=1)
    losses = np.log(sums) - picked
    logits /= sums[:, np.newaxis]
    logits[rows, labels] -= 1
    if weights is not None:
        losses *= weights
        logits *= weights[:, np.newaxis]
    return float(losses.sum(dtype=np.float64)), logits


def squared_loss(
    outputs: Float32, targets: Float32, weights: Float32 | None = None
) -> tuple[float, Float32]:
    """Return half the sum of squared differences to the targets, and its gradient by the outputs.

    Args:
        outputs: float32, shape (n, k).
        targets: float32, shape (n, k).
        weights: Weights of the samples, float32, shape (n,); None: all are 1.
    """
    error = outputs - targets
    gradient = error if weights is None else error * weights[:, np.newaxis]
    return 0.5 * float(np.sum(error * gradient, dtype=np.float64)), gradient


def class_count(info: DataInfo, task: str) -> int:
    """Return the number of classes.

    Raises:
        DataError: There is only one class.
    """
    if info.n_classes < 2:
        raise DataError(
            f"task '{task}' needs two classes or more, the data has {info.n_classes}; check the label column "
            "(data.label)"
        )
    return info.n_classes


def class_metrics(info: DataInfo) -> tuple[str, ...]:
    """Return the names of the metrics for the number of classes."""
    return tuple(BINARY_METRICS if info.n_classes == 2 else CLASS_METRICS)


def class_logits(logits: Float32) -> Scores:
    """Return log(p1 / p0), float64, shape (n,), if there are two classes, else the logits, shape (n, k)."""
    if logits.shape[1] != 2:
        return logits
    wide = logits.astype(np.float64)
    margins: Scores = wide[:, 1] - wide[:, 0]
    return margins


def class_scores(logits: Float32) -> Float32:
    """Return the probability of class 1, shape (n,), if there are two classes, else of all, shape (n, k)."""
    probabilities = softmax(logits)
    return probabilities[:, 1] if probabilities.shape[1] == 2 else probabilities
