"""Embeddings of a knowledge graph: rows for entities and relations that score triples (head, relation, tail).

Each triple gives two queries: (head, relation, ?) and (?, relation, tail). `kge_models.py` has the scores,
`kge_losses.py` the losses, `kge_ranking.py` the filtered ranks.

With 1-vs-all the entities are one dense table, of which each step needs all rows; otherwise they are an
embedding table. Negatives and dropout of a step depend on the seed of the job and on the triples of the batch
alone, so a step that is repeated after a failure makes the same pushes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips._native import Xxh3
from mpips.data import triples
from mpips.data.info import DataInfo
from mpips.data.options import Share
from mpips.data.quotients import Direction, Measured
from mpips.data.rows import Arrays, Purpose, TaskPart, describe_samples, grouped
from mpips.data.triples import TripleBatch, TripleData
from mpips.data.vocabulary import Vocabulary
from mpips.errors import ConfigError
from mpips.model.optimizer import Adagrad
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.tasks.base import Float32, StepResult, Task, Worker
from mpips.tasks.kge_answers import Ranker
from mpips.tasks.kge_choice import GraphSize, choose, reason
from mpips.tasks.kge_losses import cubes, full_softmax, logistic, sampled_softmax
from mpips.tasks.kge_options import KgeOptions
from mpips.tasks.proposals import RATE, Proposal, around, between

Int64: TypeAlias = npt.NDArray[np.int64]
# Triples that are asked for are no facts, and do not hide each other.
_NO_FACTS = np.zeros((0, 3), np.int64)
ENTITIES, RELATIONS, KNOWN = "vocabulary/entities", "vocabulary/relations", "task/known"


class _Queries(NamedTuple):
    """The queries of a batch of n triples: first (head, relation, ?), then (?, relation, tail).

    Attributes:
        given: Keys of the known entities, int64, shape (2 n,).
        right: Keys of the answers.
        relations: Keys in the table of relations.
    """

    given: Int64
    right: Int64
    relations: Int64


class Kge(Task):
    """Entities in the table `entity`, relations in the table `relation`."""

    name = "kge"
    Options = KgeOptions
    labels = "none"
    default_epochs = 40
    default_batch_size = 128
    optimizer_options: ClassVar = {"learning_rate": ("", "lr")}
    prediction_options: ClassVar = ("top",)
    metrics = ("mrr", "hits_at_1", "hits_at_3", "hits_at_10")
    own_metrics: ClassVar[dict[str, Direction]] = {
        "mrr": "higher",
        "hits_at_1": "higher",
        "hits_at_3": "higher",
        "hits_at_10": "higher",
        "mean_rank": "lower",
    }

    @classmethod
    def choose(cls, info: DataInfo, options: KgeOptions) -> dict[str, Any]:
        """Choose epochs, batch size, negatives and regularisation; see `mpips.tasks.kge_choice`."""
        graph = GraphSize(info.size("entities"), info.n_samples_total)
        softmax = options.loss_of_model() == "softmax"
        return choose(graph, options.dim, options.has_products(), softmax)

    @classmethod
    def read(
        cls, path: str, options: KgeOptions, share: Share, like: Arrays | None, purpose: Purpose
    ) -> TaskPart:
        """Read triples; see `mpips.data.triples`. Each triple of training data is read once."""
        if like is not None:
            found = triples.read_as(path, *_names(like))
            rows = share.numbers(0, len(found))
            info = describe_samples(len(found), len(rows), path)
            n_unknown = int((found == triples.UNKNOWN).any(axis=1).sum())
            what = "count as if all entities had the same score"
            notes = (*triples.header_notes(path), *_unknown_note(n_unknown, len(found), what))
            return TaskPart(TripleData(found[rows], found), info, notes=notes)
        found, entities, relations, n_again = triples.read_new(path)
        others = [triples.read_as(file, entities, relations) for file in options.known]
        own = found[share.numbers(0, len(found))]
        arrays: dict[str, npt.NDArray[Any]] = {
            ENTITIES: entities.to_array(),
            RELATIONS: relations.to_array(),
            KNOWN: triples.known_of([found, *others]),
        }
        info = describe_samples(len(found), len(own), path, arrays)
        again = (f"{path}: {n_again:,} triples occur again and are left out",) if n_again else ()
        notes = (*triples.header_notes(path), *again)
        return TaskPart(TripleData(own, own[:0]), info, arrays, notes)

    @classmethod
    def read_parts(
        cls, path: str, options: KgeOptions, like: Arrays, say: Callable[[str], None]
    ) -> Iterator[TripleData]:
        """Read questions; see `mpips.data.triples.questions`."""
        n = n_unknown = 0
        for lines in grouped(triples.questions(path, *_names(like))):
            ids = np.array([keys for keys, _ in lines], np.int64)
            n, n_unknown = n + len(ids), n_unknown + int((ids == triples.UNKNOWN).any(axis=1).sum())
            yield TripleData(ids, _NO_FACTS, np.array([names for _, names in lines], np.str_))
        for note in _unknown_note(n_unknown, n, "have no score"):
            say(note)

    def __init__(self, info: DataInfo, options: KgeOptions, seed: int) -> None:
        """Check the options.

        Raises:
            ConfigError: They contradict each other.
        """
        self._n_entities, self._n_relations = info.size("entities"), info.size("relations")
        self._options = own = options.resolved(self._n_entities, info.chosen)
        self._chosen = dict(info.chosen)
        self._model = own.embedding_model()
        self._seed = seed
        self._place = (0, 0)  # epoch and step
        self._all = own.negatives == 0
        self._ranker: Ranker | None = None
        if self._model.complex_rows and own.dim % 2:
            raise ConfigError(
                f"options.dim = {own.dim}: must be even: rows of '{own.model}' are complex numbers"
            )
        if self._all and own.loss == "logistic":
            raise ConfigError(
                "options.negatives = 0: the loss 'logistic' needs negatives: set options.negatives, or "
                "options.loss = 'softmax'"
            )

    def tables(self) -> list[Table]:
        """Return `entity` and `relation`; with reciprocals relation r has the keys r and R + r."""
        own = self._options
        optimizer = Adagrad(lr=own.learning_rate)
        init = f"normal({own.init_std!r})"
        angles = f"uniform({np.pi!r})" if own.model == "rotate" else init
        relation = self._model.relation_dim(own.dim)
        entity: Table = EmbeddingTable("entity", own.dim, optimizer=optimizer, init=init)
        if self._all:
            entity = DenseTable(
                "entity", (self._n_entities, own.dim), optimizer=optimizer, init=init
            )
        return [entity, EmbeddingTable("relation", relation, optimizer=optimizer, init=angles)]

    def receive(self, arrays: Arrays) -> None:
        """Take the vocabularies and the known triples."""
        entities, relations = _names(arrays)
        known = arrays[KNOWN].astype(np.int64)
        self._ranker = Ranker(self._model, self._options, entities, relations, known)

    def describe_model(self) -> str:
        """Return the model, how it is trained, and why that was chosen."""
        own = self._options
        against = "all entities" if self._all else f"{own.negatives:,} shared negatives"
        corrected = " with log-Q correction" if own.correction and not self._all else ""
        directions = "reciprocal relations" if own.reciprocals else "one row per relation"
        text = (
            f"{own.model}, dim {own.dim}, {directions}; {own.loss} against {against}{corrected}; "
            f"n3 {own.n3:g}, dropout {own.dropout:g}"
        )
        if not self._chosen:
            return text
        return f"{text} (values left out are chosen for {reason(own.dim, self._chosen)})"

    def proposals(self) -> list[Proposal]:
        """Propose the regularisation of products, or the loss of distances, and the rate."""
        own = self._options
        assert own.n3 is not None
        assert own.dropout is not None
        rate = around("learning_rate", own.learning_rate, 5, RATE)
        if own.loss == "logistic":
            assert own.margin is not None
            return [
                between(
                    "margin",
                    own.margin,
                    0.5,
                    12.0,
                    "how far apart true and drawn triples are pushed",
                ),
                between(
                    "temperature",
                    own.temperature,
                    0.0,
                    2.0,
                    "weight of the negatives that are hard",
                ),
                rate,
            ]
        return [
            around(
                "n3", own.n3 or 0.01, 20, "suitable values differ by a factor of 100 between graphs"
            ),
            between(
                "dropout", own.dropout, 0.0, 0.5, "helps long rows and dense graphs, harms others"
            ),
            rate,
        ]

    def begin_step(self, epoch: int, step: int, n_steps: int) -> None:
        """Take the place of the next step, for its random numbers."""
        self._place = epoch, step

    def step(self, worker: Worker, batch: Any) -> StepResult:
        """Pull the rows of the batch, compute the gradients, push them."""
        draw = self._draws(batch)
        queries = self._queries(batch.ids)
        keys, pull_places = self._entity_keys(queries, draw)
        table = worker.table("entity")
        rows = table.pull() if self._all else table.pull(keys)
        relation_keys, at = np.unique(queries.relations, return_inverse=True)
        relation_rows = worker.table("relation").pull(relation_keys)

        # The mean over the batch of the mean over both directions.
        scale = np.float32(batch.weight / (2 * batch.n))
        loss, by_entity, by_relation = self._gradients(
            rows, relation_rows[at], pull_places, scale, draw
        )
        summed = np.zeros_like(relation_rows)
        add_rows(summed, at, by_relation)
        if self._all:
            table.push(by_entity, base=rows)
        else:
            table.push(keys, by_entity, base=rows)
        worker.table("relation").push(relation_keys, summed, base=relation_rows)
        return StepResult(loss / 2, batch.n)

    def _draws(self, batch: TripleBatch) -> np.random.Generator:
        """Return the random numbers of a step, which the seed, its place and its triples determine."""
        digest = Xxh3()
        digest.update(np.array(self._place, np.int64))
        digest.update(np.ascontiguousarray(batch.ids))
        return np.random.Generator(np.random.Philox([self._seed & (2**64 - 1), digest.digest()]))

    def _queries(self, ids: Int64) -> _Queries:
        head, relation, tail = ids.T
        other = relation + self._n_relations if self._options.reciprocals else relation
        both = np.concatenate
        return _Queries(both([head, tail]), both([tail, head]), both([relation, other]))

    def _entity_keys(
        self, queries: _Queries, draw: np.random.Generator
    ) -> tuple[Int64, tuple[Int64, Int64, Int64]]:
        """Return the entities of a step, and the places in them of known entities, answers and negatives."""
        if self._all:
            return np.zeros(0, np.int64), (queries.given, queries.right, np.zeros(0, np.int64))
        negatives = draw.integers(0, self._n_entities, self._options.negatives)
        parts = (queries.given, queries.right, negatives)
        keys, places = np.unique(np.concatenate(parts), return_inverse=True)
        n = len(queries.given)
        return keys, (places[:n], places[n : 2 * n], places[2 * n :])

    def _gradients(
        self,
        rows: Float32,
        relations: Float32,
        places: tuple[Int64, Int64, Int64],
        scale: np.float32,
        draw: np.random.Generator,
    ) -> tuple[float, Float32, Float32]:
        """Return the loss, summed over queries, and the gradients by entities and by relations.

        Args:
            rows: Rows of the entities of this step.
            relations: The row of the relation of each query, shape (m, d_r).
            places: Place in `rows` of the known entity of each query, of its answer, and of the negatives.
            scale: Factor of the gradient of a query's loss.
            draw: The random numbers of the step.
        """
        model, own = self._model, self._options
        given, right, negatives = places
        half = len(given) // 2
        x, r = rows[given], relations
        if not own.reciprocals:
            r = np.concatenate([r[:half], model.flip(r[half:])])
        q = model.query(x, r)
        mask = self._mask(q.shape, draw)
        if mask is not None:
            q *= mask
        by_rows = np.zeros_like(rows)
        if self._all:
            loss, g = full_softmax(model.scores(q, rows), right)
            g *= scale
            by_q, by_rows = model.scores_gradient(q, rows, g)
        else:
            loss, by_q = self._against_negatives(q, rows, right, negatives, by_rows, scale)
        if mask is not None:
            by_q *= mask
        by_x, by_r = model.query_gradient(x, r, by_q)
        if own.n3:
            penalty = np.float32(own.n3) * scale
            by_x = by_x + penalty * cubes(x, model.complex_rows)[1]
            add_rows(by_rows, right, penalty * cubes(rows[right], model.complex_rows)[1])
            if own.model != "rotate":  # angles are not penalised
                by_r = by_r + penalty * cubes(r, model.complex_rows)[1]
        if not own.reciprocals:
            by_r = np.concatenate([by_r[:half], model.flip(by_r[half:])])
        add_rows(by_rows, given, by_x)
        return loss, by_rows, by_r

    def _against_negatives(
        self,
        q: Float32,
        rows: Float32,
        right: Int64,
        negatives: Int64,
        by_rows: Float32,
        scale: np.float32,
    ) -> tuple[float, Float32]:
        """Return the summed loss and the gradient by q; add those by answers and negatives to `by_rows`."""
        model, own = self._model, self._options
        answers, candidates = rows[right], rows[negatives]
        scores = (model.pairs(q, answers), model.scores(q, candidates))
        excluded = negatives[np.newaxis, :] == right[:, np.newaxis]
        if own.loss == "softmax":
            others = self._n_entities - 1 if own.correction else None
            loss, g, g_negatives = sampled_softmax(*scores, excluded, others)
        else:
            assert own.margin is not None
            loss, g, g_negatives = logistic(*scores, excluded, own.margin, own.temperature)
        by_q, by_answers = model.pairs_gradient(q, answers, g * scale)
        more, by_candidates = model.scores_gradient(q, candidates, g_negatives * scale)
        add_rows(by_rows, right, by_answers)
        add_rows(by_rows, negatives, by_candidates)
        by_q += more
        return loss, by_q

    def _mask(self, shape: tuple[int, ...], draw: np.random.Generator) -> Float32 | None:
        """Return factors that drop values of queries and leave their expectation; None: none are dropped."""
        share = self._options.dropout
        if not share:
            return None
        stays = draw.random(shape, np.float32) >= np.float32(share)
        return stays.astype(np.float32) / np.float32(1 - share)

    def measure(self, worker: Worker, batch: TripleBatch) -> Measured:
        """Return the filtered ranks of head and tail of each triple as metrics."""
        assert self._ranker is not None
        return self._ranker.measure(worker, batch)

    def predict(self, worker: Worker, batch: Any) -> Float32:
        """Return the score of each triple, shape (n,); nan where a name is unknown or asked for."""
        assert self._ranker is not None
        return self._ranker.triple_scores(worker, batch.ids)

    def columns(self, worker: Worker, batch: TripleBatch) -> dict[str, Any]:
        """Return triples with scores and filtered ranks, and answers to questions."""
        assert self._ranker is not None
        return self._ranker.columns(worker, batch)


def add_rows(out: Float32, places: Int64, rows: Float32) -> None:
    """Add rows to `out` at places that may occur several times; the order of the sums is that of the rows."""
    if not len(places):
        return
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    out[ordered[starts]] += np.add.reduceat(rows[order], starts, axis=0)


def _names(arrays: Arrays) -> tuple[Vocabulary, Vocabulary]:
    """Return the vocabularies of entities and relations."""
    return Vocabulary.from_array(arrays[ENTITIES]), Vocabulary.from_array(arrays[RELATIONS])


def _unknown_note(n_unknown: int, n: int, what: str) -> tuple[str, ...]:
    """Return a sentence on triples with unknown names, if there are any; `what` happens to them."""
    if not n_unknown:
        return ()
    return (
        f"{n_unknown:,} of {n:,} triples have an entity or relation that the training data does not have; "
        f"they {what}",
    )
