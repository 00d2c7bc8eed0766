"""Metrics of samples that are divided among workers."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from crowd import Network, crowd

from mpips.data.metrics import MORE_BINARY, MORE_REGRESSION, EvalShare, Kind, merge
from mpips.data.moments import Moments
from mpips.data.ranking import Pairs, Ranking
from mpips.data.shares import numbers
from mpips.training.evaluation import combine
from mpips.training.halving import n_ranges, spread_ranking
from mpips.training.moments import combine_moments
from mpips.worker.collectives import Collectives

WORKERS = [1, 2, 3, 5, 8, 13]
MORE = (*MORE_BINARY, *MORE_REGRESSION)


def case(kind: Kind, k: int | None, n: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(n)
    if kind == "values":
        return random.normal(5, 2, n), random.normal(5, 2, n)
    labels = random.integers(0, k or 2, n)
    # Few decimals, so that scores are equal on several workers.
    scores = random.normal(0, 3, (n, k) if k else n).round(2)
    if kind == "probabilities":
        scores = (
            1 / (1 + np.exp(-scores))
            if k is None
            else np.exp(scores) / np.exp(scores).sum(1)[:, None]
        )
    return scores, labels


def evaluated(
    scores: np.ndarray, labels: np.ndarray, kind: Kind, n_workers: int, **more: Any
) -> dict[str, float]:
    """Return the metrics that worker 0 gets, and check that the others get none."""

    def work(mine: Collectives) -> dict[str, float] | None:
        own = numbers(len(labels), n_workers, mine.index, "mixed")
        batches = [own[i : i + 7] for i in range(0, max(len(own), 1), 7)]
        scored = (EvalShare(scores[rows], labels[rows], kind) for rows in batches)
        return combine(mine, scored, len(labels), "evaluation final", MORE)

    found = crowd(n_workers, work, **more)
    assert found[1:] == [None] * (n_workers - 1)
    metrics: dict[str, float] = found[0]
    return metrics


@pytest.mark.parametrize("limit", [0, 1 << 20], ids=["divided", "one-rank"])
@pytest.mark.parametrize(
    ("kind", "k"),
    [
        ("logits", None),
        ("probabilities", None),
        ("logits", 3),
        ("probabilities", 4),
        ("values", None),
    ],
)
def test_metrics_have_the_same_bits_for_any_number_of_workers(
    kind: Kind, k: int | None, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpips.training.evaluation._ONE_RANK", limit)
    for n in (1, 2, 20, 333):
        scores, labels = case(kind, k, n)
        whole = merge([EvalShare(scores, labels, kind)], MORE)
        for n_workers in WORKERS:
            found = evaluated(scores, labels, kind, n_workers)
            assert str(found) == str(whole), (n, n_workers)  # nan, too


def test_a_log_loss_is_the_correctly_rounded_mean_of_the_losses() -> None:
    scores, labels = case("logits", None, 500)
    losses = np.logaddexp(0.0, np.where(labels == 1, -scores, scores))
    exact = float(sum(map(Fraction, losses.tolist())) / 500)
    assert evaluated(scores, labels, "logits", 5)["log_loss"] == exact


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_one_nan_on_one_worker_makes_all_metrics_nan(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpips.training.evaluation._ONE_RANK", limit)
    scores, labels = case("logits", None, 50)
    scores[33] = math.nan
    found = evaluated(scores, labels, "logits", 5)
    assert list(found) == ["accuracy", "auc", "log_loss", "f1", "pr_auc", "calibration"]
    assert all(math.isnan(value) for value in found.values())


@pytest.mark.parametrize("n_workers", WORKERS)
def test_each_worker_ends_with_about_one_share_of_the_scores(n_workers: int) -> None:
    """Scores of all workers come from one distribution, as shares of a file do."""
    per_worker = 3000
    network = Network(most_delay=0)

    def work(mine: Collectives) -> tuple[Ranking, Pairs]:
        random = np.random.default_rng([5, mine.index])
        scores = random.normal(size=per_worker)
        held = spread_ranking(mine, "auc", Ranking.of(scores, random.random(per_worker) < 0.5))
        return held, held.pairs()

    found = crowd(n_workers, work, network)
    held = [ranking.scores for ranking, _ in found]
    owners = n_ranges(n_workers)
    assert [len(scores) > 0 for scores in held] == [w < owners for w in range(n_workers)]
    together = np.concatenate(held)
    assert (np.diff(together) > 0).all()  # ranges ascend with the worker
    assert len(together) == n_workers * per_worker
    assert max(map(len, held)) <= 1.5 * n_workers * per_worker / owners
    # 24 bytes a score. A step sends half of what is held, which is at most two shares.
    steps = (n_workers - 1).bit_length()
    for traffic in network.traffic.values():
        assert len(traffic.partners) <= steps
        assert traffic.sent_bytes <= 24 * per_worker * 2 * 1.5 * steps + 100_000


@pytest.mark.parametrize("n_workers", [1, 3, 8])
def test_equal_scores_are_one_entry_in_one_range(n_workers: int) -> None:
    def work(mine: Collectives) -> Ranking:
        own = Ranking.of(np.full(100, 0.25), np.arange(100) % 4 == 0)
        return spread_ranking(mine, "auc", own)

    held = [ranking for ranking in crowd(n_workers, work) if len(ranking.scores)]
    assert len(held) == 1
    assert held[0].positives.tolist() == [25 * n_workers]
    assert held[0].negatives.tolist() == [75 * n_workers]


def test_pairs_of_many_samples_do_not_overflow() -> None:
    n = 1 << 38
    ranking = Ranking(np.array([0.0, 1.0]), np.array([n, 3 * n]), np.array([2 * n, n]))
    wins = 2 * (3 * n * 2 * n) + n * 2 * n + 3 * n * n
    found = ranking.pairs()
    assert (found.wins, found.positives, found.negatives) == (wins, 4 * n, 3 * n)
    assert found.average_precision() == (3 * n * (3 / 4) + n * (4 / 7)) / (4 * n)
    assert ranking.pairs().area() == wins / (2 * 12 * n * n)


@pytest.mark.parametrize("n_workers", WORKERS)
def test_no_rank_sends_or_receives_the_moments_of_all_workers(n_workers: int) -> None:
    d = 500
    network = Network(most_delay=0)

    def work(mine: Collectives) -> Moments:
        x = np.random.default_rng(mine.index).normal(3, 2, (20, d))
        mean = x.mean(axis=0)
        squares = ((x - mean) ** 2).sum(axis=0)
        return combine_moments(mine, Moments(20, np.full(d, 20.0), mean, squares))

    found = crowd(n_workers, work, network)
    x = np.concatenate([np.random.default_rng(w).normal(3, 2, (20, d)) for w in range(n_workers)])
    for moments in found:
        assert moments.count == 20 * n_workers
        assert (moments.mean == found[0].mean).all()
        assert (moments.squares == found[0].squares).all()
        np.testing.assert_allclose(moments.mean, x.mean(axis=0), rtol=1e-13)
        np.testing.assert_allclose(moments.squares, ((x - x.mean(axis=0)) ** 2).sum(0), rtol=1e-12)
    one = 24 * d + 24  # bytes of the moments of one worker
    for traffic in network.traffic.values():
        assert traffic.received_bytes <= (n_workers - 1).bit_length() * (one + 600)
        assert traffic.sent_bytes <= (n_workers - 1).bit_length() * (one + 600)


@pytest.mark.parametrize("n_workers", [2, 8, 13])
def test_no_rank_receives_the_hashed_keys_of_all_workers(n_workers: int) -> None:
    per_worker = 2000
    network = Network(most_delay=0)

    def work(mine: Collectives) -> None:
        random = np.random.default_rng(mine.index)
        keys = np.unique(random.integers(0, 1 << 62, per_worker))
        ones = np.ones(len(keys))
        found = combine_moments(mine, Moments(1, ones, np.zeros(0), np.zeros(0), keys))
        assert (found.present == 1).all()

    crowd(n_workers, work, network)
    steps = (n_workers - 1).bit_length()
    for traffic in network.traffic.values():
        # A step sends half of at most two shares, 16 bytes a key there and 8 bytes back.
        assert traffic.sent_bytes <= 1.5 * 24 * per_worker * steps + 20_000
        assert len(traffic.partners) <= steps
