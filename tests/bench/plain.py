"""The models of the suite `train` in plain NumPy: the baseline in one process.

They do the same arithmetic on the same batches as the tasks `mlp` and `logistic` under BSP with one worker:
gradients of the mean loss, then the optimizer's update in place. The sparse model reads and changes only the
rows of its batch, as an embedding table does.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data.dataset import Batch, Dataset, SparseBatch
from mpips.data.moments import Moments
from mpips.model.optimizer import FTRL, Adagrad
from mpips.tasks.features import MAX_DEVIATION
from mpips.tasks.logistic import LogisticOptions
from mpips.tasks.mlp import MlpOptions

Float32: TypeAlias = npt.NDArray[np.float32]


class PlainMlp:
    """The task `mlp` with one hidden layer.

    Attributes:
        values: weight0, bias0, weight1, bias1, float32; trained in place.
    """

    def __init__(
        self, data: Dataset, options: MlpOptions, optimizer: Adagrad, initial: list[Float32]
    ) -> None:
        """`initial`: Initial weight0, bias0, weight1, bias1, float32; copied."""
        mean, scale = Moments.of(data).standardise()
        self._mean, self._scale = mean.astype(np.float32), scale.astype(np.float32)
        self._l2 = options.l2
        self._lr, self._eps = np.float32(optimizer.lr), np.float32(optimizer.eps)
        self.values = [value.copy() for value in initial]
        start = np.float32(optimizer.initial_accumulator)
        self._sums = [np.full_like(value, start) for value in initial]

    def step(self, batch: Batch) -> float:
        """Train on one batch; return the summed loss before the update."""
        assert not isinstance(batch, SparseBatch)
        weight0, bias0, weight1, bias1 = self.values
        x = batch.x - self._mean
        x *= self._scale
        np.clip(x, -MAX_DEVIATION, MAX_DEVIATION, out=x)

        # Compute the forward pass.
        hidden = x @ weight0
        hidden += bias0
        np.maximum(hidden, 0, out=hidden)
        logits = hidden @ weight1
        logits += bias1

        # Compute the loss and its gradient by the logits.
        rows = np.arange(batch.n)
        logits -= logits.max(axis=1, keepdims=True)
        picked = logits[rows, batch.labels]
        np.exp(logits, out=logits)
        sums = logits.sum(axis=1)
        loss = np.log(sums) - picked
        logits /= sums[:, np.newaxis]
        logits[rows, batch.labels] -= 1
        error = logits
        error *= np.float32(batch.weight / batch.n)

        # Compute the backward pass and update.
        decay = np.float32(self._l2 * batch.weight)
        behind = error @ weight1.T
        behind *= hidden > 0
        gradient1 = hidden.T @ error
        gradient1 += decay * weight1
        gradient0 = x.T @ behind
        gradient0 += decay * weight0
        for i, g in enumerate((gradient0, behind.sum(axis=0), gradient1, error.sum(axis=0))):
            self._update(self.values[i], self._sums[i], g)
        return float(loss.sum(dtype=np.float64))

    def _update(self, value: Float32, square_sum: Float32, gradient: Float32) -> None:
        square_sum += gradient * gradient
        gradient *= self._lr
        gradient /= np.sqrt(square_sum) + self._eps
        value -= gradient


class PlainLogistic:
    """The task `logistic` on sparse features.

    Attributes:
        weights: float32, shape (d + 1,) with d features; the last value is the bias.
    """

    def __init__(self, data: Dataset, options: LogisticOptions, optimizer: FTRL) -> None:
        """Start with weights of 0, as FTRL does."""
        moments = Moments.of(data)
        shift, scale = moments.standardise_present()
        self._shift, self._scale = shift.astype(np.float32), scale.astype(np.float32)
        self._present = np.maximum(moments.present, 1).astype(np.float32)
        self._prior = options.prior
        self._optimizer = optimizer
        self.weights = np.zeros(data.n_features + 1, np.float32)
        self._z = np.zeros_like(self.weights)
        self._n = np.zeros_like(self.weights)

    def step(self, batch: Batch) -> float:
        """Train on one batch; return the summed loss before the update."""
        assert isinstance(batch, SparseBatch)
        values = batch.values - self._shift.take(batch.keys)
        values *= self._scale.take(batch.keys)
        np.clip(values, -MAX_DEVIATION, MAX_DEVIATION, out=values)
        keys, ids, counts = np.unique(batch.keys, return_inverse=True, return_counts=True)
        rows = np.repeat(np.arange(batch.n), np.diff(batch.indptr))

        # Compute the forward pass.
        weights = self.weights[keys]
        logits = np.bincount(rows, weights[ids] * values, batch.n).astype(np.float32)
        logits += self.weights[-1]
        target = batch.labels.astype(np.float32)
        small = np.exp(-np.abs(logits))
        loss = np.maximum(logits, 0) + np.log1p(small) - target * logits
        error = np.where(logits >= 0, np.float32(1), small) / (1 + small) - target
        error *= np.float32(batch.weight / batch.n)

        # Compute the backward pass with the prior's share of this batch, and update.
        gradient = np.bincount(ids, error[rows] * values, len(keys)).astype(np.float32)
        share = np.float32(self._prior * batch.weight / batch.n)
        gradient += share * (counts / self._present[keys]).astype(np.float32) * weights
        self._update(np.append(keys, len(self.weights) - 1), np.append(gradient, error.sum()))
        return float(loss.sum(dtype=np.float64))

    def _update(self, keys: npt.NDArray[np.int64], gradient: Float32) -> None:
        """Apply FTRL-Proximal (McMahan et al., KDD 2013) to the rows of the batch."""
        o = self._optimizer
        n_old, w = self._n[keys], self.weights[keys]
        n = n_old + gradient * gradient
        root = np.sqrt(n)
        z = self._z[keys] + gradient - (root - np.sqrt(n_old)) / np.float32(o.lr) * w
        self._z[keys], self._n[keys] = z, n
        shrunk = np.sign(z) * np.float32(o.l1) - z
        shrunk /= (np.float32(o.beta) + root) / np.float32(o.lr) + np.float32(o.l2)
        self.weights[keys] = np.where(np.abs(z) <= o.l1, np.float32(0), shrunk)
