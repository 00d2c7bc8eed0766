"""Linear models and networks on rows of numbers, of features and of words: one family for all storages."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from objectives import (
    CHOICES,
    N_FEATURES,
    FakeWorker,
    Values,
    dense_of,
    info,
    log_sum_exp,
    make_task,
    numeric_gradient,
    sparse_data,
    standardised,
)

import mpips
from mpips.cli.train import command as train_command
from mpips.data import Batch, DataInfo, Moments, SparseBatch, SparseData
from mpips.errors import ConfigError, DataError
from mpips.model.initializer import Initializer
from mpips.tasks import TASKS, Task
from mpips.tasks import features as features_module

WIDE = 1 << 17  # features, more than a dense table has
WORDS = 1 << 62
PRIOR, L2 = 3.0, 0.05
PRESENT = np.bincount(sparse_data().indices)  # samples with each feature


def case(kind: str, n_classes: int) -> tuple[Any, DataInfo]:
    """Return samples and their description: "dense", "sparse", "wide" or "words"."""
    entries = sparse_data(n_classes)
    if kind == "dense":
        return dense_of(entries), info("dense", n_classes)
    n_features = {"sparse": N_FEATURES, "wide": WIDE, "words": WORDS}[kind]
    wide = SparseData(entries.indptr, entries.indices, entries.values, entries.labels, n_features)
    return wide, info("sparse", n_classes, n_features)


def matrix(batch: Batch, kind: str, moments: Moments) -> Any:
    """Return the scaled features, float64, shape (n, N_FEATURES)."""
    if kind == "dense":
        return standardised(batch, moments)
    assert isinstance(batch, SparseBatch)
    shift, scale = np.zeros(N_FEATURES), np.ones(N_FEATURES)
    if kind != "words":
        shift, scale = (each[:N_FEATURES] for each in moments.standardise_present())
    x = np.zeros((batch.n, N_FEATURES))
    x[batch.row_ids, batch.keys] = np.clip(
        (batch.values - shift[batch.keys]) * scale[batch.keys], -10, 10
    )
    return x


def outputs(x: Any, values: Values) -> Any:
    """Return the outputs of all layers; a table of weights with rows has that of key -1 in front."""
    names = sorted(name for name in values if name.startswith("weight"))
    for i, name in enumerate(names):
        weights, bias = values[name], values.get(name.replace("weight", "bias"))
        if len(weights) == N_FEATURES + 1 and i == 0:
            bias = weights[0] if bias is None else bias
            weights = weights[1:]
        x = x @ weights + bias
        x = np.maximum(x, 0) if i < len(names) - 1 else x
    return np.hstack([np.zeros_like(x), x]) if x.shape[1] == 1 else x


def penalty(name: str, batch: Batch, kind: str, values: Values) -> float:
    """Return the penalty that a batch adds to its mean loss."""
    weights = [v for table, v in sorted(values.items()) if table.startswith("weight")]
    if kind == "dense":
        factor = PRIOR / 40 if name == "logistic" else L2
        return factor / 2 * sum(float((w * w).sum()) for w in weights)
    assert isinstance(batch, SparseBatch)
    rows = sum(
        float((weights[0][key + 1] ** 2).sum()) / PRESENT[key] for key in batch.keys.tolist()
    )
    others = sum(float((w * w).sum()) for w in weights[1:])
    return PRIOR / 2 * rows / batch.n + L2 / 2 * others


def options_of(name: str, kind: str, hidden: list[int]) -> dict[str, Any]:
    found: dict[str, Any] = {"hidden": hidden} if name == "mlp" else {}
    if kind != "dense" or name == "logistic":
        found["prior"] = PRIOR
    if hidden or (name != "logistic" and kind == "dense"):
        found["l2"] = L2
    return found


GRID = [
    ("logistic", "dense", 2, []),
    ("logistic", "dense", 3, []),
    ("logistic", "sparse", 3, []),
    ("logistic", "words", 4, []),
    ("softmax", "wide", 2, []),
    ("softmax", "words", 3, []),
    ("mlp", "wide", 3, []),
    ("mlp", "wide", 2, [4]),
    ("mlp", "words", 3, [4, 3]),
]


@pytest.mark.parametrize("chosen", CHOICES, ids=str)
@pytest.mark.parametrize(("name", "kind", "n_classes", "hidden"), GRID)
def test_step_pushes_the_gradient_of_the_objective(
    name: str, kind: str, n_classes: int, hidden: list[int], chosen: list[int]
) -> None:
    data, description = case(kind, n_classes)
    moments = Moments.of(data)
    task = make_task(TASKS[name], description, options_of(name, kind, hidden), seed=0)
    worker = FakeWorker(task.tables())
    task.prepare(worker, moments)
    batch = data.take(np.array(chosen), weight=0.75)

    result = task.step(worker, batch)
    x = matrix(batch, kind, moments)

    def losses(values: Values) -> float:
        logits = outputs(x, values)
        pairs = zip(logits, batch.labels, strict=True)
        return sum(log_sum_exp(z) - float(z[label]) for z, label in pairs)

    def objective(values: Values) -> float:
        return 0.75 * (losses(values) / batch.n + penalty(name, batch, kind, values))

    values = worker.values()
    assert result.n == len(chosen)
    assert result.loss_sum == pytest.approx(losses(values), rel=1e-4)
    for table in worker.tables:
        expected = numeric_gradient(objective, values, table)
        pushed = worker.tables[table].gradient
        np.testing.assert_allclose(pushed, expected, rtol=2e-4, atol=2e-5, err_msg=table)


def predicted_probabilities(task: Task, worker: FakeWorker, batch: Batch) -> Any:
    scores = task.predict(worker, batch)
    return np.stack([1 - scores, scores], axis=1) if scores.ndim == 1 else scores


@pytest.mark.parametrize("most", [1, 7, 1 << 22])
@pytest.mark.parametrize(("name", "kind", "n_classes", "hidden"), GRID)
def test_predictions_are_those_of_the_definition(
    name: str,
    kind: str,
    n_classes: int,
    hidden: list[int],
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Products of entries and rows are computed in parts, down to one sample each.
    monkeypatch.setattr(features_module, "MOST_PRODUCTS", most)
    data, description = case(kind, n_classes)
    moments = Moments.of(data)
    task = make_task(TASKS[name], description, options_of(name, kind, hidden), seed=0)
    worker = FakeWorker(task.tables())
    task.prepare(worker, moments)
    # Samples 3 and 17 lack feature 1, which all others contain.
    chosen = np.array([k for k in range(40) if k not in (3, 17)])
    batch = data.take(chosen)
    logits = outputs(matrix(batch, kind, moments), worker.values())
    expected = np.exp([z - log_sum_exp(z) for z in logits])
    np.testing.assert_allclose(
        predicted_probabilities(task, worker, batch), expected, rtol=1e-4, atol=2e-6
    )
    none = task.predict(worker, data.take(np.zeros(0, np.int64)))
    assert none.shape == ((0,) if n_classes == 2 else (0, n_classes))


@pytest.mark.parametrize("hidden", [[], [4]])
def test_a_word_that_has_received_no_update_counts_nothing(hidden: list[int]) -> None:
    data, description = case("words", 3)
    task = make_task(TASKS["mlp"], description, {"hidden": hidden}, seed=0)
    worker = FakeWorker(task.tables())
    task.prepare(worker, Moments.of(data))
    empty = data.take(np.array([3]))
    assert empty.keys.size == 0
    unseen = SparseBatch(
        np.array([0, 1]), np.array([5]), np.array([2.0], np.float32), np.array([0])
    )
    without = task.predict(worker, empty)
    assert not np.array_equal(task.predict(worker, unseen), without)
    worker.table("weight0").values[6] = 99  # as `FakeEmbedding.initial`
    assert task.predict(worker, unseen).tobytes() == without.tobytes()


@pytest.mark.parametrize("name", ["logistic", "softmax", "mlp"])
def test_a_feature_of_rows_counts_in_predictions_as_in_training(name: str) -> None:
    entries = sparse_data(3, empty=())
    data = SparseData(entries.indptr, entries.indices, entries.values, entries.labels, WIDE)
    moments = Moments.of(data)
    task = make_task(TASKS[name], info("sparse", 3, WIDE), {}, seed=0)
    worker = FakeWorker(task.tables())
    task.prepare(worker, moments)

    def predicted(keys: list[int], values: list[float]) -> bytes:
        entries = np.array([0, len(keys)]), np.array(keys), np.array(values, np.float32)
        return task.predict(worker, SparseBatch(*entries, np.array([0]))).tobytes()

    # Feature 1 is in all samples, so it is centred: a sample without it has the value 0 there.
    assert moments.centred()[1]
    own = predicted([1, 2], [0.0, 2.0])
    assert predicted([2, 1], [2.0, 0.0]) == own
    assert predicted([2], [2.0]) == own
    # No training sample has the last one.
    assert predicted([1, 2, N_FEATURES + 5], [0.0, 2.0, 9.0]) == own
    assert predicted([1, 2], [0.0, 3.0]) != own


@pytest.mark.parametrize(("name", "table"), [("softmax", "weight"), ("mlp", "weight0")])
def test_the_rows_of_a_batch_are_announced(name: str, table: str) -> None:
    data, description = case("words", 2)
    task = make_task(TASKS[name], description, {}, seed=0)
    worker = FakeWorker(task.tables())
    task.prepare(worker, Moments.of(data))
    batch = data.take(np.array([0, 1, 2]))
    task.prefetch(worker, batch)
    task.step(worker, batch)
    assert worker.table(table).announced == worker.table(table).pulled
    assert len(worker.table(table).pulled) == len(set(batch.keys.tolist()))


def test_rows_begin_at_0_where_the_problem_is_convex() -> None:
    _, description = case("words", 3)
    for name, options, init in (
        ("softmax", {}, "zeros"),
        ("mlp", {"hidden": []}, "zeros"),
        ("mlp", {"hidden": [4]}, "normal(0.01)"),
    ):
        first = make_task(TASKS[name], description, options, seed=0).tables()[0]
        assert first.init == Initializer.parse(init)


@pytest.mark.parametrize(
    ("name", "kind", "options", "complaint"),
    [
        ("softmax", "dense", {"prior": 2.0}, r"options\.prior = 2 has no effect.*a dense table"),
        ("mlp", "sparse", {"prior": 2.0}, r"options\.prior = 2 has no effect.*options\.l2"),
        ("softmax", "words", {"l2": 1.0}, r"options\.l2 = 1 has no effect.*options\.prior"),
        ("softmax", "words", {"l2": 0.0}, r"options\.l2 = 0 has no effect"),
        ("mlp", "wide", {"hidden": [], "l2": 1.0}, r"options\.l2 = 1 has no effect"),
    ],
)
def test_a_penalty_without_effect_is_refused(
    name: str, kind: str, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_task(TASKS[name], case(kind, 2)[1], options, seed=0)


@pytest.mark.parametrize("name", ["logistic", "softmax", "mlp"])
def test_rows_of_too_many_numbers_are_refused_with_what_is_accepted(name: str) -> None:
    with pytest.raises(DataError, match="takes rows of 1 to 65,536 numbers, the data has 65,537"):
        make_task(TASKS[name], info("dense", n_features=65_537), {}, seed=0)
    with pytest.raises(DataError, match="two classes or more, the data has 1"):
        make_task(TASKS[name], info("dense", n_classes=1), {}, seed=0)


@pytest.mark.parametrize(
    ("name", "kind", "n_classes", "options", "expected"),
    [
        (
            "logistic",
            "dense",
            2,
            {},
            "logistic regression of 2 classes, a weight for each of 6 features",
        ),
        (
            "logistic",
            "dense",
            3,
            {},
            "softmax regression of 3 classes, a weight for each class and each of 6 features",
        ),
        (
            "logistic",
            "sparse",
            2,
            {},
            "logistic regression of 2 classes, a weight for each of the features that occur",
        ),
        (
            "softmax",
            "words",
            3,
            {},
            "softmax regression of 3 classes, a weight for each class and each of the features that occur",
        ),
        (
            "mlp",
            "dense",
            3,
            {"hidden": [9, 5]},
            "network with ReLU layers of 9, 5 units, from 6 features to 3 classes",
        ),
        (
            "mlp",
            "wide",
            2,
            {"hidden": []},
            "network without hidden layers, from the features that occur to 2 classes",
        ),
    ],
)
def test_what_is_trained_is_described(
    name: str, kind: str, n_classes: int, options: dict[str, Any], expected: str
) -> None:
    assert (
        make_task(TASKS[name], case(kind, n_classes)[1], options, seed=0).describe_model()
        == expected
    )


# Training of a separable problem: sample k has class k % n_classes, and the feature of its class.

N = 48


def columns(n_classes: int) -> tuple[Any, Any]:
    y = np.arange(N) % n_classes
    return np.eye(n_classes)[y] * (1 + np.arange(N)[:, None] / 64), y


def numbers_csv(folder: Path, n_classes: int) -> Any:
    x, y = columns(n_classes)
    rows = [",".join([*map(str, row), f"c{label}"]) for row, label in zip(x, y, strict=True)]
    header = ",".join([*(f"x{i}" for i in range(n_classes)), "label"])
    (folder / "numbers.csv").write_text("\n".join([header, *rows]) + "\n")
    return str(folder / "numbers.csv")


def numbers_parquet(folder: Path, n_classes: int) -> Any:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.read_csv(numbers_csv(folder, n_classes)).to_parquet(folder / "numbers.parquet")
    return str(folder / "numbers.parquet")


def numbers_npz(folder: Path, n_classes: int) -> Any:
    x, y = columns(n_classes)
    np.savez(folder / "numbers.npz", x=x, y=y)
    return str(folder / "numbers.npz")


def svm(folder: Path, n_classes: int, first: int = 1) -> Any:
    x, y = columns(n_classes)
    lines = [
        f"{label} {first + label}:{float(x[k, label])!r}" for k, label in enumerate(y.tolist())
    ]
    path = folder / f"features{first}.svm"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def wide_svm(folder: Path, n_classes: int) -> Any:
    return svm(folder, n_classes, first=WIDE)


def words_csv(folder: Path, n_classes: int) -> Any:
    _, y = columns(n_classes)
    rows = [f"w{label},{label}" for label in y.tolist()]
    (folder / "words.csv").write_text("\n".join(["word,label", *rows]) + "\n")
    return str(folder / "words.csv")


STORAGES: tuple[Callable[[Path, int], Any], ...] = (
    numbers_csv,
    numbers_npz,
    numbers_parquet,
    svm,
    wide_svm,
    words_csv,
)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("name", ["logistic", "softmax", "mlp"])
def test_each_storage_trains_predicts_and_evaluates(
    name: str, n_classes: int, tmp_path: Path
) -> None:
    found: dict[str, Any] = {}
    hidden: dict[str, Any] = {"hidden": [8]} if name == "mlp" else {}
    for write in STORAGES:
        data, folder = write(tmp_path, n_classes), tmp_path / f"{write.__name__}-model"
        fit = mpips.fit(name, data, epochs=8, lr=0.1, batch_size=8, folder=folder, **hidden)
        model = mpips.load(folder)
        assert model.evaluate(data)["accuracy"] == 1, write.__name__
        _, y = columns(n_classes)
        assert model.predict(data).tolist() == model.classes[y].tolist(), write.__name__
        found[write.__name__] = model.predict_proba(data)
        assert fit.metrics["loss"] < math.log(n_classes) / 2, write.__name__
    # The same numbers have the same bits in each file of numbers.
    same = found["numbers_csv"].tobytes()
    assert found["numbers_npz"].tobytes() == found["numbers_parquet"].tobytes() == same


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_first_command_of_the_readme_trains_a_csv_of_numbers(
    n_classes: int, tmp_path: Path
) -> None:
    raw = numbers_csv(tmp_path, n_classes)
    arguments = ["logistic", "--train", raw, "--save", str(tmp_path / "m"), "--epochs", "3"]
    done = CliRunner().invoke(train_command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    kind = {2: "logistic regression of 2 classes", 3: "softmax regression of 3 classes"}[n_classes]
    assert f"model: {kind}, a weight for each" in done.stderr  # at the start
    assert f"  model         {kind}, a weight for each" in done.stdout  # in the summary
    assert mpips.load(tmp_path / "m").classes.tolist() == [f"c{c}" for c in range(n_classes)]


def test_arrays_of_scipy_have_the_bits_of_the_file_of_their_numbers(tmp_path: Path) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    x, y = columns(3)
    rows = sparse.csr_matrix(x)
    own = mpips.fit("logistic", (rows, y), epochs=2, batch_size=8).model.predict_proba(rows)
    path = svm(tmp_path, 3)
    assert (
        own.tobytes()
        == mpips.fit("logistic", path, epochs=2, batch_size=8).model.predict_proba(path).tobytes()
    )


def test_the_weights_of_samples_count_in_rows_and_matrices() -> None:
    for kind in ("dense", "words"):
        data, description = case(kind, 3)
        task = make_task(TASKS["logistic"], description, {"prior": 0.0}, seed=0)
        gradients = []
        for weights in (None, np.array([2, 2], np.float32)):
            worker = FakeWorker(task.tables())
            task.prepare(worker, Moments.of(data))
            batch = data.take(np.array([0, 1]))
            if weights is not None:
                batch = replace(batch, weights=weights)
            task.step(worker, batch)
            gradients.append(worker.table("weight").gradient)
        np.testing.assert_array_equal(gradients[1], 2 * gradients[0])
