"""Word vectors: skip-gram and continuous bag of words with negative samples.

Mikolov et al., "Efficient Estimation of Word Representations in Vector Space", 2013, and "Distributed
Representations of Words and Phrases and their Compositionality", NIPS 2013. A sample is a chunk of the text.
In a step a worker pulls the rows that the examples of its chunks need, trains the examples on them one after
the other (`mpips.kernels.reference_words`), and pushes the changes of the rows, old values minus new ones.
Servers apply them with SGD of rate 1, so that a row receives the sum of the changes of all workers; those of
rows with many updates are damped (`mpips.tasks.word_rows.damping`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from msgspec import Meta

from mpips.data.info import DataInfo
from mpips.data.moments import Moments
from mpips.data.options import Share, Wants
from mpips.data.quotients import Direction, Measured
from mpips.data.rows import Arrays, Purpose, TaskPart
from mpips.data.text import Agree
from mpips.model.consistency import BSP
from mpips.model.optimizer import SGD
from mpips.model.table import EmbeddingTable, Table
from mpips.tasks.base import Float32, Keys, Schedule, StepResult, Task, Worker
from mpips.tasks.options import Count, Penalty, Rate
from mpips.tasks.proposals import RATE, Proposal, among, around, between
from mpips.tasks.word_data import (
    COUNTS,
    WORDS,
    QueryData,
    learn_words,
    read_queries,
    read_text,
)
from mpips.tasks.word_rows import DrawnWords, WordModel, damping, updates_of, wide
from mpips.tasks.word_similarity import Neighbours, WordPairs

_EVALUATED_POOL = 1 << 16  # negative samples of evaluations are drawn among this many words
_EVALUATION = -1  # "epoch" of the random numbers of evaluations
_CHUNKS = 16  # chunks that are evaluated at a time


class Word2VecOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[options] of the task `word2vec`."""

    dim: Annotated[Count, Meta(description="Length of a vector.")] = 100
    model: Annotated[
        Literal["skip_gram", "cbow"],
        Meta(
            description="skip_gram: each word of a window predicts the word in the middle. cbow: the mean of "
            "the window does."
        ),
    ] = "skip_gram"
    window: Annotated[
        Count,
        Meta(
            description="Greatest number of words on each side; the number of a window is 1 to this."
        ),
    ] = 5
    min_count: Annotated[Count, Meta(description="Words that occur less often are left out.")] = 5
    max_words: Annotated[
        int, Meta(ge=0, description="Words beyond the most frequent ones are left out. 0: none.")
    ] = 0
    sample: Annotated[
        Penalty,
        Meta(description="Share of the text above which a word is thinned out. 0: none is."),
    ] = 1e-3
    negative: Annotated[int, Meta(ge=1, le=63, description="Negative samples of an example.")] = 5
    exponent: Annotated[
        float,
        Meta(
            ge=-10,
            le=10,
            description="Negative samples are drawn with the counts of words to this power.",
        ),
    ] = 0.75
    pool: Annotated[
        Count,
        Meta(description="The negative samples of a step are drawn among this many drawn words."),
    ] = 16384
    learning_rate: Annotated[
        Rate, Meta(description="Learning rate at the beginning; it falls linearly over the run.")
    ] = 0.025
    end_learning_rate: Annotated[Rate, Meta(description="Learning rate at the end.")] = 1e-4
    chunk_words: Annotated[
        int,
        Meta(
            ge=2,
            le=1_000_000,
            description="Greatest number of words of a sample. Longer lines are cut, and windows end there.",
        ),
    ] = 1000
    similarity: Annotated[
        str,
        Meta(
            description="File of word pairs (word, word, score in a line) for the metric similarity of "
            "evaluations: the rank correlation (Spearman) of scores and cosines."
        ),
    ] = ""
    neighbours: Annotated[
        Count, Meta(description="Neighbours of each word that mpips predict writes.")
    ] = 10


