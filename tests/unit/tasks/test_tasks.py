"""Tasks, compared with their objectives, computed sample by sample in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from objectives import (
    CASES,
    CHOICES,
    N_FEATURES,
    FakeWorker,
    Values,
    dense_of,
    info,
    layered_logits,
    log_sum_exp,
    make_task,
    numeric_gradient,
    pairwise_logits,
    pairwise_losses,
    scaled,
    sparse_data,
)

from mpips.data import DataInfo, DenseBatch, DenseData, Moments, SparseData
from mpips.errors import ConfigError, DataError
from mpips.tasks import TASKS, Task, load_task
from mpips.tasks.features import SparseFeatures
from mpips.tasks.losses import logistic_loss, sigmoid, softmax, softmax_loss


@pytest.mark.parametrize("chosen", CHOICES, ids=str)
@pytest.mark.parametrize(
    ("name", "options", "kind", "n_classes", "reference"), CASES, ids=lambda v: str(v)[:20]
)
def test_step_pushes_the_gradient_of_the_objective(
    name: str, options: dict[str, Any], kind: str, n_classes: int, reference: Any, chosen: list[int]
) -> None:
    losses, penalty = reference
    entries = sparse_data(n_classes)
    data = entries if kind == "sparse" else dense_of(entries)
    moments = Moments.of(data)
    task = make_task(TASKS[name], info(kind, n_classes), options, seed=0)
    worker = FakeWorker(task.tables())
    task.prepare(worker, moments)
    batch = data.take(np.array(chosen), weight=0.75)

    result = task.step(worker, batch)

    values = worker.values()
    assert result.n == batch.n == len(chosen)
    assert result.loss_sum == pytest.approx(sum(losses(batch, moments, values)), rel=1e-4)

    def objective(values: Values) -> float:
        mean = sum(losses(batch, moments, values)) / batch.n
        return 0.75 * (mean + penalty(batch, moments, values, task))

    for table in worker.tables:
        expected = numeric_gradient(objective, values, table)
        pushed = worker.tables[table].gradient
        np.testing.assert_allclose(pushed, expected, rtol=2e-4, atol=2e-5, err_msg=table)


@pytest.mark.parametrize("outlying", [1, 50])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("name", ["softmax", "mlp"])
def test_layered_models_predict_probabilities(
    name: str, n_classes: int, kind: str, outlying: int
) -> None:
    entries = sparse_data(n_classes)
    data = entries if kind == "sparse" else dense_of(entries)
    task = make_task(TASKS[name], info(kind, n_classes), {}, seed=0)
    worker = FakeWorker(task.tables())
    moments = Moments.of(data)
    task.prepare(worker, moments)
    batch = scaled(data.take(np.arange(40)), outlying)
    logits = layered_logits(batch, moments, worker.values())
    expected = np.exp([z - log_sum_exp(z) for z in logits])
    scores = task.predict(worker, batch)
    np.testing.assert_allclose(scores, expected[:, 1] if n_classes == 2 else expected, atol=1e-5)
    last = "auc" if n_classes == 2 else "cross_entropy"
    assert last in task.metrics


@pytest.mark.parametrize("outlying", [1, 50])
@pytest.mark.parametrize("empty", [(3, 17), ()])
@pytest.mark.parametrize("name", ["logistic", "fm"])
def test_sparse_models_predict_probabilities(
    name: str, empty: tuple[int, ...], outlying: int
) -> None:
    data = sparse_data(empty=empty)
    task = make_task(TASKS[name], info(), {}, seed=0)
    worker = FakeWorker(task.tables())
    moments = Moments.of(data)
    task.prepare(worker, moments)
    batch = scaled(data.take(np.arange(40)), outlying)
    logits = pairwise_logits(batch, moments, worker.values())
    expected = [math.exp(z - log_sum_exp(np.array([0.0, z]))) for z in logits]
    np.testing.assert_allclose(task.predict(worker, batch), expected, atol=2e-5)


@pytest.mark.parametrize(("name", "kind"), [(n, k) for n, _, k, _, _ in CASES])
def test_predicting_no_samples_gives_no_scores(name: str, kind: str) -> None:
    entries = sparse_data()
    data = entries if kind == "sparse" else dense_of(entries)
    task = make_task(TASKS[name], info(kind), {}, seed=0)
    worker = FakeWorker(task.tables())
    task.prepare(worker, Moments.of(data))
    assert task.predict(worker, data.take(np.zeros(0, np.int64))).shape == (0,)


@pytest.mark.parametrize("name", ["logistic", "fm"])
def test_prefetch_announces_what_the_step_pulls(name: str) -> None:
    data = sparse_data()
    task = make_task(TASKS[name], info(), {}, seed=0)
    worker = FakeWorker(task.tables())
    task.prepare(worker, Moments.of(data))
    first, second = (data.take(np.array(rows)) for rows in ([0, 1, 2], [30, 31]))
    task.prefetch(worker, first)
    announced = {table: handle.announced for table, handle in worker.tables.items()}
    task.prefetch(worker, second)
    task.step(worker, first)
    assert {table: handle.pulled for table, handle in worker.tables.items()} == announced
    for handle in worker.tables.values():
        handle.gradient = None
    task.step(worker, second)
    for handle in worker.tables.values():
        assert handle.pulled == handle.announced


def test_announced_batch_is_not_worked_out_twice() -> None:
    features = SparseFeatures(info(), "logistic")
    batch = sparse_data().take(np.array([0, 1]))
    keys = features.announce(batch)
    assert features.of(batch).keys is keys
    assert features.of(sparse_data().take(np.array([0, 1]))).keys is not keys


def test_entries_of_two_batches_do_not_share_their_keys() -> None:
    features = SparseFeatures(info(), "logistic")
    data = sparse_data()
    batches = [data.take(np.arange(i, i + 6)) for i in range(0, 30, 6)]
    # Announce each batch while earlier ones are in use, or have just been released.
    held = [(batch, features.of(batch)) for batch in batches]
    held.append((batches[0], features.of(batches[0])))
    for batch, entries in held[1:]:
        ones = np.ones(len(batch.keys), np.float32)
        assert entries.keys[entries.key_ids].tolist() == batch.keys.tolist()
        assert dict(zip(entries.keys.tolist(), entries.sum_by_key(ones).tolist(), strict=True)) == {
            key: float((batch.keys == key).sum()) for key in set(batch.keys.tolist())
        }
        assert entries.sum_by_row(ones).tolist() == np.diff(batch.indptr).tolist()


@pytest.mark.parametrize(
    ("n_samples", "n_workers", "n_epochs", "expected"),
    [
        (32_561, 1, 30, 512),  # 1,907 updates
        (32_561, 1, 29, 256),
        (32_561, 3, 30, 128),
        (12_291, 1, 30, 128),
        (12_291, 3, 30, 64),
        (100, 1, 30, 32),
        (10**9, 64, 1, 512),
    ],
)
def test_logistic_takes_batches_that_leave_enough_updates(
    n_samples: int, n_workers: int, n_epochs: int, expected: int
) -> None:
    task = make_task(TASKS["logistic"], replace(info(), n_samples_total=n_samples), {}, seed=0)
    assert task.suitable_batch_size(n_workers, n_epochs) == expected


def test_bias_row_is_no_features_row() -> None:
    task = make_task(TASKS["logistic"], info(), {}, seed=0)
    worker = FakeWorker(task.tables())
    task.prepare(worker, Moments.of(sparse_data()))
    task.step(worker, sparse_data().take(np.array([3])))
    assert worker.table("weight").pulled == [-1]


@pytest.mark.parametrize("name", ["logistic", "fm"])
def test_the_optimizer_adds_no_penalty_to_that_of_the_task(name: str) -> None:
    for n_features in (N_FEATURES, 1 << 62):
        task = make_task(TASKS[name], info(n_features=n_features), {"prior": 2.0}, seed=0)
        assert task.tables()[0].optimizer.l2 == 0  # type: ignore[union-attr]


def test_hashed_features_are_not_scaled_and_bear_their_share() -> None:
    task = make_task(TASKS["logistic"], info(n_features=1 << 62), {"prior": 5.0}, seed=0)
    worker = FakeWorker(task.tables())
    small = sparse_data()
    wide = SparseData(small.indptr, small.indices, small.values, small.labels, 1 << 62)
    task.prepare(worker, Moments.of(wide))
    batch = wide.take(np.array([0, 1, 2]))
    task.step(worker, batch)
    unit = Moments(2, np.ones(6), np.zeros(6), np.ones(6))  # shift 0, scale 1

    def objective(values: Values) -> float:
        penalty = sum(
            values["weight"][key + 1, 0] ** 2 / np.count_nonzero(wide.indices == key)
            for key in batch.keys
        )
        return (sum(pairwise_losses(batch, unit, values)) + 5.0 / 2 * penalty) / 3

    expected = numeric_gradient(objective, worker.values(), "weight")
    np.testing.assert_allclose(worker.table("weight").gradient, expected, rtol=2e-4, atol=2e-5)


def test_constant_and_extreme_features_do_not_disturb() -> None:
    x = np.zeros((40, N_FEATURES), np.float32)
    x[:, 1], x[:, 2], x[0, 3] = 7.3, np.arange(40), 1e30
    data = DenseData(x, np.arange(40) % 2)
    task = make_task(TASKS["softmax"], info("dense"), {"l2": 0.0}, seed=0)
    worker = FakeWorker(task.tables())
    task.prepare(worker, Moments.of(data))
    task.step(worker, DenseBatch(x, data.labels))
    gradient = worker.table("weight").gradient
    assert np.isfinite(gradient).all()
    assert np.abs(gradient).max() < 10
    assert (gradient[[0, 1, 4, 5]] == 0).all()
    assert (gradient[[2, 3]] != 0).all()


def test_losses_of_huge_logits_are_finite_and_exact() -> None:
    logits = np.array([1e4, -1e4, 1e4, -1e4, 0], np.float32)
    labels = np.array([1, 0, 0, 1, 1])
    loss, error = logistic_loss(logits, labels)
    assert loss == pytest.approx(2e4 + math.log(2))
    np.testing.assert_allclose(error, [0, 0, 1, -1, -0.5])
    np.testing.assert_allclose(sigmoid(logits), [1, 0, 1, 0, 0.5])
    assert sigmoid(logits).dtype == np.float32
    pairs = np.stack([np.zeros(5, np.float32), logits], axis=1)
    loss, error = softmax_loss(pairs.copy(), labels)
    assert loss == pytest.approx(2e4 + math.log(2))
    np.testing.assert_allclose(error[:, 1], [0, 0, 1, -1, -0.5])
    np.testing.assert_allclose(softmax(pairs)[:, 1], [1, 0, 1, 0, 0.5])


@pytest.mark.parametrize(
    ("name", "data", "complaint"),
    [
        (
            "fm",
            info("dense"),
            "the data is rows of numbers; use task 'logistic', 'softmax' or 'mlp'",
        ),
        (
            "fm",
            info(n_classes=3),
            "takes two classes, the data has 3; use task 'logistic', 'softmax' or 'mlp'",
        ),
        ("fm", info(n_classes=1), "takes two classes, the data has 1"),
        ("softmax", info("dense", n_classes=1), "needs two classes or more, the data has 1"),
        ("mlp", info("dense", n_features=1 << 17), "takes rows of 1 to 65,536 numbers"),
        ("softmax", info(n_features=0), "takes one feature or more, no sample of the data has any"),
    ],
)
def test_data_that_does_not_suit_is_refused(name: str, data: DataInfo, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        make_task(TASKS[name], data, {}, seed=0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"learning_rat": 1},
            "unknown key 'options.learning_rat'; valid in .options. are hidden",
        ),
        ({"learning_rate": 0}, "options.learning_rate = 0: must be greater than 0"),
        ({"l2": -1}, "options.l2 = -1: must be 0 or more"),
        ({"hidden": [0]}, r"options.hidden\[0\] = 0: must be 1 or more"),
        ({"hidden": "many"}, r"options.hidden\[0\] = 'many': must be a whole number, 1 or more"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_task(TASKS["mlp"], info("dense"), options, seed=0)


@pytest.mark.parametrize("name", TASKS)
def test_built_in_tasks_are_found_and_complete(name: str) -> None:
    task = load_task(name)
    assert (task.name, task) == (name, TASKS[name])
    assert task.default_epochs > 0
    assert task.default_batch_size > 0


OWN_TASK = """
from mpips.tasks import Task
class Whole(Task):
    name = "whole"
    def tables(self): return []
    def step(self, worker, batch): ...
    def predict(self, worker, batch): ...
