"""Fits in one process: their definition in NumPy, their quality, partial_fit, sparse data."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from script_rig import script_job

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

import scipy.sparse
from sklearn.base import clone
from sklearn.datasets import load_digits, load_svmlight_file
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mpips
from mpips.sklearn import MpipsClassifier, MpipsRegressor
from mpips.sklearn.fit import FitArguments, LossCurve
from mpips.sklearn.layout import ModelLayout
from mpips.sklearn.losses import binary_loss, class_loss
from mpips.sklearn.settings import settings_of
from mpips.tasks.losses import squared_loss

pytestmark = pytest.mark.filterwarnings("ignore:max_iter = .* epochs")

REPOSITORY = Path(__file__).resolve().parents[3]
DATA = Path(os.environ.get("MPIPS_TEST_DATA", REPOSITORY.parent / "shared" / "data"))


def samples(n: int = 30, seed: int = 1) -> tuple[Any, Any]:
    """Return features, shape (n, 4), and classes 0, 1, 2."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4)).astype(np.float32)
    return x, np.int64(x[:, 0] > 0) + (x[:, 1] > 0.5)


def layers(model: Any) -> list[Any]:
    return [*model._layers()[0], *model._layers()[1]]


def assert_equal(model: Any, other: Any) -> None:
    for mine, wanted in zip(layers(model), layers(other), strict=True):
        np.testing.assert_array_equal(mine, wanted)


def test_steps_of_sgd_are_those_of_numpy() -> None:
    x, y = samples(10)
    w = np.linspace(0.5, 2.0, 10).astype(np.float32)
    named: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.5, "alpha": 0.1}
    model = MpipsClassifier(**named, batch_size=4, max_iter=3, shuffle=False)
    model.fit(x, y, sample_weight=w)
    weight, bias, losses = np.zeros((4, 3)), np.zeros(3), []
    for _ in range(3):
        total = 0.0
        for first in (0, 4, 8):
            part = slice(first, first + 4)
            n = len(x[part])
            logits = x[part] @ weight + bias
            p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            total += (w[part] * -np.log(p[np.arange(n), y[part]])).sum()
            total += n * 0.05 * (weight**2).sum()
            error = w[part, np.newaxis] * (p - np.eye(3)[y[part]]) / n
            weight, bias = (
                weight - 0.5 * (x[part].T @ error + 0.1 * weight),
                bias - 0.5 * error.sum(axis=0),
            )
        losses.append(total / 10)
    np.testing.assert_allclose(model.coef_, weight.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.intercept_, bias, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.loss_curve_, losses, rtol=1e-5)
    assert model.n_iter_ == 3


@pytest.mark.parametrize("loss", [binary_loss, class_loss, squared_loss])
@pytest.mark.parametrize("hidden", [(), (5, 3)])
def test_gradients_are_those_of_small_differences(loss: Any, hidden: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    n_outputs = 1 if loss is binary_loss else 3
    layout = ModelLayout((4, *hidden, n_outputs))
    settings = settings_of(MpipsClassifier(hidden, alpha=0.3))
    x, y = samples(7)
    targets = rng.normal(size=(7, 3)) if loss is squared_loss else y.clip(0, max(n_outputs - 1, 1))
    w = rng.uniform(0.5, 2, 7)
    fit = FitArguments(layout, layout.initial(rng), x, targets, w, loss, settings, 0, 0, 1)
    values: Any = rng.normal(size=(layout.n_rows, 128))

    def objective(at: Any) -> float:
        nothing = np.zeros_like(at)
        return fit.add_gradient(at, x, targets, w, 1.0, nothing) + fit.add_penalty(at, nothing)

    found: Any = np.zeros_like(values)
    fit.add_gradient(values, x, targets, w, 1.0, found)
    fit.add_penalty(values, found)
    assert not found.reshape(-1)[layout.n_values :].any()
    for i in range(layout.n_values):
        nearby = [values.copy(), values.copy()]
        for other, sign in zip(nearby, (1, -1), strict=True):
            other.reshape(-1)[i] += sign * 1e-5
        slope = (objective(nearby[0]) - objective(nearby[1])) / 2e-5
        assert found.reshape(-1)[i] == pytest.approx(slope, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("hidden", "least"), [((), 0.93), ((100,), 0.96)])
def test_digits_are_learned(hidden: tuple[int, ...], least: float) -> None:
    x, y = load_digits(return_X_y=True)
    names = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "9"])
    test = np.arange(len(x)) % 5 == 0
    model = make_pipeline(
        StandardScaler(), MpipsClassifier(hidden, max_iter=30, random_state=0)
    ).fit(x[~test], names[y[~test]])
    assert model.score(x[test], names[y[test]]) >= least
    assert model.predict_proba(x[test]).sum(axis=1) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("name", "least"), [("agaricus", 0.995), ("w6a", 0.975)])
