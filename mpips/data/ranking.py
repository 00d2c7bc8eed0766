"""The areas under the ROC curve and the precision-recall curve, for samples that are divided among workers.

The area is the share of pairs of a positive and a negative sample in which the positive one has the higher
score, ties counting half (Hanley and McNeil, Radiology 143, 1982; the Mann-Whitney U statistic). Twice the
number of such pairs is a whole number, so the result does not depend on how the samples are divided.

The area under the precision-recall curve is the average precision: the mean over all positive samples of the
share of positive samples among those with the same or a higher score (Manning, Raghavan and Schuetze,
"Introduction to Information Retrieval", 2008, section 8.4). Each of these shares is rounded, their sum is
exact.

A `Ranking` contains the distinct scores of some samples with the numbers of positive and negative samples
of each. Rankings of any samples can be merged. A ranking of one range of scores reduces to `Pairs`, three
numbers and a sum, and the pairs of adjacent ranges can be added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.exact import ExactSum, ratio

Float64: TypeAlias = npt.NDArray[np.float64]
Int64: TypeAlias = npt.NDArray[np.int64]

_CHUNK = 1 << 16  # scores of `pairs_of` that are compared at a time
_LOW_BITS = (
    20  # bits of a factor that are multiplied at a time, so that int64 sums of products are exact
)


class Pairs(msgspec.Struct, frozen=True):
    """The pairs of positive and negative samples within a range of scores.

    Attributes:
        wins: Twice the number of pairs whose positive sample has the higher score, plus the number of ties.
        positives: Number of positive samples.
        negatives: Number of negative samples.
        precisions: Sum over the positive samples of the precision at their score.
    """

    wins: int = 0
    positives: int = 0
    negatives: int = 0
    precisions: ExactSum = ExactSum()

    def below(self, higher: Pairs) -> Pairs:
        """Return the pairs of both ranges; all scores of `higher` are greater than those of this one."""
        return Pairs(
            self.wins + higher.wins + 2 * higher.positives * self.negatives,
            self.positives + higher.positives,
            self.negatives + higher.negatives,
            self.precisions + higher.precisions,
        )

    def to_numbers(self) -> list[int]:
        """Return all numbers, for `exact.pack`."""
        return [self.wins, self.positives, self.negatives, *self.precisions.to_numbers()]

    @classmethod
    def from_numbers(cls, numbers: Sequence[int]) -> Pairs:
        """Return the pairs of which `to_numbers` returned the numbers."""
        wins, positives, negatives, *precisions = numbers
        return cls(wins, positives, negatives, ExactSum(*precisions))

    def average_precision(self) -> float:
        """Return the area under the precision-recall curve; nan if there are no positive samples."""
        return self.precisions.over(self.positives) if self.positives else math.nan

    def area(self) -> float:
        """Return the area under the ROC curve, correctly rounded; nan if a class is absent."""
        n_pairs = self.positives * self.negatives
        return ratio(self.wins, 2 * n_pairs) if n_pairs else math.nan


def pairs_of(positive: Float64, negative: Float64) -> Pairs:
    """Return the pairs of all samples, equal to `Ranking.pairs`, in memory for the scores alone.

    Args:
        positive: Scores of the positive samples, float64, shape (n,), without nan; sorted in place.
        negative: Those of the other samples.
    """
    positive.sort()
    negative.sort()
    wins, precisions, start = 0, ExactSum(), 0
    while start < len(positive):
        part = positive[start : start + _CHUNK]
        places = np.flatnonzero(np.concatenate([[True], part[1:] != part[:-1]]))
        scores = part[places]
        # The last score of the chunk may go on behind it.
        end = int(np.searchsorted(positive, scores[-1], "right"))
        counts = np.diff(np.append(start + places, end))
        below = np.searchsorted(negative, scores, "left")
        ties = np.searchsorted(negative, scores, "right") - below
        wins += sum(
            n * w for n, w in zip(counts.tolist(), (2 * below + ties).tolist(), strict=True)
        )
        right, wrong = len(positive) - start - places, len(negative) - below
        precisions += ExactSum.of(counts * (right / np.maximum(right + wrong, 1)))
        start = end
    return Pairs(wins, len(positive), len(negative), precisions)


class Ranking(msgspec.Struct, frozen=True):
    """The distinct scores of some samples.

    Attributes:
        scores: float64, shape (n,), ascending, without nan.
        positives: int64, shape (n,): samples of class 1 with that score.
        negatives: int64, shape (n,): other samples with that score.
    """

    scores: Float64
    positives: Int64
    negatives: Int64

    @classmethod
    def of(cls, scores: Float64, positive: npt.NDArray[np.bool_]) -> Ranking:
        """Return the ranking of samples; samples whose score is nan are left out.

        Args:
            scores: float64, shape (n,).
            positive: bool, shape (n,).
        """
        known = ~np.isnan(scores)
        if not known.all():
            scores, positive = scores[known], positive[known]
        return _distinct(cls(scores, positive.astype(np.int64), (~positive).astype(np.int64)))

    def merge(self, other: Ranking) -> Ranking:
        """Return the ranking of the samples of both."""
        if not len(other.scores):
            return self
        return _distinct(
            Ranking(
                np.concatenate([self.scores, other.scores]),
                np.concatenate([self.positives, other.positives]),
                np.concatenate([self.negatives, other.negatives]),
            )
        )

    def part(self, start: int, stop: int) -> Ranking:
        """Return the scores from place `start` up to place `stop`."""
        where = slice(start, stop)
        return Ranking(self.scores[where], self.positives[where], self.negatives[where])

    def pairs(self, above: tuple[int, int] = (0, 0)) -> Pairs:
        """Return the pairs of these samples.

        Args:
            above: Numbers of positive and of negative samples with a score beyond all of these.
        """
        below = np.cumsum(self.negatives) - self.negatives
        factor = 2 * below + self.negatives
        high, low = factor >> _LOW_BITS, factor & ((1 << _LOW_BITS) - 1)
        wins = (int(self.positives @ high) << _LOW_BITS) + int(self.positives @ low)
        right = np.cumsum(self.positives[::-1])[::-1] + above[0]
        wrong = np.cumsum(self.negatives[::-1])[::-1] + above[1]
        precisions = ExactSum.of(self.positives * (right / np.maximum(right + wrong, 1)))
        return Pairs(wins, int(self.positives.sum()), int(self.negatives.sum()), precisions)

    def to_array(self) -> Int64:
        """Return all numbers, int64, shape (3, n); scores as their bits."""
        return np.stack([self.scores.view(np.int64), self.positives, self.negatives])

    @classmethod
    def from_array(cls, array: Int64) -> Ranking:
        """Return the ranking of which `to_array` returned the numbers; an empty array means no samples."""
        rows = array.reshape(3, -1)
        return cls(rows[0].view(np.float64), rows[1], rows[2])


def _distinct(found: Ranking) -> Ranking:
    """Return a ranking of scores in any order that may occur several times."""
    n = len(found.scores)
    if not n:
        return found
    order = np.argsort(found.scores, kind="stable")
    scores = found.scores[order]
    starts = np.flatnonzero(np.concatenate([[True], scores[1:] != scores[:-1]]))
    return Ranking(
        scores[starts],
        np.add.reduceat(found.positives[order], starts),
        np.add.reduceat(found.negatives[order], starts),
    )
