"""Metrics of scores against labels, and merging the workers' shares of an evaluation.

Scores are probabilities: shape (n,) of class 1 in a task of two classes, else shape (n, k). Labels
are classes, int64, shape (n,). Every metric of no samples is nan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Scores: TypeAlias = npt.NDArray[np.floating[Any]]
Classes: TypeAlias = npt.NDArray[np.int64]

# The smallest probability that the logarithms are given.
PROBABILITY_FLOOR = 1e-15


def accuracy(scores: Scores, labels: Classes) -> float:
    """Return the share of samples whose most probable class is right; 0.5 counts as class 1."""
    if len(labels) == 0:
        return float("nan")
    guesses = scores >= 0.5 if scores.ndim == 1 else np.argmax(scores, axis=1)
    return float(np.mean(guesses == labels))


def auc(scores: Scores, labels: Classes) -> float:
    """Return the area under the ROC curve, exactly: P(score of a 1 > score of a 0), ties half.

    By the rank-sum of Mann and Whitney with mid-ranks. It is undefined, nan, if a class is absent.
    """
    positive = labels == 1
    n_positive = int(np.count_nonzero(positive))
    n_negative = len(labels) - n_positive
    if n_positive == 0 or n_negative == 0:
        return float("nan")
    _, group, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mid_ranks = np.cumsum(counts) - (counts - 1) / 2
    rank_sum = float(mid_ranks[group][positive].sum())
    return (rank_sum - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative)


def log_loss(scores: Scores, labels: Classes) -> float:
    """Return the mean of -log(probability of the true class), in nats, for scores of shape (n,)."""
    scores = scores.astype(np.float64)
    return _mean_log_loss(np.where(labels == 1, scores, 1 - scores))


def cross_entropy(scores: Scores, labels: Classes) -> float:
    """Return the mean of -log(probability of the true class), in nats, for scores (n, k)."""
    return _mean_log_loss(scores[np.arange(len(labels)), labels].astype(np.float64))


def _mean_log_loss(probabilities: npt.NDArray[np.float64]) -> float:
    if len(probabilities) == 0:
        return float("nan")
    return float(-np.mean(np.log(np.clip(probabilities, PROBABILITY_FLOOR, 1.0))))


Metric: TypeAlias = Callable[[Scores, Classes], float]
BINARY_METRICS: dict[str, Metric] = {"accuracy": accuracy, "auc": auc, "log_loss": log_loss}
CLASS_METRICS: dict[str, Metric] = {"accuracy": accuracy, "cross_entropy": cross_entropy}


@dataclass(frozen=True)
class EvalShare:
    """One worker's part of an evaluation: scores and labels of its samples, in its own order."""

    scores: Scores
    labels: Classes


def merge(shares: Sequence[EvalShare]) -> dict[str, float]:
    """Compute the metrics of all samples from the workers' shares, given in worker order.

    Samples are put back into the order of the file (sample j of worker w was number j * n_workers +
    w), so that the sums round alike for any number of workers.

    Raises:
        ValueError: There is no share, or shares are of different shape.
    """
    if not shares or len({share.scores.shape[1:] for share in shares}) > 1:
        shapes = [share.scores.shape for share in shares]
        raise ValueError(f"shares must be at least one and alike, got scores of shapes {shapes}")
    places = [np.arange(len(s.labels)) * len(shares) + w for w, s in enumerate(shares)]
    order = np.argsort(np.concatenate(places))
    scores = np.concatenate([share.scores for share in shares])[order]
    labels = np.concatenate([share.labels for share in shares])[order]
    metrics = BINARY_METRICS if scores.ndim == 1 else CLASS_METRICS
    return {name: metric(scores, labels) for name, metric in metrics.items()}