def test_sparse_files_are_learned(name: str, least: float) -> None:
    paths = [DATA / f"{name}.{part}.svm" for part in ("train", "test")]
    if not all(path.is_file() for path in paths):
        pytest.skip(f"{name}.train.svm and {name}.test.svm are missing in {DATA}")
    x, y = load_svmlight_file(str(paths[0]))
    test, labels = load_svmlight_file(str(paths[1]), n_features=x.shape[1])
    model = MpipsClassifier(max_iter=5, random_state=0).fit(x, y)
    assert model.score(test, labels) >= least


def test_sparse_and_dense_data_give_the_same_model() -> None:
    x, y = samples(60)
    x[x < 0.3] = 0
    named: dict[str, Any] = {"max_iter": 5, "random_state": 1, "batch_size": 16}
    for hidden in ((), (8,)):
        dense = MpipsClassifier(hidden, **named).fit(x, y)
        sparse = MpipsClassifier(hidden, **named).fit(scipy.sparse.csr_matrix(x), y)
        for mine, other in zip(layers(dense), layers(sparse), strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)
        wide = scipy.sparse.csr_array(x.astype(np.float64))
        np.testing.assert_allclose(dense.predict_proba(x), dense.predict_proba(wide), rtol=1e-10)


@pytest.mark.parametrize("optimizer", ["adam", "momentum", mpips.Adagrad(0.2)])
def test_partial_fit_goes_on_with_the_optimizer(optimizer: Any) -> None:
    x, y = samples(32)
    named: dict[str, Any] = {"optimizer": optimizer, "random_state": 5, "batch_size": 8}
    once = MpipsClassifier((6,), max_iter=4, tol=None, **named).fit(x, y)
    parts = MpipsClassifier((6,), **named)
    for _ in range(2):
        parts.partial_fit(x, y, classes=[0, 1, 2])
    # A copy and a stored estimator go on, too.
    parts = pickle.loads(pickle.dumps(copy.deepcopy(parts)))
    for _ in range(2):
        parts.partial_fit(x, y)
    assert_equal(parts, once)
    assert parts.loss_curve_ == once.loss_curve_
    assert parts.n_iter_ == 4


def test_partial_fit_begins_at_attributes_that_were_changed() -> None:
    x, y = samples(32)
    named: dict[str, Any] = {"optimizer": "sgd", "shuffle": False, "batch_size": 32, "alpha": 0.0}
    model = MpipsRegressor(**named, learning_rate=0.5).partial_fit(x, y)
    model.coef_ = model.coef_ + np.float32(1)
    before, bias = model.coef_.astype(np.float64), float(model.intercept_[0])
    model.partial_fit(x, y)
    error = x @ before + bias - y
    np.testing.assert_allclose(model.coef_, before - 0.5 * x.T @ error / 32, rtol=1e-5)


def test_a_script_of_one_process_does_the_same() -> None:
    x, y = samples(50)
    named: dict[str, Any] = {"batch_size": 16, "max_iter": 3}

    def fitted() -> list[Any]:
        found = [
            MpipsClassifier((6,), random_state=3, **named).fit(x, y),
            MpipsRegressor(optimizer="sgd", random_state=4, **named).fit(x, y),
            MpipsClassifier(optimizer=mpips.Nesterov(0.1), random_state=5, **named).fit(x, y == 1),
        ]
        online = MpipsRegressor((4,), random_state=6, **named)
        for _ in range(3):
            online.partial_fit(x, y)
        return [*found, online]

    alone = fitted()
    with script_job():
        for mine, wanted in zip(fitted(), alone, strict=True):
            assert_equal(mine, wanted)
            assert mine.loss_curve_ == wanted.loss_curve_


