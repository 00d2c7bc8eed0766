"""The place of weights and biases in the rows of an embedding table.

All values of a model lie one after the other, layer by layer, the weights of a layer before its biases, in
rows of DIM floats. The end of the last row is empty and stays 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]

DIM = 128  # floats of a row


class ModelLayout:
    """The layers of a model and their place in rows.

    Attributes:
        widths: Numbers of features, of the units of each hidden layer, and of outputs.
        n_values: Number of weights and biases.
        n_rows: Number of rows.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        """Take the widths, at least two."""
        self.widths = tuple(widths)
        self._shapes = list(zip(self.widths[:-1], self.widths[1:], strict=True))
        self.n_values = sum((before + 1) * after for before, after in self._shapes)
        self.n_rows = -(-self.n_values // DIM)

    def views(self, rows: Float32) -> tuple[list[Float32], list[Float32]]:
        """Return the weights, shapes (width before, width after), and biases of all layers in rows.

        Args:
            rows: float32, shape (n_rows, DIM), C-contiguous. The result consists of views of it.
        """
        flat, at = rows.reshape(-1), 0
        weights, biases = [], []
        for before, after in self._shapes:
            weights.append(flat[at : at + before * after].reshape(before, after))
            at += before * after
            biases.append(flat[at : at + after])
            at += after
        return weights, biases

    def pack(self, weights: Sequence[NDArray[Any]], biases: Sequence[NDArray[Any]]) -> Float32:
        """Return rows with the values of all layers, float32, shape (n_rows, DIM)."""
        rows = np.zeros((self.n_rows, DIM), np.float32)
        own_weights, own_biases = self.views(rows)
        for own, other in zip([*own_weights, *own_biases], [*weights, *biases], strict=True):
            own[...] = other
        return rows

    def initial(self, rng: np.random.Generator) -> Float32:
        """Return the rows of a new model.

        A linear model begins with 0: its problem is convex. With hidden layers biases are 0, and weights are
        normal: before a ReLU with variance 2 / before (He et al., ICCV 2015), in the last layer with
        2 / (before + after) (Glorot and Bengio, AISTATS 2010).
        """
        rows = np.zeros((self.n_rows, DIM), np.float32)
        if len(self._shapes) > 1:
            for i, weight in enumerate(self.views(rows)[0]):
                before, after = weight.shape
                is_last = i == len(self._shapes) - 1
                scale = math.sqrt(2 / (before + after if is_last else before))
                weight[...] = rng.normal(0.0, scale, weight.shape)
        return rows
