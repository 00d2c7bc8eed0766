"""The arguments of a fit, the place in it, and its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.sklearn.layout import ModelLayout
from mpips.sklearn.losses import Loss
from mpips.sklearn.settings import Settings
from mpips.tasks.layers import backward, forward

Float32 = NDArray[np.float32]


class TrainingPlace(NamedTuple):
    """A place in a fit.

    Attributes:
        epoch: Number of complete epochs.
        batch: Number of complete batches of the current epoch.
        n_ends: Number of clocks that the worker has ended behind the last epoch.
    """

    epoch: int = 0
    batch: int = 0
    n_ends: int = 0


class FitArguments(msgspec.Struct, frozen=True):
    """The arguments of a fit.

    Attributes:
        layout: The layers.
        base: Values at the beginning, float32, shape (n_rows, DIM).
        x: Features, float32, shape (n, d), C-contiguous or a CSR matrix.
        targets: Classes, int64, shape (n,), or numbers, float32, shape (n, k).
        weights: Weights of the samples, float32, shape (n,).
        loss: The loss by the outputs.
        settings: Checked parameters.
        seed: Seed of the order of samples.
        n_before: Number of earlier passes over data, which the order of samples depends on.
        n_epochs: Greatest number of epochs.
    """

    layout: ModelLayout
    base: Float32
    x: Any
    targets: NDArray[Any]
    weights: Float32
    loss: Loss
    settings: Settings
    seed: int
    n_before: int
    n_epochs: int

    def digest(self) -> int:
        """Return a hash of all arguments."""
        hashing = _native.Xxh3()
        facts = (self.layout.widths, self.settings, self.seed, self.n_before, self.n_epochs)
        hashing.update(f"{self.loss.__name__} {facts}".encode())
        x = self.x
        parts = [x] if isinstance(x, np.ndarray) else [x.data, x.indices, x.indptr]
        for array in [*parts, self.targets, self.weights, self.base]:
            hashing.update(f"{array.dtype} {array.shape}".encode())
            hashing.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return hashing.digest()

    def add_gradient(
        self,
        values: Float32,
        x: Any,
        targets: NDArray[Any],
        weights: Float32,
        factor: float,
        gradient: Float32,
    ) -> float:
        """Add the gradient of the losses of some samples; return the sum of the losses.

        Args:
            values: Weights and biases, float32, shape (n_rows, DIM).
            x: The samples.
            targets: Their targets.
            weights: Their weights.
            factor: Multiplies the gradient.
            gradient: The gradient by the values is added to it, float32, shape (n_rows, DIM).
        """
        if not x.shape[0]:
            return 0.0
        own_weights, own_biases = self.layout.views(values)
        to_weights, to_biases = self.layout.views(gradient)
        inputs, outputs = forward(x, own_weights, own_biases)
        loss_sum, error = self.loss(outputs, targets, weights)
        error *= np.float32(factor)
        for i, by_weights, by_biases, _ in backward(inputs, own_weights, error):
            to_weights[i] += by_weights
            to_biases[i] += by_biases
        return loss_sum

    def add_penalty(self, values: Float32, gradient: Float32) -> float:
        """Add the gradient of the penalty, alpha / 2 times the sum of squared weights; return the penalty."""
        alpha, squares = self.settings.alpha, 0.0
        if not alpha:
            return 0.0
        pairs = zip(self.layout.views(values)[0], self.layout.views(gradient)[0], strict=True)
        for weight, to_weight in pairs:
            to_weight += np.float32(alpha) * weight
            flat = weight.reshape(-1)
            squares += float(np.einsum("i,i->", flat, flat, dtype=np.float64))
        return 0.5 * alpha * squares


@dataclass
class LossCurve:
    """The losses of a fit, and the rule that ends it.

    Attributes:
        losses: Mean loss of the samples of each epoch with the penalty, as training went on.
        has_converged: True if `n_iter_no_change` epochs in a row have not reduced the least loss by `tol`.
    """

    tol: float
    n_iter_no_change: int
    losses: list[float] = field(default_factory=list)
    has_converged: bool = False
    _best: float = float("inf")
    _n_without: int = 0

    def add(self, loss: float) -> None:
        """Add the loss of an epoch."""
        self.losses.append(loss)
        self._n_without = self._n_without + 1 if loss > self._best - self.tol else 0
        self._best = min(self._best, loss)
        self.has_converged = self._n_without >= self.n_iter_no_change


class Trained(msgspec.Struct, frozen=True):
    """The result of a fit, with equal bits on all workers.

    Attributes:
        rows: Values, float32, shape (n_rows, DIM).
        curve: Losses of the epochs.
    """

    rows: Float32
    curve: LossCurve
