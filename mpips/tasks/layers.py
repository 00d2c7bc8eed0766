"""Fully connected layers with ReLU between them: tables, outputs, and gradients by weights and biases."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.model.optimizer import Optimizer
from mpips.model.table import DenseTable, Table
from mpips.tasks.base import Float32, Worker

Floats: TypeAlias = npt.NDArray[Any]


def layer_tables(widths: Sequence[int], optimizer: Optimizer, first: int = 0) -> list[Table]:
    """Return the tables `weight<i>` and `bias<i>` of each layer.

    Hidden layers are initialised as by He et al. (ICCV 2015).

    Args:
        widths: Number of inputs, and of outputs of each layer.
        optimizer: Optimizer of all tables.
        first: Number of the first layer.
    """
    tables: list[Table] = []
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
        last = i == len(widths) - 2
        init = "xavier_normal" if last else f"normal({math.sqrt(2 / fan_in)!r})"
        tables += [
            DenseTable(f"weight{first + i}", (fan_in, fan_out), optimizer=optimizer, init=init),
            DenseTable(f"bias{first + i}", (fan_out,), optimizer=optimizer),
        ]
    return tables


def pull_layers(worker: Worker, n_layers: int) -> tuple[list[Float32], list[Float32]]:
    """Pull the weights and the biases of all layers. Blocks."""
    weights = [worker.table(f"weight{i}").pull() for i in range(n_layers)]
    return weights, [worker.table(f"bias{i}").pull() for i in range(n_layers)]


def forward(
    x: Any, weights: Sequence[Floats], biases: Sequence[Floats]
) -> tuple[list[Any], Floats]:
    """Return the input of every layer, shapes (n, width), and the outputs of the last one, shape (n, k).

    Args:
        x: Floats, shape (n, d), an array or a CSR matrix of SciPy; the first of the inputs.
        weights: Weights of each layer, shape (width before, width after).
        biases: Biases of each layer, shape (width after,).
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
