"""The defaults of tasks on data that they were not chosen on: the table of docs/howto/data.md.

    python -m tests.bench.defaults               # or some of them: softmax mf

One process, no option of the task but `dim` of `kge`. Data is made here with fixed seeds, or comes with
scikit-learn (iris, wine, breast cancer), gensim (the text `lee`) and pykeen (three graphs). A row whose
package is missing says so. MPIPS_TEST_DATA may name the folder of text8.head.txt. Beside each row is the
result of a common model: one of scikit-learn or of gensim, or shrunken biases.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import mpips
from mpips.data.metrics import auc
from tests.bench.word2vec import of_gensim

SEED = 1
_CLICKS = ((800, 8, 6), (20_000, 300, 100), (6_000, 900, 400))  # lines, words of two columns
_RATINGS = ((3_000, 4), (800, 8), (100, 15), (400, 60))  # users, ratings of each
_GRAPHS = ("nations", "umls", "kinships")
_SHRINKAGE = 5.0  # of the biases beside `mf`, in ratings

Samples = tuple[np.ndarray, np.ndarray]  # x, shape (n, d), and labels, shape (n,)


def sklearn(name: str) -> Any:
    """Return a module of scikit-learn, which has no types."""
    return importlib.import_module(f"sklearn.{name}")


def halves(x: np.ndarray, y: np.ndarray) -> tuple[Samples, Samples]:
    """Return 70 % of the samples for training and the others, in an order by chance."""
    order = np.random.default_rng(SEED).permutation(len(x))
    cut = round(0.7 * len(x))
    return (x[order[:cut]], y[order[:cut]]), (x[order[cut:]], y[order[cut:]])


def shipped(name: str) -> tuple[Samples, Samples]:
    """Return a data set of scikit-learn, divided."""
    data = getattr(sklearn("datasets"), f"load_{name}")()
    return halves(data.data, data.target)


def made(n: int, n_features: int, n_classes: int) -> tuple[Samples, Samples]:
    """Return samples of which a few features tell the class, divided."""
    x, y = sklearn("datasets").make_classification(
        n,
        n_features,
        n_informative=10,
        n_classes=n_classes,
        flip_y=0.1,
        class_sep=0.7,
        random_state=SEED,
    )
    return halves(x, y)


def beside(train: Samples, test: Samples, hidden: bool = False) -> np.ndarray:
    """Return the probabilities of a logistic regression, or of a network of one layer. Shape (n, classes)."""
    pipeline = sklearn("pipeline").make_pipeline
    if hidden:
        model = sklearn("neural_network").MLPClassifier((128,), max_iter=300, random_state=SEED)
    else:
        model = sklearn("linear_model").LogisticRegression(max_iter=5000)
    fitted = pipeline(sklearn("preprocessing").StandardScaler(), model).fit(*train)
    return np.asarray(fitted.predict_proba(test[0]))


def cross_entropy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean of -log of the probability of the label."""
    return float(-np.log(probabilities[np.arange(len(labels)), labels]).mean())


def of_rows(task: str) -> Iterator[tuple[str, str, str]]:
    """Give what `logistic`, `softmax` or `mlp` and the model beside it make of rows of numbers."""
    several = {
        "iris": shipped("iris"),
        "wine": shipped("wine"),
        "generated (8,400 samples, 60 features, 4 classes)": made(12_000, 60, 4),
    }
    two = {
        "breast cancer": shipped("breast_cancer"),
        "generated (210 samples, 1,500 features)": made(300, 1_500, 2),
    }
    for name, (train, test) in {**several, **(two if task != "softmax" else {})}.items():
        if task == "mlp" and "1,500" in name:
            continue
        found = mpips.fit(task, train, test).metrics
        probabilities, labels = beside(train, test, task == "mlp"), test[1]
        if task == "mlp":
            right = float((probabilities.argmax(1) == labels).mean())
            yield name, f"accuracy {found['accuracy']:.3f}", f"{right:.3f}"
        elif name in two:
            other = auc(probabilities[:, 1], labels), cross_entropy(probabilities, labels)
            ours = f"AUC {found['auc']:.3f}, log loss {found['log_loss']:.3f}"
            yield name, ours, "{:.3f}, {:.3f}".format(*other)
        else:
            ours = f"cross entropy {found['cross_entropy']:.3f}"
            yield name, ours, f"{cross_entropy(probabilities, labels):.3f}"


