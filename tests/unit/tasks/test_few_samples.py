"""Logistic regression with fewer samples than features."""

from __future__ import annotations

import numpy as np
import pytest

import mpips
from mpips.data import DataInfo
from mpips.tasks.logistic import LONGER, Logistic, LogisticOptions


def info(n_samples: int, n_features: int) -> DataInfo:
    return DataInfo(n_samples, n_samples, n_features, (0.0, 1.0), "dense")


@pytest.mark.parametrize(
    ("n_samples", "n_features", "expected"),
    [
        (210, 1500, {"train.epochs": 290}),
        (210, 211, {"train.epochs": 290}),
        (210, 210, {}),
        (5000, 100_000, {}),  # 30 epochs are enough
    ],
)
def test_more_epochs_are_chosen_for_few_samples_of_many_features(
    n_samples: int, n_features: int, expected: dict[str, int]
) -> None:
    assert Logistic.choose(info(n_samples, n_features), LogisticOptions()) == expected


def test_several_workers_divide_few_samples_into_smaller_batches() -> None:
    few = info(210, 1500)
    few.chosen.update(Logistic.choose(few, LogisticOptions()))
    task = Logistic(few, LogisticOptions(), 0)
    assert [task.suitable_batch_size(n, 290) for n in (1, 2, 3, 20)] == [32, 16, 8, 8]
    assert task.describe_model().endswith(LONGER)
    usual = Logistic(info(210, 100), LogisticOptions(), 0)
    assert [usual.suitable_batch_size(n, 30) for n in (1, 20)] == [32, 32]
    assert LONGER not in usual.describe_model()


def test_the_solution_is_that_of_the_prior() -> None:
    """Newton's method on the same penalised loss, with standardised features."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(60, 80)).astype(np.float32)
    y = (x[:, 0] + rng.normal(size=60) > 0).astype(np.int64)
    found = mpips.fit("logistic", (x, y)).model.predict_proba(x)[:, 1]
    early = mpips.fit("logistic", (x, y), epochs=30).model.predict_proba(x)[:, 1]
    scaled = np.c_[np.ones(60), (x - x.mean(axis=0)) / x.std(axis=0)].astype(np.float64)
    weights, penalty = np.zeros(81), np.r_[0.0, np.ones(80)]
    for _ in range(30):
        p = 1 / (1 + np.exp(-scaled @ weights))
        gradient = scaled.T @ (p - y) + penalty * weights
        curvature = scaled.T @ (scaled * (p * (1 - p))[:, None]) + np.diag(penalty + 1e-9)
        weights -= np.linalg.solve(curvature, gradient)
    expected = 1 / (1 + np.exp(-scaled @ weights))
    np.testing.assert_allclose(found, expected, atol=0.02)
    assert abs(early - expected).max() > 0.05