class NoStep(Task):
    name = "no-step"
    def tables(self): return []
    def predict(self, worker, batch): ...
class Stranger:
    name = "stranger"
    tables = step = predict = prepare = lambda self: None
class Nameless(Task):
    tables = step = predict = lambda self: None
class OddOptions(Whole):
    Options = dict
class OddLabels(Whole):
    labels = "numbers"
number = 3
"""


class TestOwnTasks:
    FILES: ClassVar[dict[str, str]] = {
        "own_task_module": OWN_TASK,
        "own_needy_module": "import not_there_at_all",
        "own_broken_module": "def broken(:",
    }

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, text in self.FILES.items():
            (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)

    def test_own_task_inherits_what_it_does_not_define(self) -> None:
        task = make_task(load_task("own_task_module:Whole"), info(), {}, seed=0)
        assert task.name == "whole"
        task.prepare(FakeWorker([]), Moments.of(sparse_data()))
        assert task.default_epochs == Task.default_epochs

    @pytest.mark.parametrize(
        ("name", "complaint"),
        [
            (
                "nothing",
                "unknown task 'nothing'; valid are softmax, mlp, logistic, fm, wide_deep",
            ),
            (":Whole", "unknown task ':Whole'"),
            ("own_task_module:", "unknown task 'own_task_module:'"),
            ("absent_module:Whole", "no module absent_module in "),
            ("own_task_module.sub:Whole", r"no module own_task_module\.sub in "),
            ("own_needy_module:Whole", "own_needy_module imports not_there_at_all"),
            ("own_broken_module:Whole", "importing own_broken_module: SyntaxError"),
            ("own_task_module:Absent", "module own_task_module has no class Absent"),
            ("own_task_module:number", "module own_task_module has no class number"),
            ("own_task_module:NoStep", "class NoStep has no method step"),
            ("own_task_module:Stranger", "class Stranger has no method prefetch"),
            ("own_task_module:Nameless", "class Nameless has no attribute name"),
            ("own_task_module:OddOptions", "OddOptions.Options is no subclass of msgspec.Struct"),
            ("own_task_module:OddLabels", "labels = 'numbers': must be one of classes, targets"),
        ],
    )
    def test_what_is_wrong_is_named(self, name: str, complaint: str) -> None:
        with pytest.raises(ConfigError, match=complaint):
            load_task(name)
