"""Metrics of scores against labels, and the merge of the workers' shares of an evaluation.

All arithmetic is in float64. All samples have equal weight. Every metric is nan if there are no samples, or
if any score is nan.

Kinds of scores:

- "logits": shape (n,): log(p / (1 - p)) of class 1 of two; or shape (n, k): logarithms of the classes'
  probabilities up to a constant per sample. Losses and ranks are computed from logits directly, because
  float32 probabilities are exactly 1 for logits of 17 or more (float64 ones for 37 or more), and ties hide
  the order.
- "probabilities": shape (n,) of class 1 of two, or shape (n, k).
- "values": shape (n,): predictions of a number (regression).

Labels are classes, int64, shape (n,); for "values" the targets, float64.

Definitions: AUC by Hanley and McNeil (Radiology 143, 1982), equal to the Mann-Whitney U statistic with
mid-ranks divided by the number of pairs. Log-loss and cross-entropy: the negative mean log-likelihood
in nats (Bishop, "Pattern Recognition and Machine Learning", 2006, eq. 4.90 and 4.108). RMSE: square root of
the mean squared error, divided by n. R2: the coefficient of determination 1 - SS_res / SS_tot with SS_tot
about the mean of the evaluated targets (Draper and Smith, "Applied Regression Analysis", 1998); it is
negative for predictions worse than that mean, and nan where all targets are equal, since SS_tot is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data.dataset import Labels
from mpips.data.shares import Shares, numbers

Scores: TypeAlias = npt.NDArray[np.floating[Any]]
Classes: TypeAlias = npt.NDArray[np.int64]
Float64: TypeAlias = npt.NDArray[np.float64]
Kind: TypeAlias = Literal["probabilities", "logits", "values"]

# Lower bound of probabilities whose logarithm is taken; logits have no such bound.
PROBABILITY_FLOOR = 1e-15


def accuracy(scores: Scores, labels: Labels) -> float:
    """Return the share of samples whose most probable class is right; 0.5 counts as class 1.

    `scores` are probabilities of shape (n,) or (n, k), or logits of shape (n, k).
    """
    guesses = scores >= 0.5 if scores.ndim == 1 else np.argmax(scores, axis=1)
    return _mean(guesses == labels, scores)


def logit_accuracy(scores: Scores, labels: Labels) -> float:
    """Return the share of samples whose class is right, for logits of shape (n,); 0 counts as class 1."""
    return _mean((scores >= 0) == labels, scores)


def auc(scores: Scores, labels: Labels) -> float:
    """Return the exact area under the ROC curve: P(score of a 1 > score of a 0), ties counting half.

    Any increasing function of the score gives the same value, except for ties that rounding makes. The result
    is nan if a class is absent or a score is nan.
    """
    positive = labels == 1
    n_positive = int(np.count_nonzero(positive))
    n_negative = len(labels) - n_positive
    if n_positive == 0 or n_negative == 0 or np.isnan(scores).any():
        return math.nan
    _, group, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mid_ranks = np.cumsum(counts) - (counts - 1) / 2
    rank_sum = float(mid_ranks[group][positive].sum())
    return (rank_sum - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative)


def log_loss(scores: Scores, labels: Labels) -> float:
    """Return the mean of -log(probability of the true class), in nats, for probabilities (n,)."""
    scores = scores.astype(np.float64)
    return _mean_log_loss(np.where(labels == 1, scores, 1 - scores))


def logit_log_loss(scores: Scores, labels: Labels) -> float:
    """Return the mean of log(1 + exp(-z)) of class 1 and log(1 + exp(z)) of class 0, logits (n,)."""
    z = scores.astype(np.float64)
    with np.errstate(invalid="ignore"):  # _mean returns nan for nan
        losses = np.logaddexp(0.0, np.where(labels == 1, -z, z))
    return _mean(losses, z)


def cross_entropy(scores: Scores, labels: Labels) -> float:
    """Return the mean of -log(probability of the true class), in nats, for probabilities (n, k)."""
    return _mean_log_loss(scores[np.arange(len(labels)), labels].astype(np.float64))


def logit_cross_entropy(scores: Scores, labels: Labels) -> float:
    """Return the mean of log(sum of exp(z)) - z of the true class, in nats, for logits (n, k)."""
    z = scores.astype(np.float64)
    with np.errstate(invalid="ignore"):  # _mean returns nan for nan, also for infinity - infinity
        z -= z.max(axis=1, keepdims=True)
        losses = np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(labels)), labels]
    return _mean(losses, z)


def rmse(scores: Scores, labels: Labels) -> float:
    """Return the square root of the mean squared error."""
    errors = scores.astype(np.float64) - labels
    return math.sqrt(_mean(errors * errors, scores)) if len(labels) else math.nan


def r2(scores: Scores, labels: Labels) -> float:
    """Return 1 - (sum of squared errors) / (sum of squares about the targets' mean)."""
    if len(labels) == 0:
        return math.nan
    targets = np.asarray(labels, dtype=np.float64)
    # Subtract the first target first, so that large equal targets give exactly 0.
    shifted = targets - targets[0]
    total = float(((shifted - shifted.mean()) ** 2).sum())
    residual = float(((scores.astype(np.float64) - targets) ** 2).sum())
    return 1 - residual / total if total > 0 else math.nan


def _mean(values: npt.NDArray[Any], scores: Scores) -> float:
    """Return the mean; nan if there are no samples or a score is nan."""
    if len(values) == 0 or np.isnan(scores).any():
        return math.nan
    return float(np.mean(values))


def _mean_log_loss(probabilities: Float64) -> float:
    losses = -np.log(np.clip(probabilities, PROBABILITY_FLOOR, 1.0))
    return _mean(losses, probabilities)


Metric: TypeAlias = Callable[[Scores, Labels], float]
BINARY_METRICS: dict[str, Metric] = {"accuracy": accuracy, "auc": auc, "log_loss": log_loss}
CLASS_METRICS: dict[str, Metric] = {"accuracy": accuracy, "cross_entropy": cross_entropy}
REGRESSION_METRICS: dict[str, Metric] = {"rmse": rmse, "r2": r2}
LOGIT_BINARY_METRICS: dict[str, Metric] = {
    "accuracy": logit_accuracy,
    "auc": auc,
    "log_loss": logit_log_loss,
}
LOGIT_CLASS_METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "cross_entropy": logit_cross_entropy,
}