class Word2Vec(Task):
    """Vectors of words in the table `input`, those of the words to be predicted in `output`."""

    name = "word2vec"
    Options = Word2VecOptions
    default_epochs = 5
    default_batch_size = 20
    labels: ClassVar[Wants] = "none"
    own_metrics: ClassVar[dict[str, Direction]] = {
        "example_loss": "lower",
        "similarity": "higher",
    }
    pushes_changes: ClassVar[bool] = True
    prediction_options: ClassVar = ("neighbours",)

    def __init__(self, info: DataInfo, options: Any, seed: int) -> None:
        """Take the options; see `Task`."""
        self._options: Word2VecOptions = options
        self._seed = seed
        self._schedule = Schedule(self.default_epochs, self.default_batch_size)
        self._epoch, self._rate = 0, options.learning_rate
        self.metrics = ("example_loss", *(("similarity",) if options.similarity else ()))
        self._model: WordModel | None = None
        self._neighbours: Neighbours | None = None
        self._words = b""

    @classmethod
    def learn(
        cls, path: str, options: Any, worker: int | None, n_workers: int, agree: Agree
    ) -> Arrays:
        """Count the words of a text; see `mpips.tasks.base.LearnsData`."""
        return learn_words(path, options, worker, n_workers, agree)

    @classmethod
    def read(
        cls, path: str, options: Any, share: Share, like: Arrays | None, purpose: Purpose
    ) -> TaskPart:
        """Read chunks of a text; see `mpips.tasks.base.ReadsData`."""
        if like is None:
            like = learn_words(path, options, 0, 1, lambda _what, work, _lengthy: [work()])
        return read_text(path, options, share, like, purpose)

    @classmethod
    def read_parts(
        cls, path: str, options: Any, like: Arrays, say: Callable[[str], None]
    ) -> Iterator[QueryData]:
        """Read words to look up; see `mpips.tasks.base.ReadsParts`."""
        return read_queries(path, like, say)

    def proposals(self) -> list[Proposal]:
        """Propose the rate; and with pairs of words, which compare them, options that change the loss."""
        own = self._options
        found = [around("learning_rate", own.learning_rate, 4, RATE)]
        if own.similarity:
            found += [
                among("dim", own.dim, [50, 100, 200], "length of vectors: more for a long text"),
                between(
                    "window", own.window, 2, 10, "wide windows find topics, narrow ones syntax"
                ),
                among("negative", own.negative, [5, 10, 15], "more for a short text"),
            ]
        return found

    def schedule(self, schedule: Schedule) -> None:
        """Take the length of the training."""
        self._schedule = schedule

    def suitable_batch_size(self, n_workers: int, n_epochs: int) -> int:
        """Return fewer chunks for many workers, whose changes are computed from old values."""
        return self.default_batch_size if n_workers < 3 else max(1, 15 // n_workers)

    def tables(self) -> list[Table]:
        """Return `input`, which has the vectors, and `output`."""
        dim = self._options.dim

        def table(name: str, init: str) -> Table:
            return EmbeddingTable(
                name, dim, optimizer=SGD(lr=1.0), consistency=BSP(reduce="sum"), init=init
            )

        return [table("input", f"uniform({0.5 / dim!r})"), table("output", "zeros")]

    def receive(self, arrays: Arrays) -> None:
        """Take words and counts."""
        o = self._options
        self._words = arrays[WORDS].tobytes()
        self._model = WordModel(
            arrays[COUNTS],
            skip_gram=o.model == "skip_gram",
            window=o.window,
            negative=o.negative,
            sample=o.sample,
            exponent=o.exponent,
            n_pool=o.pool,
            seed=self._seed,
        )

    def prefetch(self, worker: Worker, batch: Any) -> None:
        """Do nothing: a step asks for the rows that it has drawn."""

    def prepare(self, worker: Worker, moments: Moments) -> None:
        """Do nothing: there are no features."""

    @property
    def current_rate(self) -> float:
        """Learning rate of the newest step."""
        return float(self._rate)

    def begin_step(self, epoch: int, step: int, n_steps: int) -> None:
        """Compute the learning rate of a step; see `Task`."""
        o = self._options
        done = (epoch + step / max(n_steps, 1)) / max(self._schedule.n_epochs, 1)
        self._rate = o.learning_rate - (o.learning_rate - o.end_learning_rate) * min(done, 1.0)
        self._epoch = epoch

    def step(self, worker: Worker, batch: Any) -> StepResult:
        """Pull the rows, train the examples one after the other, push the changes.

        The loss is the mean over the examples of the batch, in nats, times its samples.
        """
        model = self._known_model()
        keys = model.keys(self._epoch, batch.numbers)
        drawn = model.draw(batch.tokens, batch.starts, keys, model.pool(int(keys[0])))
        if not len(drawn.inputs):
            return StepResult(0.0, batch.n)
        (old_inputs, inputs), (old_outputs, outputs) = _pull(worker, drawn)
        loss, n = model.train(drawn, inputs, outputs, self._rate)
        updates = updates_of(drawn, n, self._options.negative)
        for name, at, old, new, n_updates in (
            ("input", drawn.inputs, old_inputs, inputs, updates[0]),
            ("output", drawn.outputs, old_outputs, outputs, updates[1]),
        ):
            change = old - new[:, : self._options.dim]
            if worker.n_workers > 1 and name not in self._schedule.averaged:
                change *= damping(n_updates * self._rate, worker.n_workers)[:, np.newaxis]
            worker.table(name).push(at, change, base=old)
        return StepResult(batch.n * loss / n if n else 0.0, batch.n)

    def measure(self, worker: Worker, batch: Any) -> Measured:
        """Measure the loss of the examples, with random numbers that are those of no epoch."""
        model = self._known_model()
        pool = model.pool(self._seed, _EVALUATED_POOL)
        losses, counts = [], []
        for first in range(0, batch.n, _CHUNKS):
            part = batch.part(first, min(first + _CHUNKS, batch.n))
            rows = model.draw(part.tokens, part.starts, model.keys(_EVALUATION, part.numbers), pool)
            (_, inputs), (_, outputs) = _pull(worker, rows)
            # Each chunk by itself, so that the sums do not depend on the batches.
            for i in range(part.n):
                loss, n = model.train(rows.chunk(i), inputs, outputs, 0.0)
                losses.append(loss)
                counts.append(n)
        found: dict[str, tuple[Any, Any]] = {"example_loss": (np.array(losses), np.array(counts))}
        # One worker has chunk 0.
        similarity = 0.0, 0.0
        if self._options.similarity and 0 in batch.numbers:
            pairs = WordPairs.read(self._options.similarity)
            similarity = pairs.correlation(worker.table("input"), self._words), 1.0
        return found | {"similarity": similarity}

    def columns(self, worker: Worker, batch: Any) -> dict[str, Any]:
        """Return the nearest neighbours of words: columns word, neighbour, cosine."""
        if self._neighbours is None:
            self._neighbours = Neighbours(self._words, self._options.neighbours)
        return self._neighbours.columns(worker.table("input"), batch.keys)

    def predict(self, worker: Worker, batch: Any) -> Float32:
        """Raise NotImplementedError: words have neighbours instead, see `columns`."""
        raise NotImplementedError("words have neighbours, see columns")

    def _known_model(self) -> WordModel:
        assert self._model is not None
        return self._model


def _pull(worker: Worker, drawn: DrawnWords) -> list[tuple[Float32, Float32]]:
    """Return the rows of drawn words, each as it was pulled and as a wide copy: `input`, then `output`."""
    wanted: list[tuple[Any, Keys]] = [
        (worker.table("input"), drawn.inputs),
        (worker.table("output"), drawn.outputs),
    ]
    # Let the servers answer both requests at the same time.
    for handle, keys in wanted:
        handle.prefetch(keys)
    rows = [handle.pull(keys) for handle, keys in wanted]
    return [(one, wide(one)) for one in rows]
