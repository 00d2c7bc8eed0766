"""Ranks of a user's held-out items among all items that the user does not have in the training data, exactly.

NDCG@10 of a user: the sum of 1 / log2(1 + rank) over the held-out items of rank 10 or better, divided by the
greatest possible sum (Järvelin and Kekäläinen, "Cumulated Gain-Based Evaluation of IR Techniques", ACM TOIS
20, 2002). Items with equal scores: the mean over all their orders (McSherry and Najork, "Computing
Information Retrieval Performance Measures Efficiently in the Presence of Tied Scores", ECIR 2008). recall@10:
the number of held-out items of rank 10 or better, divided by min(10, held-out items). Scores are computed in
float64 and rounded to float32, so that equal rows have equal scores.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data.quotients import Measured
from mpips.data.ratings import PairData

Int64: TypeAlias = npt.NDArray[np.int64]
Float32: TypeAlias = npt.NDArray[np.float32]
Float64: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]

CUT = 10  # ranks that count
VALUES = 1 << 22  # scores that are in memory at a time

_DISCOUNTS = 1 / np.log2(1 + np.arange(1, CUT + 1))
# Sums of the discounts, and of ones, of the first k ranks.
_GAIN = np.concatenate([[0.0], np.cumsum(_DISCOUNTS)])
_HITS = np.arange(CUT + 1.0)


class SeenItems:
    """The items of each user in the training data."""

    def __init__(self, pairs: Int64, n_items: int) -> None:
        """Sort the pairs (user, item), int64, shape (n, 2)."""
        self._n_items = n_items
        self._keys = np.unique(pairs[:, 0] * n_items + pairs[:, 1])

    def has(self, users: Int64, items: Int64) -> Flags:
        """Return True for pairs that are in the training data, bool, shape (n,); keys may be negative."""
        if not len(self._keys):
            return np.zeros(len(users), np.bool_)
        keys = np.where((users < 0) | (items < 0), -1, users * self._n_items + items)
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        found: Flags = self._keys[places] == keys
        return found

    def of(self, users: Int64) -> tuple[Int64, Int64]:
        """Return the number of the user and the item of each pair, int64, shape (n_pairs,)."""
        low = np.searchsorted(self._keys, users * self._n_items)
        high = np.where(users < 0, low, np.searchsorted(self._keys, (users + 1) * self._n_items))
        counts = high - low
        places = np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        return np.repeat(np.arange(len(users)), counts), self._keys[places] % self._n_items


def gains(users: Float32, items: Float32, held: PairData, seen: SeenItems) -> Measured:
    """Return the metrics of each user with held-out items; see `Task.measure`.

    Args:
        users: Rows of the users of `held`: bias and factor, shape (n, dim + 1).
        items: Rows of all items.
        held: The users and their held-out items. Items that a user has in the training data do not count.
        seen: The items of each user in the training data.
    """
    ndcg, recall, counts = np.zeros(held.n), np.zeros(held.n), np.zeros(held.n, np.int64)
    step = max(VALUES // max(len(items), 1), 1)
    for start in range(0, held.n, step):
        part = held.take(np.arange(start, min(start + step, held.n)))
        scores = _scores(users[start : start + part.n], items)
        rows, hidden = seen.of(part.users)
        scores[rows, hidden] = -np.inf
        owners = np.repeat(np.arange(part.n), np.diff(part.indptr))
        new = ~seen.has(part.users[owners], part.items)
        counts[start : start + part.n] = np.bincount(owners[new], minlength=part.n)
        # The CUT-th best score of each user: lower ones gain nothing.
        n_least = min(CUT, len(items))
        least = np.partition(scores, len(items) - n_least, axis=1)[:, len(items) - n_least]
        known = new & (part.items >= 0)
        level = np.where(known, scores[owners, np.maximum(part.items, 0)], -np.inf)
        for i in np.flatnonzero(known & ~(level < least[owners])).tolist():
            own = scores[owners[i]]
            before = int((own > level[i]).sum())
            ends = min(before, CUT), min(before + int((own == level[i]).sum()), CUT)
            n_equal = max(int((own == level[i]).sum()), 1)
            ndcg[start + owners[i]] += (_GAIN[ends[1]] - _GAIN[ends[0]]) / n_equal
            recall[start + owners[i]] += (_HITS[ends[1]] - _HITS[ends[0]]) / n_equal
        broken = ~np.isfinite(users[start : start + part.n]).all(axis=1)
        ndcg[start : start + part.n][broken] = recall[start : start + part.n][broken] = np.nan
    if not np.isfinite(items).all():
        ndcg[:] = recall[:] = np.nan
    there = counts > 0
    most = np.maximum(np.minimum(counts, CUT), 1)
    shares = (ndcg / _GAIN[most], recall / most)
    return {
        name: (np.where(there, share, 0), there.astype(np.float64))
        for name, share in zip(("ndcg_at_10", "recall_at_10"), shares, strict=True)
    }


def best_items(
    users: Float32, items: Float32, keys: Int64, seen: SeenItems, top: int
) -> tuple[Int64, Float32]:
    """Return the best items of each user among those that it does not have, the best first.

    Args:
        users: Rows of the users, shape (n, dim + 1).
        items: Rows of all items.
        keys: Keys of the users; negative: unknown.
        seen: The items of each user in the training data.
        top: Number of items.

    Returns:
        Items (int64) and scores (float32), shape (n, min(top, items)); of equal scores the lower key comes
        first. A score is -inf where there are fewer items.
    """
    top = min(top, len(items))
    chosen, levels = np.zeros((len(users), top), np.int64), np.zeros((len(users), top), np.float32)
    step = max(VALUES // max(len(items), 1), 1)
    for start in range(0, len(users), step):
        own = slice(start, min(start + step, len(users)))
        scores = _scores(users[own], items)
        rows, hidden = seen.of(keys[own])
        scores[rows, hidden] = -np.inf
        order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
        chosen[own], levels[own] = order, np.take_along_axis(scores, order, axis=1)
    return chosen, levels


def _scores(users: Float32, items: Float32) -> Float32:
    """Return b_u + b_i + <p_u, q_i> of each user and item, float32, shape (n, n_items)."""
    p, q = users.astype(np.float64), items.astype(np.float64)
    found: Float32 = (p[:, :1] + q[:, 0] + p[:, 1:] @ q[:, 1:].T).astype(np.float32)
    return found