def write_clicks(folder: Path, n: int, sizes: tuple[int, int]) -> tuple[Samples, Samples]:
    """Write train.csv and test.csv: two columns of words and one of numbers decide about a click."""
    rng = np.random.default_rng(SEED)
    words = np.stack([rng.zipf(1.3, n) % size for size in sizes], axis=1)
    effects = [rng.normal(0, 0.8, size) for size in sizes]
    number = rng.normal(size=n)
    score = sum(effect[words[:, i]] for i, effect in enumerate(effects)) + 0.5 * number - 0.5
    labels = (rng.random(n) < 1 / (1 + np.exp(-score))).astype(np.int64)
    cells = np.empty((n, 3), object)
    cells[:, :2] = [[f"a{a}", f"b{b}"] for a, b in words.tolist()]
    cells[:, 2] = number
    parts = halves(cells, labels)
    for name, (x, y) in zip(("train", "test"), parts, strict=True):
        lines = [f"{a},{b},{c:.6f},{label}" for (a, b, c), label in zip(x, y.tolist(), strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["a,b,number,label", *lines]) + "\n")
    return parts


def of_clicks(task: str) -> Iterator[tuple[str, str, str]]:
    """Give what a task of words and numbers and a logistic regression make of generated clicks."""
    for n, *sizes in _CLICKS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (x, y), (x_test, y_test) = write_clicks(folder, n, (sizes[0], sizes[1]))
            paths = str(folder / "train.csv"), str(folder / "test.csv")
            found = mpips.fit(task, *paths).metrics["auc"]
        one_hot = sklearn("preprocessing").OneHotEncoder(handle_unknown="ignore")
        columns = [("words", one_hot, [0, 1])]
        prepared = sklearn("compose").ColumnTransformer(columns, remainder="passthrough")
        model = sklearn("linear_model").LogisticRegression(max_iter=2000)
        fitted = sklearn("pipeline").make_pipeline(prepared, model).fit(x, y)
        other = auc(fitted.predict_proba(x_test)[:, 1], y_test)
        data = f"generated clicks ({round(0.7 * n):,} lines, {sizes[0]} and {sizes[1]} words)"
        yield data, f"AUC {found:.3f}", f"{other:.3f}"


def write_ratings(folder: Path, n_users: int, of_each: int) -> tuple[np.ndarray, np.ndarray]:
    """Write ratings with biases, two factors and noise; return the rows user, item, rating of both parts."""
    rng = np.random.default_rng(SEED)
    n_items = 200
    users, items = rng.normal(size=(n_users, 3)), rng.normal(size=(n_items, 3))
    rows = []
    for user in range(n_users):
        for item in rng.choice(n_items, of_each, replace=False):
            value = 3.5 + 0.5 * (users[user, 0] + items[item, 0])
            value += 0.4 * users[user, 1:] @ items[item, 1:] + rng.normal(0, 0.5)
            rows.append((user, item, value))
    found = rng.permutation(np.array(rows))
    parts = found[: round(0.8 * len(found))], found[round(0.8 * len(found)) :]
    for name, part in zip(("train", "test"), parts, strict=True):
        lines = [f"u{user:.0f},i{item:.0f},{value:.6f}" for user, item, value in part]
        (folder / f"{name}.csv").write_text("\n".join(["user,item,rating", *lines]) + "\n")
    return parts


def of_biases(train: np.ndarray, test: np.ndarray) -> float:
    """Return the RMSE of the mean with shrunken biases of items, then of users."""
    mean, biases = train[:, 2].mean(), {}
    left = train[:, 2] - mean
    for column in (1, 0):
        size = int(max(train[:, column].max(), test[:, column].max())) + 1
        places = train[:, column].astype(int)
        total = np.bincount(places, left, size)
        biases[column] = total / (np.bincount(places, minlength=size) + _SHRINKAGE)
        left = left - biases[column][places]
    expected = mean + sum(biases[column][test[:, column].astype(int)] for column in (0, 1))
    return float(np.sqrt(np.mean((test[:, 2] - expected) ** 2)))


