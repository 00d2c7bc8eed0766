"""Metrics, compared with their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpips.data.metrics import EvalShare, Kind, accuracy, auc, cross_entropy, log_loss, merge

cases = st.lists(
    st.tuples(st.integers(0, 8).map(lambda i: i / 8), st.integers(0, 1)), min_size=1, max_size=40
)


@settings(deadline=None)
@given(cases)
def test_binary_metrics_are_their_definitions(case: list[tuple[float, int]]) -> None:
    scores, labels = (np.array(column) for column in zip(*case, strict=True))
    ones = [score for score, label in case if label]
    zeros = [score for score, label in case if not label]
    wins = sum((one > zero) + 0.5 * (one == zero) for one in ones for zero in zeros)
    expected = wins / (len(ones) * len(zeros)) if ones and zeros else math.nan
    assert auc(scores, labels) == pytest.approx(expected, abs=1e-12, nan_ok=True)

    right = sum((score >= 0.5) == label for score, label in case)
    assert accuracy(scores, labels) == pytest.approx(right / len(case))

    chances = [max(score if label else 1 - score, 1e-15) for score, label in case]
    loss = sum(-math.log(chance) for chance in chances) / len(case)
    assert log_loss(scores, labels) == pytest.approx(loss)


@settings(deadline=None)
@given(cases)
def test_metrics_that_are_asked_for_are_their_definitions(case: list[tuple[float, int]]) -> None:
    scores, labels = (np.array(column) for column in zip(*case, strict=True))
    ones = [score for score, label in case if label]
    found = merge([EvalShare(scores, labels)], ("f1", "pr_auc", "calibration", "mae"))
    assert list(found) == ["accuracy", "auc", "log_loss", "f1", "pr_auc", "calibration"]

    hits = sum(score >= 0.5 and label for score, label in case)
    misses = sum((score >= 0.5) != bool(label) for score, label in case)
    assert found["f1"] == pytest.approx(2 * hits / max(2 * hits + misses, 1))
    above = [[label for other, label in case if other >= score] for score in ones]
    precision = sum(sum(labels) / len(labels) for labels in above)
    expected = precision / len(ones) if ones else math.nan
    assert found["pr_auc"] == pytest.approx(expected, abs=1e-12, nan_ok=True)
    expected = float(scores.sum()) / len(ones) if ones else math.nan
    assert found["calibration"] == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_metrics_that_are_asked_for_agree_with_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    generator = np.random.default_rng(6)
    labels = generator.integers(0, 2, 500)
    logits = (generator.normal(0, 2, 500) + labels).round(1)
    found = merge([EvalShare(logits, labels, "logits")], ("f1", "pr_auc", "calibration"))
    assert found["f1"] == pytest.approx(sklearn.f1_score(labels, logits >= 0))
    assert found["pr_auc"] == pytest.approx(sklearn.average_precision_score(labels, logits))
    chances = 1 / (1 + np.exp(-logits))
    assert found["calibration"] == pytest.approx(chances.sum() / labels.sum())
    values = generator.normal(0, 2, 500)
    numbers = merge([EvalShare(values, logits, "values")], ("mae", "f1"))
    assert list(numbers) == ["rmse", "r2", "mae"]
    assert numbers["mae"] == pytest.approx(sklearn.mean_absolute_error(logits, values))
    certain = merge(
        [EvalShare(np.array([800.0, -800.0]), np.array([1, 0]), "logits")], ("calibration",)
    )
    assert certain["calibration"] == 1


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_class_metrics_are_their_definitions(n: int, k: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    scores = generator.dirichlet(np.ones(k), n).astype(np.float32)
    labels = generator.integers(0, k, n)
    loss = sum(-math.log(scores[i, labels[i]]) for i in range(n)) / n
    assert cross_entropy(scores, labels) == pytest.approx(loss)
    right = sum(max(range(k), key=lambda c: scores[i, c]) == labels[i] for i in range(n))
    assert accuracy(scores, labels) == pytest.approx(right / n)


def test_certain_and_wrong_costs_the_floor_not_infinity() -> None:
    floor = -math.log(1e-15)
    assert log_loss(np.array([0.0, 1.0], np.float32), np.array([1, 0])) == pytest.approx(floor)
    assert cross_entropy(np.array([[1.0, 0.0]], np.float32), np.array([1])) == pytest.approx(floor)


def test_no_samples_make_nan_without_a_warning() -> None:
    nothing, labels = np.zeros(0, np.float32), np.zeros(0, np.int64)
    assert all(math.isnan(metric(nothing, labels)) for metric in (accuracy, auc, log_loss))
    assert math.isnan(cross_entropy(np.zeros((0, 3)), labels))


@pytest.mark.parametrize("k", [None, 3])
def test_merged_metrics_do_not_depend_on_the_number_of_workers(k: int | None) -> None:
    generator = np.random.default_rng(7)
    n = 37
    if k is None:
        scores, labels = generator.random(n, np.float32), generator.integers(0, 2, n)
    else:
        scores = generator.dirichlet(np.ones(k), n).astype(np.float32)
        labels = generator.integers(0, k, n)
    whole = merge([EvalShare(scores, labels)])
    for n_workers in (2, 3, 5, 40):
        shares = [EvalShare(scores[w::n_workers], labels[w::n_workers]) for w in range(n_workers)]
        assert merge(shares) == whole
    names = ["accuracy", "auc", "log_loss"] if k is None else ["accuracy", "cross_entropy"]
    assert list(whole) == names


def test_shares_of_different_shape_are_refused() -> None:
    labels = np.zeros(2, np.int64)
    with pytest.raises(ValueError, match=r"\(2,\), \(2, 3\)"):
        merge([EvalShare(np.zeros(2), labels), EvalShare(np.zeros((2, 3)), labels)])
    with pytest.raises(ValueError, match="at least one"):
        merge([])


logits = st.lists(
    st.tuples(st.floats(-800, 800, width=32), st.integers(0, 1)), min_size=1, max_size=40
)


@settings(deadline=None)
@given(logits)
def test_metrics_of_logits_are_those_of_exact_probabilities(case: list[tuple[float, int]]) -> None:
    z, labels = (np.array(column) for column in zip(*case, strict=True))
    found = merge([EvalShare(z, labels, "logits")])
    # log(1 + exp(s)) without overflow, sample by sample.
    losses = [max(s, 0) + math.log1p(math.exp(-abs(s))) for s in np.where(labels == 1, -z, z)]
    assert found["log_loss"] == pytest.approx(math.fsum(losses) / len(losses), rel=1e-12)
    assert found["accuracy"] == np.mean((z >= 0) == labels)
    assert found["auc"] == pytest.approx(auc(z, labels), nan_ok=True)


def test_saturated_probabilities_hide_what_logits_show() -> None:
    z = np.array([20.0, 25.0, 30.0, 35.0])
    labels = np.array([0, 1, 0, 1])
    saturated = (1 / (1 + np.exp(-z.astype(np.float32)))).astype(np.float32)
    assert auc(saturated, labels) == 0.5
    assert merge([EvalShare(z, labels, "logits")])["auc"] == 0.75


def test_cross_entropy_of_logits_is_that_of_their_softmax() -> None:
    z = np.random.default_rng(1).normal(0, 3, (50, 4))
    labels = np.arange(50) % 4
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    expected = merge([EvalShare(p, labels)])
    assert merge([EvalShare(z, labels, "logits")]) == pytest.approx(expected)
    huge = np.array([[4000.0, 0.0, -4000.0]])
    assert merge([EvalShare(huge, np.array([1]), "logits")])["cross_entropy"] == 4000


@pytest.mark.parametrize("kind", ["probabilities", "logits", "values"])
@pytest.mark.parametrize("shape", [(4,), (4, 3)])
def test_a_score_that_is_nan_makes_every_metric_nan(kind: Kind, shape: tuple[int, ...]) -> None:
    if kind == "values" and len(shape) > 1:
        return
    scores = np.full(shape, 0.25)
    scores[1] = math.nan
    found = merge([EvalShare(scores, np.array([0, 1, 0, 1]), kind)])
    assert all(math.isnan(value) for value in found.values()), found


def test_regression_metrics_are_their_definitions() -> None:
    generator = np.random.default_rng(3)
    y = 1e6 + generator.normal(0, 2, 60)
    guess = y + generator.normal(0, 1, 60)
    found = merge([EvalShare(guess, y, "values")])
    assert found["rmse"] == pytest.approx(math.sqrt(np.mean((guess - y) ** 2)))
    expected = 1 - ((guess - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    assert found["r2"] == pytest.approx(expected, rel=1e-9)
    assert merge([EvalShare(np.full(60, y.mean()), y, "values")])["r2"] == pytest.approx(
        0, abs=1e-6
    )
    same = np.full(3, 0.1)
    assert math.isnan(merge([EvalShare(same + 1, same, "values")])["r2"])
    nothing = merge([EvalShare(np.zeros(0), np.zeros(0), "values")])
    assert [name for name, value in nothing.items() if math.isnan(value)] == ["rmse", "r2"]


def test_scores_of_the_wrong_number_or_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="one score, or row of scores, for each label"):
        merge([EvalShare(np.zeros(3), np.zeros(2))])
    with pytest.raises(ValueError, match=r"shape \(2, 1\), expected \(n,\)"):
        merge([EvalShare(np.zeros((2, 1)), np.zeros(2), "values")])