def test_a_copy_in_a_script_does_not_use_the_rows_of_the_first_one() -> None:
    x, y = samples(32)
    with script_job():
        first = MpipsRegressor(random_state=1).partial_fit(x, y)
        before = layers(first)
        other = copy.deepcopy(first)
        for _ in range(3):
            other.partial_fit(x, y)
        other = pickle.loads(pickle.dumps(other))
        again = MpipsRegressor(random_state=1).partial_fit(x, y).partial_fit(x, y)
        first.partial_fit(x, y)
        assert_equal(again, first)
        assert any((a != b).any() for a, b in zip(before, layers(first), strict=True))
        assert any((a != b).any() for a, b in zip(layers(other), layers(first), strict=True))


def test_a_script_without_random_state_uses_the_seed_of_the_job() -> None:
    x, y = samples(50)

    def fits(seed: int) -> list[Any]:
        with script_job(seed=seed):
            np.random.default_rng().normal()
            return [MpipsRegressor((5,), max_iter=2).fit(x, y) for _ in range(2)]

    one, same, other = fits(3), fits(3), fits(4)
    assert_equal(one[0], same[0])
    assert_equal(one[1], same[1])
    assert (one[0].coefs_[0] != one[1].coefs_[0]).any()
    assert (one[0].coefs_[0] != other[0].coefs_[0]).any()


def test_a_fit_ends_when_its_loss_does_not_fall() -> None:
    curve, ends = LossCurve(tol=0.125, n_iter_no_change=2), []
    # The second loss is not less than the first one by the tolerance, the third one is.
    for loss in (1.0, 0.9375, 0.75, 0.6875, 0.6875):
        curve.add(loss)
        ends.append(curve.has_converged)
    assert ends == [False, False, False, False, True]
    endless = LossCurve(tol=-np.inf, n_iter_no_change=1)
    for loss in (1.0, 2.0, 3.0):
        endless.add(loss)
    assert not endless.has_converged


def test_weights_of_classes_are_weights_of_their_samples() -> None:
    x, y = samples(40)
    named: dict[str, Any] = {"max_iter": 3, "random_state": 2}
    by_class = {0: 1.0, 1: 3.0, 2: 0.5}
    weights = np.array([by_class[label] for label in y])
    found = MpipsClassifier(class_weight=by_class, **named).fit(x, y)
    assert_equal(found, MpipsClassifier(**named).fit(x, y, sample_weight=weights))
    online = MpipsClassifier(class_weight=by_class, **named).partial_fit(x, y, classes=[0, 1, 2])
    assert (online.coef_ != MpipsClassifier(**named).partial_fit(x, y, [0, 1, 2]).coef_).any()


def test_several_targets() -> None:
    x, _ = samples(200)
    y = x @ np.array([[1.0, 2.0], [0.0, 1.0], [3.0, 0.0], [0.0, 0.0]]) + [1.0, -1.0]
    model = MpipsRegressor(optimizer="momentum", learning_rate=0.1, alpha=0.0, random_state=0)
    model.fit(x, y)
    assert model.coef_ == pytest.approx(np.array([[1, 0, 3, 0], [2, 1, 0, 0]]), abs=0.02)
    assert model.predict(x).shape == (200, 2)
    assert model.score(x, y) > 0.999


def test_a_grid_of_parameters_and_clones() -> None:
    x, y = samples(60)
    search = GridSearchCV(
        MpipsClassifier(learning_rate=0.1, random_state=0),
        {"hidden": [(), (4,)], "max_iter": [1, 50]},
        cv=2,
    ).fit(x, y)
    assert search.best_params_["max_iter"] == 50
    fitted = search.best_estimator_
    assert clone(fitted).get_params() == fitted.get_params()
    # A model without hidden layers has no attributes of one with them.
    fitted.set_params(hidden=(3,)).fit(x, y)
    assert not hasattr(fitted, "coef_")
    fitted.set_params(hidden=()).fit(x, y)
    assert not hasattr(fitted, "coefs_")
