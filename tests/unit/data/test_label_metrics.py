"""Metrics of several labels against scikit-learn, and their bits for any number of workers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mpips.data.label_metrics import label_metrics
from mpips.data.metrics import LABEL_METRICS, EvalShare, Totals, pack, unpack
from mpips.data.ranking import Ranking

metrics = pytest.importorskip("sklearn.metrics")

Array = np.ndarray[Any, Any]


def of_parts(scores: Array, labels: Array, n_parts: int) -> dict[str, float]:
    """Return the metrics of samples that are divided among workers."""
    k = labels.shape[1]
    totals, rankings = [Totals() for _ in range(k)], [None] * k
    for offset in range(n_parts):
        share = EvalShare(scores[offset::n_parts], labels[offset::n_parts], "labels")
        for i, column in enumerate(share.columns()):
            totals[i] += Totals.of(column)
            own, before = column.ranking(), rankings[i]
            rankings[i] = own if before is None else before.merge(own)
    assert all(isinstance(own, Ranking) for own in rankings)
    found = unpack(pack(totals, [own.pairs() for own in rankings if own is not None]))
    return label_metrics(*found)


def drawn(n: int, k: int, seed: int = 1) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    scores = rng.normal(-1, 2, (n, k)).round(1)
    labels = (rng.random((n, k)) < 1 / (1 + np.exp(-scores))).astype(np.int64)
    return scores, labels


@pytest.mark.parametrize("shape", [(400, 5), (50, 1), (30, 40)], ids=str)
def test_metrics_are_those_of_scikit_learn(shape: tuple[int, int]) -> None:
    scores, labels = drawn(*shape)
    guesses, p = scores >= 0, 1 / (1 + np.exp(-scores))
    areas = [
        metrics.roc_auc_score(labels[:, i], scores[:, i])
        for i in range(shape[1])
        if 0 < labels[:, i].sum() < len(labels)
    ]
    expected = {
        "micro_f1": metrics.f1_score(labels.ravel(), guesses.ravel()),
        "macro_f1": np.mean(
            [
                metrics.f1_score(y, g, zero_division=0.0)
                for y, g in zip(labels.T, guesses.T, strict=True)
            ]
        ),
        "mean_auc": np.mean(areas),
        "hamming_loss": metrics.hamming_loss(labels.ravel(), guesses.ravel()),
        "log_loss": metrics.log_loss(labels.ravel(), p.ravel()),
    }
    found = of_parts(scores, labels, 1)
    assert tuple(found) == LABEL_METRICS
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-12), name


@pytest.mark.parametrize("n_parts", [2, 3, 7])
def test_bits_do_not_depend_on_the_workers(n_parts: int) -> None:
    scores, labels = drawn(211, 4)
    assert of_parts(scores, labels, n_parts) == of_parts(scores, labels, 1)
    # Some workers have no sample.
    assert of_parts(scores[:2], labels[:2], n_parts) == of_parts(scores[:2], labels[:2], 1)


def test_what_is_not_defined_is_nan_or_zero() -> None:
    scores, labels = drawn(20, 2)
    labels[:, 0] = 0
    found = of_parts(scores, labels, 1)
    assert found["mean_auc"] == metrics.roc_auc_score(labels[:, 1], scores[:, 1])
    assert math.isnan(of_parts(scores, labels * 0, 1)["mean_auc"])
    assert of_parts(-np.abs(scores) - 1, labels * 0, 1)["micro_f1"] == 0
    assert of_parts(-np.abs(scores) - 1, labels * 0, 1)["hamming_loss"] == 0
    scores[3, 1] = np.nan
    assert all(map(math.isnan, of_parts(scores, labels, 2).values()))
    assert all(map(math.isnan, of_parts(scores[:0], labels[:0], 2).values()))


def test_a_score_for_each_label_is_needed() -> None:
    scores, labels = drawn(20, 2)
    with pytest.raises(
        ValueError, match=r"scores have shape \(20, 1\) and several labels \(20, 2\)"
    ):
        EvalShare(scores[:, :1], labels, "labels").columns()
