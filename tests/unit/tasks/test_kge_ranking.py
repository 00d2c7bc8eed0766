"""Ranks of answers in knowledge graphs: exact, with ties, known triples and questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kge_rig import DIM, MODELS, job, lines

import mpips
from mpips.errors import DataError
from mpips.tasks.kge import Kge
from mpips.tasks.kge_models import DistMult, EmbeddingModel
from mpips.tasks.kge_ranking import KnownTriples, best, ranks
from mpips.training.train import train


def brute(scores: Any, answer: int, hidden: set[int]) -> float:
    """The filtered rank of an answer, by counting."""
    others = [s for j, s in enumerate(scores) if j != answer and j not in hidden]
    higher = sum(s > scores[answer] for s in others)
    return 1 + higher + sum(s == scores[answer] for s in others) / 2


@pytest.mark.parametrize(("name", "model"), MODELS[:2] + MODELS[3:])
def test_ranks_are_exact_with_ties_and_known_triples(
    name: str, model: EmbeddingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpips.tasks.kge_ranking.QUERIES", 7)
    monkeypatch.setattr("mpips.tasks.kge_ranking.CANDIDATES", 5)
    draw = np.random.default_rng(2)
    entities = draw.integers(-1, 2, (23, DIM)).astype(
        np.float32
    )  # small numbers: many equal scores
    relations = draw.integers(-1, 2, (6, DIM)).astype(np.float32)
    triples = np.stack([draw.integers(0, k, 40) for k in (23, 3, 23)], axis=1)
    known = KnownTriples(np.concatenate([triples, triples[:9]]), 3)
    facts = {tuple(row) for row in triples.tolist()}
    for reverse in (0, 1):
        given, right = triples[:, 2 * reverse], triples[:, 2 - 2 * reverse]
        relation = triples[:, 1] + 3 * reverse
        q = model.query(entities[given].astype(float), relations[relation].astype(float))
        found = ranks(model, q, right, known.of(given, relation), lambda k: entities[k], 23)
        ids, levels = best(model, q, known.of(given, relation), lambda k: entities[k], 23, 4)
        for i, (h, r, t) in enumerate(triples.tolist()):
            all_scores = model.scores(q[i : i + 1], entities.astype(float))[0].astype(np.float32)
            other = {e for e in range(23) if ((e, r, t) if reverse else (h, r, e)) in facts}
            assert found[i] == brute(all_scores, right[i], other - {right[i]})
            order = sorted((-s, e) for e, s in enumerate(all_scores.tolist()) if e not in other)
            assert list(zip((-levels[i]).tolist(), ids[i].tolist(), strict=True)) == order[:4]


def test_a_score_that_is_not_finite_gives_no_rank() -> None:
    entities = np.ones((3, 2), np.float32)
    entities[2, 0] = np.nan
    q, right = np.ones((1, 2)), np.array([0])
    nothing = np.zeros(0, np.int64), np.zeros(0, np.int64)
    assert np.isnan(ranks(DistMult(), q, right, nothing, lambda k: entities[k], 3))[0]


def test_a_question_asks_for_one_thing(tmp_path: Path) -> None:
    train(job(tmp_path, ("train.epochs", 1)), "none", verbose=False)
    model = mpips.load(tmp_path / "c")
    for text in ("? friend ?", "p1 ? p2"):
        (tmp_path / "ask.tsv").write_text(text)
        if text.startswith("?"):
            with pytest.raises(DataError, match=r"line 1: \? stands for the head or for the tail"):
                model.columns(tmp_path / "ask.tsv")
        else:
            # A relation that is asked for is an unknown name.
            assert np.isnan(model.predict(tmp_path / "ask.tsv")).all()


def test_triples_that_are_asked_for_together_do_not_hide_each_other(tmp_path: Path) -> None:
    train(job(tmp_path, ("train.epochs", 3)), "none", verbose=False)
    model = mpips.load(tmp_path / "c")
    (tmp_path / "ask.tsv").write_text("p1\tfriend\t?\n")
    best = model.columns(tmp_path / "ask.tsv")
    assert best is not None
    answers = best["tail"].tolist()
    assert len(answers) > 2
    # Ask for all answers as whole triples at once: each has the rank that it had as an answer.
    (tmp_path / "ask.tsv").write_text("".join(f"p1\tfriend\t{tail}\n" for tail in answers))
    found = model.columns(tmp_path / "ask.tsv")
    assert found is not None
    assert found["tail_rank"].tolist() == best["tail_rank"].tolist()


def test_metrics_have_the_same_bits_for_any_division_among_workers(tmp_path: Path) -> None:
    from mpips.data.quotients import Quotients

    train(job(tmp_path, ("train.epochs", 3)), "none", verbose=False)
    model = mpips.load(tmp_path / "c")
    (tmp_path / "all.tsv").write_text("\n".join(lines(0, 11)))
    names = tuple(Kge.own_metrics)
    whole = model._read_own(str(tmp_path / "all.tsv"))
    found = []
    for n in (1, 3):
        total = Quotients.zero(names)
        for worker in range(n):
            batch = whole.take(np.arange(worker, whole.n, n))
            total += Quotients.of(names, model.task.measure(model.tables, batch))
        found.append(total.values())
    assert found[0] == found[1] == {**found[0]}
    assert 0 < found[0]["mrr"] <= 1
