"""Metrics of scores against labels, for samples that are divided among workers.

All arithmetic is in float64. All samples have equal weight. Every metric is nan if there are no samples, or
if any score is nan.

Kinds of scores:

- "logits": shape (n,): log(p / (1 - p)) of class 1 of two; or shape (n, k): logarithms of the classes'
  probabilities up to a constant per sample. Losses and ranks are computed from logits directly, because
  float32 probabilities are exactly 1 for logits of 17 or more (float64 ones for 37 or more), and ties hide
  the order.
- "probabilities": shape (n,) of class 1 of two, or shape (n, k).
- "values": shape (n,): predictions of a number (regression).
- "labels": shape (n, k): logits of several labels, each 0 or 1 (`mpips.data.label_metrics`).

Labels are classes, int64, shape (n,); for "values" the targets, float64; for "labels" int64, shape (n, k).

The value of a sample (its loss, its error) is computed in float64. Sums of these values are exact
(`mpips.data.exact`) and rounded once, at the end. So a metric has the same bits for any number of workers and
any order of samples, and a worker sends `Totals`, a few hundred bytes. The AUC needs all scores:
`mpips.data.ranking`.

Definitions: AUC and PR-AUC: see `mpips.data.ranking`. Log-loss and cross-entropy: the negative mean log-
likelihood in nats (Bishop, "Pattern Recognition and Machine Learning", 2006, eq. 4.90 and 4.108). RMSE:
square root of the mean squared error, divided by n. R2: the coefficient of determination 1 - SS_res / SS_tot
with SS_tot about the mean of the evaluated targets (Draper and Smith, "Applied Regression Analysis", 1998);
it is negative for predictions worse than that mean, and nan where all targets are equal, since SS_tot is 0.
MAE: mean of the absolute errors. F1: 2 TP / (2 TP + FP + FN) of class 1, guessed where its probability is 0.5
or more; 0 if class 1 neither occurs nor is guessed (van Rijsbergen, "Information Retrieval", 1979).
Calibration: sum of the probabilities of class 1 divided by the samples of class 1, so 1 is best and more
means that predictions are too high (He et al., "Practical Lessons from Predicting Clicks on Ads at Facebook",
ADKDD 2014); nan without such samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data import exact
from mpips.data.dataset import Labels
from mpips.data.exact import UNIT_BITS, ExactSum, ratio
from mpips.data.ranking import Pairs, Ranking

Scores: TypeAlias = npt.NDArray[np.floating[Any]]
Float64: TypeAlias = npt.NDArray[np.float64]
Kind: TypeAlias = Literal["probabilities", "logits", "values", "labels"]

# Lower bound of probabilities whose logarithm is taken; logits have no such bound.
PROBABILITY_FLOOR = 1e-15

# Names of the metrics of two classes, of more classes, of numbers, and of several labels.
BINARY_METRICS = ("accuracy", "auc", "log_loss")
CLASS_METRICS = ("accuracy", "cross_entropy")
REGRESSION_METRICS = ("rmse", "r2")
LABEL_METRICS = ("micro_f1", "macro_f1", "mean_auc", "hamming_loss", "log_loss")
# Names of metrics that are computed on request only.
MORE_BINARY = ("f1", "pr_auc", "calibration")
MORE_REGRESSION = ("mae",)
HIGHER_IS_BETTER = frozenset(
    ("accuracy", "auc", "r2", "f1", "pr_auc", "micro_f1", "macro_f1", "mean_auc")
)
LOWER_IS_BETTER = frozenset(("log_loss", "cross_entropy", "rmse", "mae", "hamming_loss"))
# Metrics that count where a job names none, in this order.
BY_DEFAULT = ("log_loss", "cross_entropy", "rmse")

_ZERO = ExactSum()


class EvalShare(msgspec.Struct, frozen=True):
    """One worker's part of an evaluation.

    Attributes:
        scores: Shape (n,) or (n, k); see the kinds at the top of this module.
        labels: Classes (int64) or targets (float64), shape (n,).
        kind: Kind of the scores.
    """

    scores: Scores
    labels: Labels
    kind: Kind = "probabilities"

    @property
    def form(self) -> str:
        """Kind and shape of the scores, which are equal on all workers."""
        sizes = "".join(f", {k}" for k in self.scores.shape[1:])
        return f"{self.kind} of shape (n{sizes})"

    @property
    def ranked(self) -> bool:
        """True if there is an AUC."""
        return self.kind != "values" and self.scores.ndim == 1

    def columns(self) -> list[EvalShare]:
        """Return a share of two classes for each of several labels, else this share alone."""
        if self.kind != "labels":
            return [self]
        _check(self)
        pairs = zip(self.scores.T, self.labels.T, strict=True)
        return [EvalShare(scores, labels, "logits") for scores, labels in pairs]

    def ranking(self) -> Ranking:
        """Return the ranking of the samples."""
        return Ranking.of(self.scores.astype(np.float64), self.labels == 1)


class Totals(msgspec.Struct, frozen=True):
    """Sums over samples, from which all metrics but the areas follow. The totals of two workers can be added.

    Attributes:
        n: Number of samples.
        n_nan: Number of scores that are nan.
        n_right: Number of samples whose class is right; 0 for "values".
        losses: Sum of the losses; for "values" of the squared errors.
        targets: Sum of the targets of "values".
        target_squares: Sum of their squares.
        n_guessed: Number of samples for which class 1 is guessed, of two classes; else 0.
        n_positive: Number of samples of class 1, of two classes; else 0.
        n_found: Number of samples of class 1 for which class 1 is guessed.
        ones: Sum of the probabilities of class 1, of two classes; of "values" the absolute errors.
    """

    n: int = 0
    n_nan: int = 0
    n_right: int = 0
    losses: ExactSum = _ZERO
    targets: ExactSum = _ZERO
    target_squares: ExactSum = _ZERO
    n_guessed: int = 0
    n_positive: int = 0
    n_found: int = 0
    ones: ExactSum = _ZERO

    @classmethod
    def of(cls, share: EvalShare) -> Totals:
        """Return the totals of one worker's samples.

        Raises:
            ValueError: There is not one score, or row of scores, for each label.
        """
        _check(share)
        # Sums within a sample must not depend on the layout of the array.
        scores = np.ascontiguousarray(share.scores, np.float64)
        labels, n, n_nan = share.labels, len(share.labels), int(np.isnan(scores).sum())
        if share.kind == "values":
            targets = np.asarray(labels, np.float64)
            return cls(
                n,
                n_nan,
                0,
                ExactSum.of_squares(scores - targets),
                ExactSum.of(targets),
                ExactSum.of_squares(targets),
                ones=ExactSum.of(np.abs(scores - targets)),
            )
        guesses = _guesses(scores, share.kind)
        n_right = int(np.count_nonzero(guesses == labels))
        losses = ExactSum.of(_losses(scores, labels, share.kind))
        if not share.ranked:
            return cls(n, n_nan, n_right, losses)
        positive = labels == 1
        return cls(
            n,
            n_nan,
            n_right,
            losses,
            n_guessed=int(np.count_nonzero(guesses)),
            n_positive=int(np.count_nonzero(positive)),
            n_found=int(np.count_nonzero(guesses & positive)),
            ones=ExactSum.of(_probabilities(scores, share.kind)),
        )

    def __add__(self, other: Totals) -> Totals:
        """Return the totals of the samples of both."""
        return Totals(
            self.n + other.n,
            self.n_nan + other.n_nan,
            self.n_right + other.n_right,
            self.losses + other.losses,
            self.targets + other.targets,
            self.target_squares + other.target_squares,
            self.n_guessed + other.n_guessed,
            self.n_positive + other.n_positive,
            self.n_found + other.n_found,
            self.ones + other.ones,
        )

    def to_numbers(self) -> list[int]:
        """Return all numbers, for `exact.pack`."""
        counts = [self.n, self.n_nan, self.n_right, self.n_guessed, self.n_positive, self.n_found]
        sums = (self.losses, self.targets, self.target_squares, self.ones)
        return [*counts, *(number for s in sums for number in s.to_numbers())]

    @classmethod
    def from_numbers(cls, numbers: Sequence[int]) -> Totals:
        """Return the totals of which `to_numbers` returned the numbers."""
        n, n_nan, n_right, n_guessed, n_positive, n_found, *rest = numbers
        losses, targets, squares, ones = (ExactSum(*rest[i : i + 4]) for i in range(0, 16, 4))
        return cls(
            n, n_nan, n_right, losses, targets, squares, n_guessed, n_positive, n_found, ones
        )

    def metrics(self, share: EvalShare, pairs: Pairs, more: Sequence[str] = ()) -> dict[str, float]:
        """Return the value of each metric by its name.

        Args:
            share: Any worker's share; its kind and shape are used.
            pairs: Pairs of all samples, if `share.ranked`.
            more: Names of metrics to add; those that such scores do not have are left out.
        """
        known = self.n and not self.n_nan
        mean = self.losses.over(self.n) if known else math.nan
        right = self.n_right / max(self.n, 1)
        if share.kind == "values":
            found = dict(zip(REGRESSION_METRICS, (math.sqrt(mean), self._r2()), strict=True))
        elif share.ranked:
            found = dict(zip(BINARY_METRICS, (right, pairs.area(), mean), strict=True))
        else:
            found = dict(zip(CLASS_METRICS, (right, mean), strict=True))
        found |= {name: value for name, value in self._more(share, pairs).items() if name in more}
        return {name: value if known else math.nan for name, value in found.items()}

    def _more(self, share: EvalShare, pairs: Pairs) -> dict[str, float]:
        """Return the metrics that are computed on request."""
        if share.kind == "values":
            return {"mae": self.ones.over(self.n) if self.n else math.nan}
        if not share.ranked:
            return {}
        # n_guessed = TP + FP, n_positive = TP + FN
        f1 = ratio(2 * self.n_found, max(self.n_guessed + self.n_positive, 1))
        calibration = self.ones.over(self.n_positive) if self.n_positive else math.nan
        values = (f1, pairs.average_precision(), calibration)
        return dict(zip(MORE_BINARY, values, strict=True))

    def _r2(self) -> float:
        """Return 1 - (sum of squared errors) / (sum of squares about the targets' mean), rounded once."""
        about_mean = ((self.n * self.target_squares.units) << UNIT_BITS) - self.targets.units**2
        if about_mean == 0 or not self.targets.finite:
            return math.nan
        if not self.losses.finite:
            return -self.losses.over(1)
        return ratio(about_mean - ((self.n * self.losses.units) << UNIT_BITS), about_mean)


def accuracy(scores: Scores, labels: Labels) -> float:
    """Return the share of samples whose most probable class is right; 0.5 counts as class 1.

    `scores` are probabilities of shape (n,) or (n, k).
    """
    return merge([EvalShare(scores, labels)])["accuracy"]


def auc(scores: Scores, labels: Labels) -> float:
    """Return the exact area under the ROC curve: P(score of a 1 > score of a 0), ties counting half.

    Any increasing function of the score gives the same value, except for ties that rounding makes. The result
    is nan if a class is absent or a score is nan.
    """
    return merge([EvalShare(scores, labels)])["auc"]


def log_loss(scores: Scores, labels: Labels) -> float:
    """Return the mean of -log(probability of the true class), in nats, for probabilities (n,)."""
    return merge([EvalShare(scores, labels)])["log_loss"]


def cross_entropy(scores: Scores, labels: Labels) -> float:
    """Return the mean of -log(probability of the true class), in nats, for probabilities (n, k)."""
    return merge([EvalShare(scores, labels)])["cross_entropy"]


def merge(shares_of: Sequence[EvalShare], more: Sequence[str] = ()) -> dict[str, float]:
    """Compute the metrics of all samples from the shares of all workers.

    Args:
        shares_of: The share of each worker, in any order.
        more: Names of metrics to add; see `Totals.metrics`.

    Returns:
        The value of each metric by its name.

    Raises:
        ValueError: There are no shares, their shapes differ, or there is not one score per sample.
    """
    if not shares_of or len({share.form for share in shares_of}) > 1:
        shapes = [share.scores.shape for share in shares_of]
        raise ValueError(
            f"scores of the workers have shapes {shapes}: there must be at least one share, and predict must "
            "return the same form on all workers"
        )
    totals = sum((Totals.of(share) for share in shares_of), Totals())
    pairs = Pairs()
    if shares_of[0].ranked:
        ranking = shares_of[0].ranking()
        for share in shares_of[1:]:
            ranking = ranking.merge(share.ranking())
        pairs = ranking.pairs()
    return totals.metrics(shares_of[0], pairs, more)


def _check(share: EvalShare) -> None:
    """Raise ValueError if the shapes of scores and labels do not fit."""
    if share.kind == "values" and share.scores.ndim != 1:
        raise ValueError(
            f"predicted values have shape {share.scores.shape}, expected (n,), one number for each sample"
        )
    if share.kind == "labels" and share.scores.shape != share.labels.shape:
        raise ValueError(
            f"scores have shape {share.scores.shape} and several labels {share.labels.shape}: there must be "
            "a score for each label"
        )
    if len(share.scores) != len(share.labels):
        raise ValueError(
            f"scores have shape {share.scores.shape} and there are {len(share.labels)} labels: there must be "
            "one score, or row of scores, for each label"
        )


def _guesses(scores: Float64, kind: Kind) -> npt.NDArray[Any]:
    """Return the most probable class of each sample; of equal ones 1 of two classes, else the lowest."""
    if scores.ndim > 1:
        guesses: npt.NDArray[Any] = np.argmax(scores, axis=1)
    else:
        guesses = scores >= (0.0 if kind == "logits" else 0.5)
    return guesses


def _probabilities(scores: Float64, kind: Kind) -> Float64:
    """Return the probability of class 1 of two for each sample, shape (n,)."""
    if kind == "probabilities":
        return scores
    # Use only exponents of 0 or less, so that nothing overflows.
    small = np.exp(-np.abs(scores))
    probabilities: Float64 = np.where(scores >= 0, 1.0, small) / (1 + small)
    return probabilities


def _losses(scores: Float64, labels: Labels, kind: Kind) -> Float64:
    """Return -log(probability of the true class) of each sample, in nats."""
    n = np.arange(len(labels))
    if kind == "probabilities":
        one = scores.ndim == 1
        true = np.where(labels == 1, scores, 1 - scores) if one else scores[n, labels]
        losses: Float64 = -np.log(np.clip(true, PROBABILITY_FLOOR, 1.0))
        return losses
    with np.errstate(invalid="ignore"):  # nan, and infinity - infinity
        if scores.ndim == 1:
            # log(1 + exp(-z)) of class 1, log(1 + exp(z)) of class 0
            losses = np.logaddexp(0.0, np.where(labels == 1, -scores, scores))
        else:
            # log(sum of exp(z)) - z of the true class
            z = scores - scores.max(axis=1, keepdims=True)
            losses = np.log(np.exp(z).sum(axis=1)) - z[n, labels]
    return losses


def pack(totals: Sequence[Totals], pairs: Sequence[Pairs]) -> npt.NDArray[np.int64]:
    """Return totals and as many pairs as int64 values."""
    both = zip(totals, pairs, strict=True)
    return exact.pack([x for t, p in both for x in (*t.to_numbers(), *p.to_numbers())])


def unpack(packed: npt.NDArray[np.int64]) -> tuple[list[Totals], list[Pairs]]:
    """Return the totals and pairs that `pack` packed."""
    numbers = exact.unpack(packed)
    starts = range(0, len(numbers), _NUMBERS)
    totals = [Totals.from_numbers(numbers[i : i + _OF_TOTALS]) for i in starts]
    return totals, [Pairs.from_numbers(numbers[i + _OF_TOTALS : i + _NUMBERS]) for i in starts]


# Numbers of packed totals, and of these with pairs.
_OF_TOTALS = len(Totals().to_numbers())
_NUMBERS = _OF_TOTALS + len(Pairs().to_numbers())
