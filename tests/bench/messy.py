"""A CSV file as people have them, from `mpips init` to a served prediction, beside scikit-learn.

    python -m tests.bench.messy ../shared/data/messy.csv

Every fifth row is a test sample. Five commands of mpips, without an option of the task: init, run, evaluate,
predict and serve, which answers one request. Beside them logistic regressions of scikit-learn on the same
rows: one on all cells as words, in one-hot columns, and one on columns that were prepared by hand. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mpips.data.metrics import auc
from mpips.testing.errors import BenchError

LABEL, EVERY = "clicked", 5
_RANKS = "4"  # a scheduler, a server and two workers
# Numbers and words that the columns of the file mean.
_NUMBERS = ("age", "price", "bid", "hist_ctr")
_WORDS = ("user_id", "ad_id", "device", "city", "premium", "tags")
_EMPTY = ("", "NA", "N/A", "unknown")
_LIMIT_S, _SERVED_S, _ENDED_S = 900.0, 120.0, 30.0  # of a command, a start of `serve`, its end


def divide(path: Path, folder: Path) -> None:
    """Write train.csv and test.csv, which has every fifth row, in the folder."""
    with path.open(newline="") as file:
        head, *lines = csv.reader(file)
    for name, chosen in (("train", False), ("test", True)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            rows = [line for i, line in enumerate(lines) if (i % EVERY == 0) == chosen]
            csv.writer(file).writerows([head, *rows])


def table(path: Path) -> tuple[dict[str, list[str]], np.ndarray]:
    """Return the columns of a file as text, by name and without the label, and the labels, shape (n,)."""
    with path.open(newline="") as file:
        head, *lines = csv.reader(file)
    columns = dict(zip(head, map(list, zip(*lines, strict=True)), strict=True))
    return columns, np.array(columns.pop(LABEL), np.int64)


def auc_of_words(folder: Path) -> float:
    """Return the AUC of a logistic regression on all cells as words, in one-hot columns."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    model = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression(max_iter=2000))
    samples = {}
    for name in ("train", "test"):
        columns, labels = table(folder / f"{name}.csv")
        samples[name] = np.array(list(columns.values()), object).T, labels
    model.fit(*samples["train"])
    found, labels = model.predict_proba(samples["test"][0])[:, 1], samples["test"][1]
    return float(auc(found, labels))


def by_hand(columns: dict[str, list[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Return words, shape (n, k), and numbers, shape (n, m) with NaN, as a person would read the columns."""
    words = [[cell.strip().lower() for cell in columns[name]] for name in _WORDS]
    numbers = [
        [np.nan if cell in _EMPTY else float(cell.lstrip("€")) for cell in columns[name]]
        for name in _NUMBERS
    ]
    moments = [time.strptime(cell, "%Y-%m-%d %H:%M:%S") for cell in columns["timestamp"]]
    for part in ("tm_mon", "tm_wday", "tm_hour"):
        words.append([str(getattr(moment, part)) for moment in moments])
    return np.array(words, object).T, np.array(numbers).T


def auc_by_hand(folder: Path) -> float:
    """Return the AUC of a logistic regression on columns that were prepared by hand."""
    from scipy.sparse import csr_array, hstack  # type: ignore[import-untyped]
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    one_hot = OneHotEncoder(handle_unknown="ignore")
    scale = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    columns, labels = table(folder / "train.csv")
    words, numbers = by_hand(columns)
    parts = [one_hot.fit_transform(words), csr_array(scale.fit_transform(numbers))]
    model = LogisticRegression(max_iter=2000).fit(hstack(parts), labels)
    columns, labels = table(folder / "test.csv")
    words, numbers = by_hand(columns)
    parts = [one_hot.transform(words), csr_array(scale.transform(numbers))]
    return float(auc(model.predict_proba(hstack(parts))[:, 1], labels))


def command_of(folder: Path, *arguments: str) -> str:
    """Run a command of mpips in the folder, print it and return what it printed. Raises BenchError."""
    print(f"$ mpips {' '.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "mpips", *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=_LIMIT_S
    )
    if done.returncode:
        raise BenchError(
            f"mpips {arguments[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[str]:
    """Run `mpips serve` in the folder; gives its address. Raises BenchError if it ends before it has one."""
    print(f"$ mpips serve {' '.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "mpips", "serve", *arguments, "--port", "0", "--no-token"]
    log = folder / "serve.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=folder, stdout=file, stderr=file)
    try:
        until = time.monotonic() + _SERVED_S
        while not (found := re.search(r"http://[0-9.]+:[0-9]+", log.read_text())):
            if process.poll() is not None:
                raise BenchError(f"mpips serve ended with {process.returncode}:\n{log.read_text()}")
            if time.monotonic() > until:
                raise BenchError(f"mpips serve has no address after {_SERVED_S:g} s")
            time.sleep(0.05)
        yield found[0]
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_ENDED_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ask(address: str, row: dict[str, str]) -> float:
    """Return the probability of a click that the server predicts for a row."""
    body = json.dumps({"rows": [row]}).encode()
    with urllib.request.urlopen(f"{address}/predict", body) as answer:
        (probabilities,) = json.load(answer)["probabilities"]
    return float(probabilities[1])


def five_commands(folder: Path) -> dict[str, float]:
    """Run the commands on train.csv and test.csv of the folder; return what they have found.

    `evaluated`: AUC that `mpips evaluate` prints; `predicted`: that of the probabilities in the file of
    `mpips predict`; `first`: the probability in its first line; `served`: that of this sample by
    `mpips serve`.
    """
    command_of(folder, "init", "train.csv")
    command_of(folder, "run", "-n", _RANKS, "job.toml", "--name", "clicks", "--quiet")
    (name,) = (str(path.relative_to(folder)) for path in (folder / "runs").glob("clicks-*"))
    evaluated = command_of(folder, "evaluate", name, "--best", "--data", "test.csv")
    (value,) = re.findall(r"\bauc (\d\.\d+)", evaluated)
    files = ("--data", "test.csv", "--out", "predictions.csv")
    command_of(folder, "predict", name, "--best", *files)
    with (folder / "predictions.csv").open(newline="") as file:
        predicted = np.array([float(line["probability_1"]) for line in csv.DictReader(file)])
    columns, labels = table(folder / "test.csv")
    with serving(folder, name, "--best") as address:
        served = ask(address, {column: cells[0] for column, cells in columns.items()})
    return {
        "evaluated": float(value),
        "predicted": float(auc(predicted, labels)),
        "first": float(predicted[0]),
        "served": served,
    }


def measure(path: Path, folder: Path) -> dict[str, Any]:
    """Divide the file and return what mpips and scikit-learn make of it."""
    divide(path, folder)
    found: dict[str, Any] = five_commands(folder)
    return {**found, "words": auc_of_words(folder), "by_hand": auc_by_hand(folder)}


def main() -> None:
    """Measure, and print AUCs and a line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("path", type=Path, metavar="FILE", help="messy.csv")
    path = parser.parse_args().path
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as name:
        found = measure(path, Path(name))
    print(f"AUC of mpips, as drafted                                  {found['evaluated']:.3f}")
    print(f"AUC of scikit-learn's logistic regression, cells as words {found['words']:.3f}")
    print(f"AUC of the same, columns prepared by hand                 {found['by_hand']:.3f}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
