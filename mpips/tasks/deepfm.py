"""DeepFM: a factorization machine and a network that share their embeddings.

Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", IJCAI 2017. A number
takes part in the products by its value times a factor of its column, a row of the table `number_factor`.

One output contains the products of all pairs as they are. Several outputs, which the paper does not have,
get a weighted sum each of the `dim` terms of these products, by the table `pair_output` (the pooled products
of He and Chua, "Neural Factorization Machines", SIGIR 2017).
"""

from __future__ import annotations

import numpy as np

from mpips.model.table import DenseTable, Table
from mpips.tasks.base import Float32
from mpips.tasks.mixed import MixedStep, SideOutputs
from mpips.tasks.wide_deep import Linear, WideDeep


class PairProducts:
    """The side with the products of all pairs of embeddings and scaled factors.

    The sum over pairs is half of |sum_i f_i|^2 - sum_i |f_i|^2, as in the task `fm`.

    Attributes:
        outputs: float32, shape (n, k).
    """

    def __init__(self, step: MixedStep, n_outputs: int) -> None:
        """Pull the factors of the numbers and compute the sums."""
        self._step = step
        self._cells = step.columns.cells(step.inputs, step.rows.shape[1])
        self._sums: Float32 = self._cells.sum(axis=1)
        squares: Float32 = np.square(self._cells).sum(axis=1)
        numbers = step.columns.numbers
        if numbers.shape[1]:
            self._factors = step.worker.table("number_factor").pull()
            self._sums = self._sums + numbers @ self._factors
            squares = squares + np.square(numbers) @ np.square(self._factors)
        # The terms of the product of all pairs, shape (n, dim).
        self._products: Float32 = (np.square(self._sums) - squares) / np.float32(2)
        self._weights: Float32 | None = None
        if n_outputs > 1:
            self._weights = step.worker.table("pair_output").pull()
            self.outputs: Float32 = self._products @ self._weights
        else:
            self.outputs = self._products.sum(axis=1, keepdims=True)

    def push(self, error: Float32) -> Float32:
        """Push the gradient by the factors; return that by the inputs.

        The gradient by f_i is that by the products times (sum_j f_j - f_i), element by element.
        """
        step, numbers = self._step, self._step.columns.numbers
        by_products = error  # shape (n, 1), equal for all terms
        if self._weights is not None:
            step.push_dense("pair_output", self._products.T @ error, self._weights)
            by_products = error @ self._weights.T
        if numbers.shape[1]:
            own = np.square(numbers).T @ by_products
            gradient = numbers.T @ (by_products * self._sums)
            gradient -= own * self._factors
            step.push_dense("number_factor", gradient, self._factors)
        by_inputs = np.zeros_like(step.inputs)
        by_cells = step.columns.cells(by_inputs, step.rows.shape[1])  # a view
        by_cells += by_products[:, np.newaxis] * (self._sums[:, np.newaxis] - self._cells)
        return by_inputs


class DeepFm(WideDeep):
    """A network, a linear model and products of pairs on the same columns."""

    name = "deepfm"

    def side_tables(self) -> list[Table]:
        """Return those of the linear model, `number_factor` if there are numbers, and `pair_output`."""
        tables = super().side_tables()
        k, optimizer = self.outputs.n, self.adagrad()
        if k > 1:
            shape = (self._options.dim, k)
            tables.append(
                DenseTable("pair_output", shape, optimizer=optimizer, init="xavier_normal")
            )
        if self.features.n_inputs:
            tables.append(
                DenseTable(
                    "number_factor",
                    (self.features.n_inputs, self._options.dim),
                    optimizer=optimizer,
                    init=f"normal({self._options.init_std!r})",
                )
            )
        return tables

    def sides(self, step: MixedStep) -> SideOutputs:
        """Return the linear model and the products."""
        return [Linear(step), PairProducts(step, self.outputs.n)]
