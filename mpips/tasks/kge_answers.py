"""Metrics, scores and answers of a trained knowledge graph."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data.quotients import Measured
from mpips.data.triples import ASKED, Texts, TripleBatch
from mpips.data.vocabulary import Vocabulary
from mpips.tasks.base import Float32, Worker
from mpips.tasks.kge_models import EmbeddingModel, Rows
from mpips.tasks.kge_options import KgeOptions
from mpips.tasks.kge_ranking import KnownTriples, Pull, best, ranks

Int64: TypeAlias = npt.NDArray[np.int64]
Float64: TypeAlias = npt.NDArray[np.float64]


class Ranker:
    """Ranks the answers of queries with the rows that a worker pulls."""

    def __init__(
        self,
        model: EmbeddingModel,
        options: KgeOptions,
        entities: Vocabulary,
        relations: Vocabulary,
        known: Int64,
    ) -> None:
        """Take the parts of a task.

        Args:
            model: The model.
            options: The options, resolved.
            entities: The names of entities.
            relations: The names of relations.
            known: Triples that are known to be true, int64, shape (n, 3).
        """
        self._model = model
        self._options = options
        self._entities, self._relations = entities, relations
        self._known = known
        self._facts = KnownTriples(known, len(relations))
        # The known triples with those of the file that was evaluated last.
        self._file: Int64 | None = None
        self._with_file = self._facts

    def measure(self, worker: Worker, batch: TripleBatch) -> Measured:
        """Return the metrics of both directions of each triple; see `Task.measure`."""
        found = self._ranks(worker, self._puller(worker), batch.ids, self._all_known(batch.known))
        unknown = (batch.ids < 0).any(axis=1)
        found[unknown] = (len(self._entities) + 1) / 2
        values = found.ravel()
        n = np.ones(len(values))
        finite = np.where(np.isnan(values), np.nan, 1.0)
        hits = {k: np.where(values <= k, 1.0, 0.0) * finite for k in (1, 3, 10)}
        return {
            "mrr": (1 / values, n),
            **{f"hits_at_{k}": (own, n) for k, own in hits.items()},
            "mean_rank": (values, n),
        }

    def triple_scores(self, worker: Worker, ids: Int64) -> Float32:
        """Return the score of each triple, float32, shape (n,); nan where a key is negative."""
        return self._scores(worker, self._puller(worker), ids)

    def _scores(self, worker: Worker, pull: Pull, ids: Int64) -> Float32:
        found = np.full(len(ids), np.nan, np.float32)
        whole = np.flatnonzero((ids >= 0).all(axis=1))
        if len(whole):
            head, relation, tail = ids[whole].T
            queries = self._queries(worker, pull, head, relation, reverse=False)
            answers = pull(tail).astype(np.float64)
            found[whole] = self._model.pairs(queries, answers)
        return found

    def columns(self, worker: Worker, batch: TripleBatch) -> dict[str, Any]:
        """Return the columns of `mpips predict`: a row for each triple, and `top` rows for each question."""
        ids = batch.ids
        pull = self._puller(worker)
        scores = self._scores(worker, pull, ids)
        found = self._ranks(worker, pull, ids, self._all_known(batch.known))
        asked = (ids == ASKED).any(axis=1)
        pieces = []
        for side in (2, 0):
            own = np.flatnonzero(
                (ids[:, side] == ASKED) & (np.delete(ids, side, 1) >= 0).all(axis=1)
            )
            pieces.append(self._answers(worker, pull, ids, own, side))
        plain = np.flatnonzero(~asked)
        pieces.append((plain, ids[plain], scores[plain], found[plain, 1], found[plain, 0]))
        numbers, triples, values, head_ranks, tail_ranks = (
            np.concatenate([piece[i] for piece in pieces]) for i in range(5)
        )
        order = np.argsort(numbers, kind="stable")
        texts = batch.names[numbers[order]] if batch.names is not None else None
        kinds = (self._entities, self._relations, self._entities)
        names = [
            named(kind, triples[order, i], texts[:, i] if texts is not None else None)
            for i, kind in enumerate(kinds)
        ]
        return {
            **dict(zip(("head", "relation", "tail"), names, strict=True)),
            "score": values[order].astype(np.float32),
            "head_rank": head_ranks[order],
            "tail_rank": tail_ranks[order],
        }

    def _answers(
        self, worker: Worker, pull: Pull, ids: Int64, own: Int64, side: int
    ) -> tuple[Any, ...]:
        """Return the best answers to some questions: numbers of questions, triples, scores, ranks."""
        given, relations = ids[own, 2 - side], ids[own, 1]
        reverse = side == 0
        queries = self._queries(worker, pull, given, relations, reverse)
        n_relations = len(self._relations)
        known = self._facts.of(given, relations + n_relations * reverse)
        entities, scores = best(
            self._model,
            queries,
            known,
            pull,
            len(self._entities),
            self._options.top,
        )
        numbers = np.repeat(own, entities.shape[1])
        triples = ids[numbers].copy()
        triples[:, side] = entities.ravel()
        places = np.tile(np.arange(1.0, entities.shape[1] + 1), len(own))
        values = scores.ravel()
        there = values > -np.inf
        nothing = np.full(len(values), np.nan)
        pair = (places, nothing) if reverse else (nothing, places)
        return (numbers[there], triples[there], values[there], pair[0][there], pair[1][there])

    def _ranks(self, worker: Worker, pull: Pull, ids: Int64, known: KnownTriples) -> Float64:
        """Return the ranks of tail and head, float64, shape (n, 2); nan where a key is negative."""
        found = np.full((len(ids), 2), np.nan)
        whole = np.flatnonzero((ids >= 0).all(axis=1))
        if not len(whole):
            return found
        head, relation, tail = ids[whole].T
        for i, (given, right) in enumerate(((head, tail), (tail, head))):
            found[whole, i] = ranks(
                self._model,
                self._queries(worker, pull, given, relation, reverse=i == 1),
                right,
                known.of(given, relation + len(self._relations) * i),
                pull,
                len(self._entities),
            )
        return found

    def _queries(
        self, worker: Worker, pull: Pull, given: Int64, relations: Int64, reverse: bool
    ) -> Rows:
        """Return the queries for tails, or for heads if `reverse`, float64, shape (m, d)."""
        reciprocal = reverse and self._options.reciprocals
        keys = relations + len(self._relations) if reciprocal else relations
        distinct, places = np.unique(keys, return_inverse=True)
        rows: Rows = worker.table("relation").pull(distinct)[places].astype(np.float64)
        if reverse and not reciprocal:
            rows = self._model.flip(rows)
        return self._model.query(pull(given).astype(np.float64), rows)

    def _puller(self, worker: Worker) -> Pull:
        """Return a function from keys, which may occur several times, to the rows of entities, float32."""
        table = worker.table("entity")
        if self._options.negatives == 0:
            rows: Float32 = table.pull()
            return lambda keys: rows[keys]

        def pull(keys: Int64) -> Float32:
            distinct, places = np.unique(keys, return_inverse=True)
            found: Float32 = table.pull(distinct)[places]
            return found

        return pull

    def _all_known(self, file: Int64) -> KnownTriples:
        """Return the known triples together with those of a file."""
        if self._file is not file:
            triples = file[(file >= 0).all(axis=1)]
            parts = np.concatenate([self._known, triples])
            self._file, self._with_file = file, KnownTriples(parts, len(self._relations))
        return self._with_file


def named(vocabulary: Vocabulary, keys: Int64, texts: Texts | None) -> Texts:
    """Return the names of keys, shape (n,); of negative keys the text of the file, or "?" without texts."""
    others = texts.tolist() if texts is not None else ["?"] * len(keys)
    names = vocabulary.names
    pairs = zip(keys.tolist(), others, strict=True)
    return np.array([names[key] if key >= 0 else text for key, text in pairs], np.str_)