@dataclass(frozen=True)
class EvalShare:
    """One worker's part of an evaluation, with its samples in the order of the file.

    Attributes:
        scores: Shape (n,) or (n, k); see the kinds at the top of this module.
        labels: Classes (int64) or targets (float64), shape (n,).
        kind: Kind of the scores.
    """

    scores: Scores
    labels: Labels
    kind: Kind = "probabilities"


def merge(shares_of: Sequence[EvalShare], shares: Shares = "interleaved") -> dict[str, float]:
    """Compute the metrics of all samples from the shares of all workers.

    Samples are sorted into the order of the file, so that sums round equally for any number of workers.

    Args:
        shares_of: The share of each worker, in worker order.
        shares: The rule that divided the samples among the workers.

    Returns:
        The value of each metric by its name.

    Raises:
        ValueError: There are no shares, their shapes differ, or there is not one score per sample.
    """
    if not shares_of or len({(s.scores.shape[1:], s.kind) for s in shares_of}) > 1:
        shapes = [share.scores.shape for share in shares_of]
        raise ValueError(
            f"scores of the workers have shapes {shapes}: there must be at least one share, and predict must "
            "return the same form on all workers"
        )
    if any(len(share.scores) != len(share.labels) for share in shares_of):
        found = [(share.scores.shape, len(share.labels)) for share in shares_of]
        raise ValueError(
            f"shapes of scores and numbers of labels are {found}: there must be one score, or row of scores, "
            "for each label"
        )
    n_total = sum(len(share.labels) for share in shares_of)
    places = [numbers(n_total, len(shares_of), w, shares) for w in range(len(shares_of))]
    order = np.argsort(np.concatenate(places))
    scores = np.concatenate([share.scores for share in shares_of])[order]
    labels = np.concatenate([share.labels for share in shares_of])[order]
    metrics = _metrics(scores, shares_of[0].kind)
    return {name: metric(scores, labels) for name, metric in metrics.items()}


def _metrics(scores: Scores, kind: Kind) -> dict[str, Metric]:
    """Return the metrics that suit the kind and the shape of the scores."""
    if kind == "values":
        if scores.ndim != 1:
            raise ValueError(
                f"predicted values have shape {scores.shape}, expected (n,), one number for each sample"
            )
        return REGRESSION_METRICS
    if kind == "logits":
        return LOGIT_BINARY_METRICS if scores.ndim == 1 else LOGIT_CLASS_METRICS
    return BINARY_METRICS if scores.ndim == 1 else CLASS_METRICS
