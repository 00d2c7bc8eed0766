"""Fully connected layers with ReLU between them: the outputs, and the gradients by weights and biases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[Any]


def forward(
    x: Any, weights: Sequence[Floats], biases: Sequence[Floats]
) -> tuple[list[Any], Floats]:
    """Return the input of every layer, shapes (n, width), and the outputs of the last one, shape (n, k).

    Args:
        x: Floats, shape (n, d), an array or a CSR matrix of SciPy; the first of the inputs.
        weights: Of each layer, shape (width before, width after).
        biases: Of each layer, shape (width after,).
    """
    inputs = [x]
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        outputs: Floats = inputs[-1] @ weight
        outputs += bias
        if i < len(weights) - 1:
            inputs.append(np.maximum(outputs, 0, out=outputs))
    return inputs, outputs


def backward(
    inputs: Sequence[Any], weights: Sequence[Floats], error: Floats
) -> Iterator[tuple[int, Floats, Floats, Floats]]:
    """Yield index and gradients by weights, biases and outputs of each layer, from the last one on.

    Args:
        inputs: The inputs that `forward` returned.
        weights: The weights that it was called with.
        error: Gradient by the outputs of the last layer, shape (n, k).
    """
    for i in reversed(range(len(weights))):
        yield i, inputs[i].T @ error, error.sum(axis=0), error
        if i > 0:
            error = error @ weights[i].T
            error *= inputs[i] > 0
