"""Losses over the candidates of a query, with their gradients by the scores.

softmax     Cross-entropy of the right candidate among all entities, 1-vs-all (Lacroix, Usunier and Obozinski,
"Canonical Tensor Decomposition for Knowledge Base Completion", ICML 2018), or among it and
sampled negatives.
logistic    -log s(margin + right) - sum_j p_j log s(-margin - score_j), s being the logistic function.
p_j is 1 / k for k negatives; or, self-adversarial, the softmax of temperature * score_j, through
which no gradient flows (Sun et al., "RotatE", ICLR 2019, eq. 5 and 6).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Float32: TypeAlias = npt.NDArray[np.float32]
Int64: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

_BLOCK = 1 << 18  # scores of a block of queries, which a cache of 1 MiB holds


def full_softmax(scores: Float32, right: Int64) -> tuple[float, Float32]:
    """Return the summed cross-entropy, in nats, and its gradient by the scores.

    Args:
        scores: Scores of all candidates, shape (m, k); overwritten by the gradient.
        right: The right candidate of each query, shape (m,).
    """
    losses = np.empty(len(right))
    # Go through blocks of queries that stay in the cache; each row is computed alone, so they change no bits.
    step = max(1, _BLOCK // scores.shape[1])
    for start in range(0, len(right), step):
        block, own = scores[start : start + step], right[start : start + step]
        queries = np.arange(len(own))
        block -= block.max(axis=1, keepdims=True)
        chosen = block[queries, own].astype(np.float64)
        np.exp(block, out=block)
        sums = block.sum(axis=1, keepdims=True)
        losses[start : start + step] = np.log(sums[:, 0], dtype=np.float64) - chosen
        block /= sums
        block[queries, own] -= 1
    return float(losses.sum()), scores


def sampled_softmax(
    right: Float32, negatives: Float32, excluded: Flags, n_others: int | None = None
) -> tuple[float, Float32, Float32]:
    """Return the summed cross-entropy among each right candidate and the negatives, and its gradients.

    Args:
        right: Scores of the right candidates, shape (m,).
        negatives: Scores of the negatives, shape (m, k).
        excluded: Negatives that are the right candidate and do not count, shape (m, k).
        n_others: Number of candidates beside the right one, of which the negatives are a uniform sample. Each
            negative stands for n_others / (its negatives that count) of them: minus the logarithm of its
            expected count is added to its score (log-Q correction: Bengio and Senecal, "Adaptive Importance
            Sampling to Accelerate Training of a Neural Probabilistic Language Model", 2008), so that the sum
            of exponentials estimates that over all candidates without bias. None: nothing is added.
    """
    scores = np.concatenate([right[:, np.newaxis], negatives], axis=1)
    scores[:, 1:][excluded] = -np.inf
    if n_others is not None:
        n = np.maximum(excluded.shape[1] - excluded.sum(axis=1, keepdims=True), 1)
        scores[:, 1:] += np.log(n_others / n).astype(scores.dtype)
    loss, gradient = full_softmax(scores, np.zeros(len(right), np.int64))
    return loss, gradient[:, 0], gradient[:, 1:]


def logistic(
    right: Float32, negatives: Float32, excluded: Flags, margin: float, temperature: float
) -> tuple[float, Float32, Float32]:
    """Return the summed logistic loss and its gradients by the scores.

    Args:
        right: Scores of the right candidates, shape (m,).
        negatives: Scores of the negatives, shape (m, k).
        excluded: Negatives that are the right candidate and do not count, shape (m, k).
        margin: Added to every score.
        temperature: Factor of the negatives' scores in their weights; 0: all have equal weights.
    """
    weights = np.where(excluded, -np.inf, np.float32(temperature) * negatives)
    weights -= np.maximum(weights.max(axis=1, keepdims=True), np.float32(-3e38))
    np.exp(weights, out=weights)
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), np.float32(1e-30))
    up, down = right + np.float32(margin), negatives + np.float32(margin)
    loss = np.logaddexp(0, -up).sum(dtype=np.float64)
    loss += (weights * np.logaddexp(0, down)).sum(dtype=np.float64)
    return float(loss), -_sigmoid(-up), weights * _sigmoid(down)


def _sigmoid(x: Float32) -> Float32:
    small = np.exp(-np.abs(x))
    found: Float32 = np.where(x >= 0, np.float32(1), small) / (1 + small)
    return found


def cubes(rows: Float32, complex_rows: bool) -> tuple[float, Float32]:
    """Return the sum of the cubed absolute values of rows, shape (n, d), and its gradient.

    This is the nuclear 3-norm N3 of Lacroix et al.; complex numbers have their absolute values.
    """
    if not complex_rows:
        sizes = np.abs(rows)
        return float((sizes**3).sum(dtype=np.float64)), 3 * sizes * rows
    half = rows.shape[1] // 2
    sizes = np.sqrt(rows[:, :half] ** 2 + rows[:, half:] ** 2)
    return float((sizes**3).sum(dtype=np.float64)), 3 * np.concatenate(
        [sizes, sizes], axis=1
    ) * rows