def of_ratings(task: str) -> Iterator[tuple[str, str, str]]:
    """Give what `mf` and shrunken biases make of generated ratings."""
    for n_users, of_each in _RATINGS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            parts = write_ratings(folder, n_users, of_each)
            paths = str(folder / "train.csv"), str(folder / "test.csv")
            found = mpips.fit(task, *paths).metrics["rmse"]
        data = f"generated ({n_users:,} users, {of_each} ratings of each)"
        yield data, f"RMSE {found:.3f}", f"{of_biases(*parts):.3f}"


def texts() -> dict[str, list[str] | None]:
    """Return the lines of each text by its name; None: its package or file is missing."""
    rng = np.random.default_rng(SEED)
    # Words of a topic stand together: a line has a topic, and a topic its own fifty words.
    topics = rng.integers(0, 40, 6_000)
    made_up = [
        " ".join(f"w{word}" for word in 50 * topic + rng.zipf(1.4, 20) % 50)
        for topic in topics.tolist()
    ]
    found = importlib.util.find_spec("gensim")
    lee = None
    if found is not None and found.origin is not None:
        lee = Path(found.origin).parent / "test/test_data/lee_background.cor"
    shared = Path(os.environ.get("MPIPS_TEST_DATA", "../shared/data")) / "text8.head.txt"
    return {
        "text8.head.txt": shared.read_text().splitlines() if shared.is_file() else None,
        "lee of gensim": lee.read_text().lower().splitlines() if lee and lee.is_file() else None,
        "generated (6,000 lines, 40 topics of 50 words)": made_up,
    }


def of_words(task: str) -> Iterator[tuple[str, str, str]]:
    """Give the loss of held-out lines under `word2vec` and under gensim."""
    for name, lines in texts().items():
        if lines is None or importlib.util.find_spec("gensim") is None:
            yield name, "its file or gensim is missing", "-"
            continue
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            train, test = folder / "train.txt", folder / "test.txt"
            train.write_text("\n".join(line for i, line in enumerate(lines) if i % 20) + "\n")
            test.write_text("\n".join(lines[::20]) + "\n")
            fitted = mpips.fit(task, str(train), str(test))
            epochs = len(fitted.losses)
            other = of_gensim(1, folder, epochs).loss
        yield name, f"loss {fitted.metrics['example_loss']:.3f}", f"{other:.3f}"


def of_graphs(task: str) -> Iterator[tuple[str, str, str]]:
    """Give the MRR of `kge` with dim 128 on small graphs of pykeen."""
    found = importlib.util.find_spec("pykeen")
    for name in _GRAPHS:
        if found is None or found.origin is None:
            yield name, "pykeen is not installed", "-"
            continue
        folder = Path(found.origin).parent / "datasets" / name
        paths = str(folder / "train.txt"), str(folder / "test.txt")
        yield name, f"MRR {mpips.fit(task, *paths, dim=128).metrics['mrr']:.3f}", "-"


TASKS: dict[str, Callable[[str], Iterator[tuple[str, str, str]]]] = {
    **dict.fromkeys(("logistic", "softmax", "mlp"), of_rows),
    **dict.fromkeys(("fm", "wide_deep", "deepfm", "dcnv2"), of_clicks),
    "mf": of_ratings,
    "word2vec": of_words,
    "kge": of_graphs,
}


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)} [default: all]"
    )
    wanted = parser.parse_args().tasks or list(TASKS)
    if unknown := [name for name in wanted if name not in TASKS]:
        parser.error(f"{', '.join(unknown)}: must be of {', '.join(TASKS)}")
    print("| task | data | default | beside it |\n|---|---|---|---|")
    for task in wanted:
        for data, ours, other in TASKS[task](task):
            print(f"| `{task}` | {data} | {ours} | {other} |", flush=True)


if __name__ == "__main__":
    main()
