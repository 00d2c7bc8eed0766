"""Filtered ranks of the right entity among all entities, exactly.

The rank of an answer is 1 + (candidates with a higher score) + (other candidates with the same score) / 2:
the mean over all orders of equal scores. Filtered: a candidate that makes another known triple does not count
(Bordes et al., 2013). Scores are computed in float64 from float32 rows and rounded to float32, so that equal
rows have equal scores however a library divides a product of matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.tasks.kge_models import EmbeddingModel, Rows

Int64: TypeAlias = npt.NDArray[np.int64]
Float32: TypeAlias = npt.NDArray[np.float32]
Float64: TypeAlias = npt.NDArray[np.float64]

QUERIES = 1024  # queries whose scores are in memory at a time
CANDIDATES = 1 << 14  # candidates whose scores are in memory at a time
Pull: TypeAlias = Callable[[Int64], Float32]


class KnownTriples:
    """The known answers of each query, in compressed rows."""

    def __init__(self, triples: Int64, n_relations: int) -> None:
        """Sort the triples.

        Args:
            triples: Distinct or not, int64, shape (n, 3).
            n_relations: Number R of relations. Query (h, r) asks for tails, (t, R + r) for heads.
        """
        self._n = 2 * n_relations
        head, relation, tail = triples.T
        keys = np.concatenate([head * self._n + relation, tail * self._n + n_relations + relation])
        answers = np.concatenate([tail, head])
        order = np.lexsort((answers, keys))
        keys, answers = keys[order], answers[order]
        new = np.ones(len(keys), np.bool_)
        new[1:] = (keys[1:] != keys[:-1]) | (answers[1:] != answers[:-1])
        self._keys, self._answers = keys[new], answers[new]

    def of(self, given: Int64, relations: Int64) -> tuple[Int64, Int64]:
        """Return the known answers of queries.

        Args:
            given: The known entity of each query, shape (m,).
            relations: Its relation, from 0 to 2 R - 1, shape (m,).

        Returns:
            Number of the query and answer of each pair, int64, shape (n_pairs,), by query.
        """
        keys = given * self._n + relations
        start, stop = (np.searchsorted(self._keys, keys, side) for side in ("left", "right"))
        counts = stop - start
        places = np.repeat(start - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        return np.repeat(np.arange(len(keys)), counts), self._answers[places]


def ranks(
    model: EmbeddingModel,
    queries: Rows,
    right: Int64,
    known: tuple[Int64, Int64],
    pull: Pull,
    n_entities: int,
) -> Float64:
    """Return the filtered mean rank of each right answer, float64, shape (m,).

    Args:
        model: The model.
        queries: float64, shape (m, d).
        right: The answer of each query, shape (m,).
        known: Known answers, as `KnownTriples.of` returns them.
        pull: Returns the rows of entities, float32.
        n_entities: Number of candidates.

    Returns:
        The ranks; nan where a score is nan or infinite.
    """
    found = np.empty(len(right))
    for start in range(0, len(right), QUERIES):
        stop = min(start + QUERIES, len(right))
        own = queries[start:stop]
        first, last = np.searchsorted(known[0], (start, stop))
        rows, answers = known[0][first:last] - start, known[1][first:last]
        target = right[start:stop]
        level = _levels(model, own, target, pull)
        higher, equal = np.zeros(stop - start, np.int64), np.zeros(stop - start, np.int64)
        finite = np.isfinite(level)
        for at, scores in _scores(model, own, pull, n_entities):
            finite &= np.isfinite(scores).all(axis=1)
            hidden = (answers >= at) & (answers < at + scores.shape[1])
            scores[rows[hidden], answers[hidden] - at] = -np.inf
            # The answer itself does not count, known or not.
            here = np.flatnonzero((target >= at) & (target < at + scores.shape[1]))
            scores[here, target[here] - at] = -np.inf
            higher += (scores > level[:, np.newaxis]).sum(axis=1)
            equal += (scores == level[:, np.newaxis]).sum(axis=1)
        found[start:stop] = np.where(finite, 1 + higher + equal / 2, np.nan)
    return found


def _levels(model: EmbeddingModel, queries: Rows, right: Int64, pull: Pull) -> Float32:
    """Return the scores of the right answers, float32, shape (m,), computed as those of all candidates are.

    A score that is computed for a pair alone can differ by rounding, and then equal scores are not equal.
    """
    distinct, places = np.unique(right, return_inverse=True)
    scores = model.scores(queries, pull(distinct).astype(np.float64))
    found: Float32 = scores[np.arange(len(right)), places].astype(np.float32)
    return found


def best(
    model: EmbeddingModel,
    queries: Rows,
    known: tuple[Int64, Int64],
    pull: Pull,
    n_entities: int,
    top: int,
) -> tuple[Int64, Float32]:
    """Return the best candidates that are not known answers, the best first.

    Args:
        model: The model.
        queries: float64, shape (m, d).
        known: Known answers, as `KnownTriples.of` returns them.
        pull: Returns the rows of entities, float32.
        n_entities: Number of candidates.
        top: Number of candidates.

    Returns:
        Entities (int64) and scores (float32), shape (m, min(top, n_entities)); of equal scores the entity
        with the lower key comes first. A score is -inf where there are fewer candidates.
    """
    top = min(top, n_entities)
    entities = np.zeros((len(queries), top), np.int64)
    levels = np.full((len(queries), top), -np.inf, np.float32)
    for start in range(0, len(queries), QUERIES):
        own = queries[start : start + QUERIES]
        first, last = np.searchsorted(known[0], (start, start + len(own)))
        rows, answers = known[0][first:last] - start, known[1][first:last]
        part = slice(start, start + len(own))
        for at, scores in _scores(model, own, pull, n_entities):
            hidden = (answers >= at) & (answers < at + scores.shape[1])
            scores[rows[hidden], answers[hidden] - at] = -np.inf
            ids = np.broadcast_to(np.arange(at, at + scores.shape[1]), scores.shape)
            all_scores = np.concatenate([levels[part], scores], axis=1)
            all_ids = np.concatenate([entities[part], ids], axis=1)
            order = np.argsort(-all_scores, axis=1, kind="stable")[:, :top]
            levels[part] = np.take_along_axis(all_scores, order, axis=1)
            entities[part] = np.take_along_axis(all_ids, order, axis=1)
    return entities, levels


def _scores(
    model: EmbeddingModel, queries: Rows, pull: Pull, n_entities: int
) -> Iterator[tuple[int, Float32]]:
    """Yield the first candidate and the scores of each block of candidates, float32, shape (m, k)."""
    for start in range(0, n_entities, CANDIDATES):
        keys = np.arange(start, min(start + CANDIDATES, n_entities))
        yield start, model.scores(queries, pull(keys).astype(np.float64)).astype(np.float32)
