"""One side of the suite `word2vec`: python -m mpips.bench.word_side KIND WORKERS FOLDER EPOCHS OUT.

KIND is "mpips", on all ranks of a launch, or "gensim". FOLDER has train.txt and test.txt. The result is
written to OUT as JSON.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mpips.config.schema import load_config
from mpips.data.info import DataInfo
from mpips.data.options import Share
from mpips.data.quotients import Quotients
from mpips.tasks.word2vec import Word2Vec, Word2VecOptions
from mpips.tasks.word_data import WORDS
from mpips.training.evaluation import batches_of
from mpips.training.train import train

SEED = 1


class WordSide(msgspec.Struct, frozen=True):
    """One way of training: "mpips", with `workers` workers and servers, or "gensim", with as many threads."""

    kind: str
    workers: int


class WordsMeasured(msgspec.Struct):
    """Words of the text that were trained on in a second, and the loss of the other lines, in nats."""

    words_per_s: float
    loss: float


def of_mpips(workers: int, folder: Path, epochs: int) -> WordsMeasured | None:
    """Train with mpips on the ranks of this launch; return the result on worker 0. Collective."""
    given = {
        "task": "word2vec",
        "data.train": str(folder / "train.txt"),
        "data.test": str(folder / "test.txt"),
        "train.epochs": epochs,
        "train.eval_every": 0,
        "cluster.servers": workers,
        "cluster.seed": SEED,
    }
    outcome = train(load_config(None, list(given.items())), progress="none", verbose=False)
    if not outcome.is_first_worker:
        return None
    n_words = epochs * len((folder / "train.txt").read_text().split())
    result = outcome.value
    return WordsMeasured(n_words / result.seconds, result.metrics["example_loss"])


def of_gensim(workers: int, folder: Path, epochs: int) -> WordsMeasured:
    """Train with gensim in this process."""
    models: Any = importlib.import_module("gensim.models")
    options = Word2VecOptions()
    sentences = [line.split() for line in (folder / "train.txt").read_text().splitlines()]
    model = models.Word2Vec(
        vector_size=options.dim,
        window=options.window,
        min_count=options.min_count,
        sg=1,
        negative=options.negative,
        sample=options.sample,
        alpha=options.learning_rate,
        min_alpha=options.end_learning_rate,
        workers=workers,
        seed=SEED,
    )
    model.build_vocab(sentences)
    begin = time.perf_counter()
    model.train(sentences, total_examples=len(sentences), epochs=epochs)
    seconds = time.perf_counter() - begin
    n_words = epochs * sum(map(len, sentences))
    return WordsMeasured(n_words / seconds, _loss(model, folder, options))


class _ArrayTable:
    """Rows in memory, as tasks pull them."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def prefetch(self, keys: Any) -> None:
        """Do nothing: the rows are here."""

    def pull(self, keys: Any) -> Any:
        """Return a copy of rows."""
        return self._rows[keys]


class _ArrayWorker:
    """The tables `input` and `output` of a model of gensim, in the order of the words of mpips."""

    def __init__(self, model: Any, words: list[str]) -> None:
        order = np.array([model.wv.key_to_index[word] for word in words])
        self._tables = {"input": model.wv.vectors[order], "output": model.syn1neg[order]}

    def table(self, name: str) -> _ArrayTable:
        """Return a table."""
        return _ArrayTable(self._tables[name])


def _loss(model: Any, folder: Path, options: Word2VecOptions) -> float:
    """Return the loss of a model of gensim, computed as mpips computes that of its own models."""
    share = Share(1, 0)
    train_part = Word2Vec.read(str(folder / "train.txt"), options, share, None, "train")
    arrays = train_part.arrays
    info: DataInfo = train_part.info
    test = Word2Vec.read(str(folder / "test.txt"), options, share, arrays, "test")
    task = Word2Vec(info, options, SEED)
    task.receive(arrays)
    worker: Any = _ArrayWorker(model, arrays[WORDS].tobytes().decode().split("\n")[:-1])
    total = Quotients.zero(("example_loss",))
    for batch in batches_of(test.data):
        total += Quotients.of(("example_loss",), task.measure(worker, batch))
    return total.values()["example_loss"]


def main() -> None:
    """Measure and write the result."""
    kind, workers, folder, epochs, out = sys.argv[1:]
    work = of_mpips if kind == "mpips" else of_gensim
    found = work(int(workers), Path(folder), int(epochs))
    if found is not None:
        Path(out).write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
