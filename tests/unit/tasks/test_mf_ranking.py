"""Matrix factorisation ranks items: exact NDCG and recall, and held-out items of generated data."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from mf_rig import job

import mpips
from mpips.data.quotients import Quotients
from mpips.data.ratings import PairData
from mpips.tasks.mf_ranking import SeenItems, best_items, gains
from mpips.training.train import train


def write_groups(folder: Path) -> None:
    """Users of two groups, each with half of the items of its group; the other half is held out."""
    draw = np.random.default_rng(8)
    kept, held = [], []
    for u in range(40):
        own = draw.permutation(range(u % 2, 40, 2)).tolist()
        kept += [f"u{u}\ti{i}\t5" for i in own[:14]]
        held += [f"u{u}\ti{i}\t5" for i in own[14:]]
    (folder / "train.csv").write_text("\n".join(draw.permutation(np.array(kept)).tolist()))
    (folder / "test.csv").write_text("\n".join(draw.permutation(np.array(held)).tolist()))


def test_held_out_items_of_two_groups_are_ranked_first(tmp_path: Path) -> None:
    write_groups(tmp_path)
    more = [("options.implicit", True), ("train.epochs", 20)]
    found = train(job(tmp_path, *more), "none", verbose=False).value
    # The optimum is 1: all 6 held-out items of a user precede those of the other group.
    assert found.metrics["ndcg_at_10"] > 0.97
    assert "rmse" not in found.metrics
    (tmp_path / "train.csv").unlink()
    model = mpips.load(tmp_path / "c")
    assert model.evaluate(tmp_path / "test.csv") == {
        name: found.metrics[name] for name in ("ndcg_at_10", "recall_at_10")
    }
    (tmp_path / "ask.csv").write_text("u0\nu1,?\nu0,i1\nnobody\n")
    columns = model.columns(tmp_path / "ask.csv")
    assert columns is not None
    even = {int(item[1:]) % 2 for item in columns["item"][:6].tolist()}
    odd = {int(item[1:]) % 2 for item in columns["item"][10:16].tolist()}
    assert (even, odd) == ({0}, {1})
    assert columns["rank"][:10].tolist() == list(range(1, 11))
    assert np.isnan(columns["rank"][20])
    assert columns["user"].tolist() == ["u0"] * 10 + ["u1"] * 10 + ["u0"] + ["nobody"] * 10


def brute(
    scores: list[float], relevant: set[int], hidden: set[int], n_held: int
) -> tuple[float, float]:
    """The mean of NDCG@10 and recall@10 over all orders of the items that agree with the scores."""
    ndcg, recall, n = 0.0, 0.0, 0
    candidates = [i for i in range(len(scores)) if i not in hidden]
    groups = [
        list(itertools.permutations(g))
        for _, g in itertools.groupby(
            sorted(candidates, key=lambda i: -scores[i]), key=lambda i: scores[i]
        )
    ]
    for order in itertools.product(*groups):
        ranked = list(itertools.chain(*order))[:10]
        ndcg += sum(1 / math.log2(2 + k) for k, i in enumerate(ranked) if i in relevant)
        recall += sum(i in relevant for i in ranked)
        n += 1
    best = sum(1 / math.log2(2 + k) for k in range(min(10, n_held)))
    return ndcg / n / best, recall / n / min(10, n_held)


def test_ndcg_is_the_mean_over_all_orders_of_equal_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpips.tasks.mf_ranking.VALUES", 40)
    draw = np.random.default_rng(9)
    users = draw.integers(0, 2, (6, 3)).astype(np.float32)
    items = np.concatenate([np.arange(14) // 2 % 5, draw.integers(0, 2, 28)]).reshape(3, 14).T
    items = np.ascontiguousarray(items, np.float32)
    held = [[0, 3, 5], [2], [1, 1 + 6, 9, 13], [4, -1], [7], [0, 1]]
    seen = SeenItems(np.array([[0, 1], [0, 2], [2, 0], [4, 7], [5, 12]]), 14)
    keys = np.array([0, 1, 2, 3, 4, -1])
    data = PairData(
        keys, np.concatenate([[0], np.cumsum([len(h) for h in held])]), np.concatenate(held)
    )
    found = gains(users, items, data, seen)
    scores = (users[:, :1] + items[:, 0] + users[:, 1:] @ items[:, 1:].T).tolist()
    hidden: list[set[int]] = [{1, 2}, set(), {0}, set(), {7}, set()]
    for u in range(6):
        ndcg, recall = (found[name][0][u] for name in ("ndcg_at_10", "recall_at_10"))
        if u == 4:  # its only held-out item is in the training data, so it does not count
            assert found["ndcg_at_10"][1][u] == ndcg == 0
            continue
        assert found["ndcg_at_10"][1][u] == 1
        want = brute(scores[u], set(held[u]) - {-1}, hidden[u], len(held[u]))
        assert (ndcg, recall) == pytest.approx(want)
    total = Quotients.of(tuple(found), found).values()
    assert total["ndcg_at_10"] == pytest.approx(found["ndcg_at_10"][0].sum() / 5)
    chosen, levels = best_items(users, items, keys, seen, 3)
    for u in range(6):
        order = sorted((-s, i) for i, s in enumerate(scores[u]) if i not in hidden[u])[:3]
        assert list(zip((-levels[u]).tolist(), chosen[u].tolist(), strict=True)) == order


def test_rows_that_are_not_finite_give_no_metric() -> None:
    items = np.ones((3, 2), np.float32)
    items[1, 1] = np.nan
    data = PairData(np.array([0]), np.array([0, 1]), np.array([0]))
    found = gains(
        np.ones((1, 2), np.float32), items, data, SeenItems(np.zeros((0, 2), np.int64), 3)
    )
    assert np.isnan(found["ndcg_at_10"][0]).all()
