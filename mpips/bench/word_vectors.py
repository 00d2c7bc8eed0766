"""The suite `word2vec`: word vectors against gensim, skip-gram with negative samples and the same settings.

Each side is a launch of `mpips.bench.word_side`, and the sides take turns. One worker and one server
compare with one thread of gensim, two and two with two threads. Words per second are those of the text, those
that are thinned out or too rare included, over the time of the training alone: the text is in memory. Both
train on the same lines; the loss is that of the examples of the lines that are left, computed for both by the
task `word2vec` with the same negative samples.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np

from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.bench.word_side import WordSide, WordsMeasured
from mpips.mpi.mpirun import mpi_environment, mpirun_command
from mpips.testing.errors import BenchError

_TIMEOUT_S = 600.0
_LINES, _LINES_QUICK, _WORDS_PER_LINE = 20_000, 300, 50  # of the made-up text
_VOCABULARY = 30_000
_NAME = "text8.head.txt"


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
    command = [sys.executable, "-m", "mpips.bench.word_side", side.kind, str(side.workers)]
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
    train = [line for i, line in enumerate(lines) if i % 20]
    (folder / "train.txt").write_text("\n".join(train))
    (folder / "test.txt").write_text("\n".join(lines[::20]))
    return f"{_NAME} (MPIPS_TEST_DATA)" if real else "a made-up text"


def _made_up(quick: bool) -> list[str]:
    """Return lines of words with frequencies by Zipf's law."""
    random = np.random.default_rng(1)
    n = _LINES_QUICK if quick else _LINES
    weights = 1 / (np.arange(_VOCABULARY) + 2.7)
    words = random.choice(_VOCABULARY, (n, _WORDS_PER_LINE), p=weights / weights.sum())
    return [" ".join(f"w{word}" for word in line) for line in words.tolist()]
