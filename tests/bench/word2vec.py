"""The suite `word2vec`: word vectors against gensim, skip-gram with negative samples and the same settings.

Each side is a launch of this module, python -m tests.bench.word2vec KIND WORKERS FOLDER EPOCHS OUT, and the
sides take turns. KIND is "mpips", on all ranks of a launch, or "gensim". FOLDER has train.txt and test.txt.
One worker and one server compare with one thread of gensim, two and two with two threads. Words per second
are those of the text, those that are thinned out or too rare included, over the time of the training alone:
the text is in memory. Both train on the same lines; the loss is that of the examples of the lines that are
left, computed for both by the task `word2vec` with the same negative samples.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.config.schema import load_config
from mpips.data.info import DataInfo
from mpips.data.options import Share
from mpips.data.quotients import Quotients
from mpips.mpi.mpirun import mpi_environment, mpirun_command
from mpips.tasks.word2vec import Word2Vec, Word2VecOptions
from mpips.tasks.word_data import WORDS
from mpips.testing.errors import BenchError
from mpips.training.evaluation import batches_of
from mpips.training.train import train

_TIMEOUT_S = 600.0
_LINES, _LINES_QUICK, _WORDS_PER_LINE = 20_000, 300, 50  # of the made-up text
_VOCABULARY = 30_000
_NAME = "text8.head.txt"
SEED = 1


class WordSide(msgspec.Struct, frozen=True):
    """One way of training: "mpips", with `workers` workers and servers, or "gensim", with as many threads."""

    kind: str
    workers: int


class WordsMeasured(msgspec.Struct):
    """Words of the text that were trained on in a second, and the loss of the other lines, in nats."""

    words_per_s: float
    loss: float


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure speed and loss for one and for two workers. `nodes` has no effect.

    Raises:
        BenchError: A launch failed.
    """
    names = [f"word2vec_vs_gensim_{n}" for n in (1, 2)]
    if importlib.util.find_spec("gensim") is None:
        return Findings(skipped=dict.fromkeys(names, "gensim is not installed"))
    found = Findings()
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as name:
        folder = Path(name)
        text = _write_text(folder, options.quick)
        for n, ratio in zip((1, 2), names, strict=True):
            sides = WordSide("mpips", n), WordSide("gensim", n)
            results: tuple[list[WordsMeasured], ...] = ([], [])
            for _ in range(options.repetitions):
                for side, values in zip(sides, results, strict=True):
                    values.append(measure(side, folder, options.quick))
            what = f"{text}, {n} worker{'s' * (n > 1)} and {n} server{'s' * (n > 1)}"
            speeds, losses = (
                [[getattr(one, field) for one in values] for values in results]
                for field in ("words_per_s", "loss")
            )
            threads = f"gensim, {n} thread{'s' * (n > 1)}"
            found.comparisons += [
                _comparison(ratio, f"words of {what}", "words/s", speeds, threads),
                _comparison(f"word2vec_loss_{n}", f"loss of {what}", "nats", losses, threads),
            ]
    return found


def _comparison(
    name: str, what: str, unit: str, values: list[list[float]], baseline: str
) -> Comparison:
    ours, theirs = values
    return Comparison(
        name=name, what=what, unit=unit, ours=ours, baseline=theirs, baseline_name=baseline
    )


def measure(side: WordSide, folder: Path, quick: bool) -> WordsMeasured:
    """Launch one side on `train.txt` and `test.txt` of a folder and return its result. Blocks.

    Raises:
        BenchError: It failed, or took longer than 600 s.
    """
    out = folder / "measured.json"
    command = [sys.executable, "-m", "tests.bench.word2vec", side.kind, str(side.workers)]
    command += [str(folder), "1" if quick else "3", str(out)]
    if side.kind == "mpips":
        command = [*mpirun_command(1 + 2 * side.workers), *command]
    environment = {**os.environ, **mpi_environment(), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"{' '.join(command)} took longer than {_TIMEOUT_S:g} s") from None
    if done.returncode:
        text = (done.stdout + done.stderr).decode(errors="replace")
        raise BenchError(f"a side of the suite 'word2vec' failed:\n{text[-2000:]}")
    return msgspec.json.decode(out.read_bytes(), type=WordsMeasured)


def _write_text(folder: Path, quick: bool) -> str:
    """Write every twentieth line of a text to `test.txt` and the others to `train.txt`; return its name.

    The text is `text8.head.txt` in the folder that MPIPS_TEST_DATA names, or a made-up one.
    """
    path = Path(os.environ.get("MPIPS_TEST_DATA", "")) / _NAME
    real = not quick and path.is_file()
    lines = path.read_text().splitlines() if real else _made_up(quick)
    others = [line for i, line in enumerate(lines) if i % 20]
    (folder / "train.txt").write_text("\n".join(others))
    (folder / "test.txt").write_text("\n".join(lines[::20]))
    return f"{_NAME} (MPIPS_TEST_DATA)" if real else "a made-up text"


def _made_up(quick: bool) -> list[str]:
    """Return lines of words with frequencies by Zipf's law."""
    random = np.random.default_rng(1)
    n = _LINES_QUICK if quick else _LINES
    weights = 1 / (np.arange(_VOCABULARY) + 2.7)
    words = random.choice(_VOCABULARY, (n, _WORDS_PER_LINE), p=weights / weights.sum())
    return [" ".join(f"w{word}" for word in line) for line in words.tolist()]


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
    """Measure one side in this process, and write its result to OUT as JSON."""
    kind, workers, folder, epochs, out = sys.argv[1:]
    work = of_mpips if kind == "mpips" else of_gensim
    found = work(int(workers), Path(folder), int(epochs))
    if found is not None:
        Path(out).write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
