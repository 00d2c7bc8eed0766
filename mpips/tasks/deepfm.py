"""DeepFM: a factorization machine and a network that share their embeddings.

Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", IJCAI 2017. A number
takes part in the products by its value times a factor of its column, a row of the table `number_factor`.
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
        logits: float32, shape (n,).
    """

    def __init__(self, step: MixedStep) -> None:
        """Pull the factors of the numbers and compute the sum."""
        self._step = step
        self._cells = step.columns.cells(step.inputs, step.rows.shape[1])
        self._sums: Float32 = self._cells.sum(axis=1)
        squares: Float32 = np.square(self._cells).sum(axis=(1, 2))
        numbers = step.columns.numbers
        if numbers.shape[1]:
            self._factors = step.worker.table("number_factor").pull()
            self._sums = self._sums + numbers @ self._factors
            squares = squares + np.square(numbers) @ np.square(self._factors).sum(axis=1)
        self.logits: Float32 = (np.square(self._sums).sum(axis=1) - squares) / 2

    def push(self, error: Float32) -> Float32:
        """Push the gradient by the factors; return that by the inputs.

        The gradient by f_i is error * (sum_j f_j - f_i).
        """
        step, numbers = self._step, self._step.columns.numbers
        if numbers.shape[1]:
            own = np.square(numbers).T @ error
            gradient = numbers.T @ (error[:, np.newaxis] * self._sums)
            gradient -= own[:, np.newaxis] * self._factors
            step.push_dense("number_factor", gradient, self._factors)
        by_inputs = np.zeros_like(step.inputs)
        by_cells = step.columns.cells(by_inputs, step.rows.shape[1])  # a view
        by_cells += error[:, np.newaxis, np.newaxis] * (self._sums[:, np.newaxis] - self._cells)
        return by_inputs


class DeepFm(WideDeep):
    """A network, a linear model and products of pairs on the same columns."""

    name = "deepfm"

    def side_tables(self) -> list[Table]:
        """Return the tables of the linear model and, if there are numbers, `number_factor`."""
        tables = super().side_tables()
        if self._features.n_inputs:
            tables.append(
                DenseTable(
                    "number_factor",
                    (self._features.n_inputs, self._options.dim),
                    optimizer=self.adagrad(),
                    init=f"normal({self._options.init_std!r})",
                )
            )
        return tables

    def sides(self, step: MixedStep) -> SideOutputs:
        """Return the linear model and the products."""
        return [Linear(step), PairProducts(step)]
