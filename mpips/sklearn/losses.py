"""The losses of estimators by their outputs; those of classes are the losses of the built-in tasks.

A loss is a function of outputs (float32, shape (n, k), which it may overwrite), targets and weights of the
samples (float32, shape (n,)). It returns the sum of the weighted losses, and their gradient by the outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpips.tasks.losses import logistic_loss, softmax_loss

Float32 = NDArray[np.float32]
Loss: TypeAlias = Callable[[Float32, NDArray[Any], Float32], tuple[float, Float32]]


def binary_loss(outputs: Float32, labels: NDArray[Any], weights: Float32) -> tuple[float, Float32]:
    """Return the logistic loss of class 0 or 1 by one output, log(p1 / p0), and its gradient."""
    loss_sum, gradient = logistic_loss(outputs[:, 0], labels, weights)
    return loss_sum, gradient[:, np.newaxis]


def class_loss(outputs: Float32, labels: NDArray[Any], weights: Float32) -> tuple[float, Float32]:
    """Return the cross-entropy of classes 0 .. k-1 by k logits, and its gradient."""
    return softmax_loss(outputs, labels, weights)
