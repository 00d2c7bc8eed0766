"""Embeddings of knowledge graphs: scores, losses and gradients against their definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from kge_rig import DIM, MODELS, rows, score, slope

from mpips.tasks import kge_losses
from mpips.tasks.kge import add_rows
from mpips.tasks.kge_losses import cubes, full_softmax, logistic, sampled_softmax
from mpips.tasks.kge_models import EmbeddingModel, RotatE, TransE


@pytest.mark.parametrize(("name", "model"), MODELS)
def test_scores_in_both_directions_are_those_of_the_definition(
    name: str, model: EmbeddingModel
) -> None:
    norm = getattr(model, "_norm", 0)
    x, r, e = rows(model, 4, 5)
    tails = model.scores(model.query(x, r), e)
    heads = model.scores(model.query(x, model.flip(r)), e)
    for i in range(4):
        for j in range(5):
            assert tails[i, j] == pytest.approx(score(name, norm, x[i], r[i], e[j]), abs=1e-12)
            assert heads[i, j] == pytest.approx(score(name, norm, e[j], r[i], x[i]), abs=1e-12)
    np.testing.assert_allclose(model.pairs(model.query(x, r), e[:4]), np.diag(tails), atol=1e-12)


@pytest.mark.parametrize(("name", "model"), MODELS)
def test_gradients_are_those_of_finite_differences(name: str, model: EmbeddingModel) -> None:
    x, r, e = rows(model, 3, 4)
    g, g_pairs = np.random.default_rng(5).normal(size=(3, 4)), np.array([0.5, -2.0, 1.0])

    def whole(x: Any, r: Any, e: Any) -> float:
        q = model.query(x, r)
        return float((g * model.scores(q, e)).sum() + g_pairs @ model.pairs(q, e[:3]))

    q = model.query(x, r)
    by_q, by_e = model.scores_gradient(q, e, g)
    more_q, more_e = model.pairs_gradient(q, e[:3], g_pairs)
    by_x, by_r = model.query_gradient(x, r, by_q + more_q)
    by_e[:3] += more_e
    np.testing.assert_allclose(by_x, slope(lambda v: whole(v, r, e), x), atol=1e-7)
    np.testing.assert_allclose(by_r, slope(lambda v: whole(x, v, e), r), atol=1e-7)
    np.testing.assert_allclose(by_e, slope(lambda v: whole(x, r, v), e), atol=1e-7)


@pytest.mark.parametrize("model", [RotatE(), TransE(1), TransE(2)])
def test_equal_rows_have_finite_gradients(model: EmbeddingModel) -> None:
    same = np.ones((2, DIM), np.float32)
    for found in (
        *model.scores_gradient(same, same, np.ones((2, 2), np.float32)),
        *model.pairs_gradient(same, same, np.ones(2, np.float32)),
    ):
        assert np.isfinite(found).all()


def test_losses_and_their_gradients_are_those_of_the_definitions() -> None:
    draw = np.random.default_rng(3)
    right, negatives = draw.normal(size=3), draw.normal(size=(3, 4))
    excluded = np.zeros((3, 4), bool)
    excluded[1, 2] = True
    answer = np.array([2, 0, 3])

    def softmax(right: Any, negatives: Any) -> float:
        total = 0.0
        for i in range(3):
            others = [math.exp(s) for j, s in enumerate(negatives[i]) if not excluded[i, j]]
            total -= math.log(math.exp(right[i]) / (math.exp(right[i]) + sum(others)))
        return total

    loss, by_right, by_negatives = sampled_softmax(right, negatives, excluded)
    assert loss == pytest.approx(softmax(right, negatives))
    np.testing.assert_allclose(by_right, slope(lambda v: softmax(v, negatives), right), atol=1e-7)
    np.testing.assert_allclose(
        by_negatives, slope(lambda v: softmax(right, v), negatives), atol=1e-7
    )

    def all_candidates(scores: Any) -> float:
        return -sum(
            math.log(math.exp(row[a]) / sum(map(math.exp, row)))
            for row, a in zip(scores, answer, strict=True)
        )

    loss, gradient = full_softmax(negatives.copy(), answer)
    assert loss == pytest.approx(all_candidates(negatives))
    np.testing.assert_allclose(gradient, slope(all_candidates, negatives), atol=1e-7)

    for temperature in (0.0, 0.7):
        weights = [
            [0.0 if excluded[i, j] else math.exp(temperature * negatives[i, j]) for j in range(4)]
            for i in range(3)
        ]

        def adversarial(right: Any, negatives: Any, weights: list[list[float]] = weights) -> float:
            total = 0.0
            for i in range(3):
                total += math.log(1 + math.exp(-(right[i] + 1.5)))
                for j in range(4):
                    share = weights[i][j] / sum(weights[i])
                    total += share * math.log(1 + math.exp(negatives[i, j] + 1.5))
            return total

        loss, by_right, by_negatives = logistic(right, negatives, excluded, 1.5, temperature)
        assert loss == pytest.approx(adversarial(right, negatives))
        want = slope(lambda v: adversarial(v, negatives), right)
        np.testing.assert_allclose(by_right, want, atol=1e-6)
        want = slope(lambda v: adversarial(right, v), negatives)
        np.testing.assert_allclose(by_negatives, want, atol=1e-6)


def test_blocks_of_queries_change_no_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.random.default_rng(4).normal(size=(7, 301)).astype(np.float32)
    right = np.arange(7) * 40
    found = []
    for size in (1, 700, 1 << 18):
        monkeypatch.setattr(kge_losses, "_BLOCK", size)
        found.append(full_softmax(scores.copy(), right))
    for loss, gradient in found[:2]:
        assert loss == found[2][0]
        np.testing.assert_array_equal(gradient, found[2][1])


def test_cubes_are_the_sum_of_cubed_absolute_values() -> None:
    x = np.random.default_rng(1).normal(size=(2, DIM))
    for complex_rows in (False, True):

        def total(x: Any, complex_rows: bool = complex_rows) -> float:
            if not complex_rows:
                return float(sum(abs(v) ** 3 for row in x for v in row))
            return float(sum(abs(complex(row[k], row[3 + k])) ** 3 for row in x for k in range(3)))

        value, gradient = cubes(x, complex_rows)
        assert value == pytest.approx(total(x))
        np.testing.assert_allclose(gradient, slope(total, x), atol=1e-7)


def test_rows_at_equal_places_are_added() -> None:
    out = np.zeros((4, 2), np.float32)
    add_rows(out, np.array([2, 0, 2]), np.array([[1, 2], [3, 4], [5, 6]], np.float32))
    add_rows(out, np.zeros(0, np.int64), np.zeros((0, 2), np.float32))
    assert out.tolist() == [[3, 4], [0, 0], [6, 8], [0, 0]]


def test_a_candidate_at_the_query_has_no_gradient_of_rounding() -> None:
    draw = np.random.default_rng(4)
    q = draw.normal(0, 1, (3, 64)).astype(np.float32)
    e = np.concatenate([q[:1] + np.float32(1e-4), draw.normal(0, 1, (2, 64)).astype(np.float32)])
    by_q, by_e = TransE(2).scores_gradient(q, e, np.ones((3, 3), np.float32))
    # Each pair that is certain contributes a vector of length 1 at most.
    assert np.linalg.norm(by_q, axis=1).max() <= 3.001
    assert np.linalg.norm(by_e, axis=1).max() <= 3.001
