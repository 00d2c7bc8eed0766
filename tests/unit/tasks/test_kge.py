"""Embeddings of knowledge graphs: scores, losses and gradients against their definitions, and exact ranks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpips
from mpips.checkpoint import list_checkpoints, open_checkpoint
from mpips.config.schema import load_config
from mpips.data.triples import TripleBatch
from mpips.errors import ConfigError, DataError
from mpips.tasks.kge import Kge, add_rows
from mpips.tasks.kge_losses import cubes, full_softmax, logistic, sampled_softmax
from mpips.tasks.kge_models import ComplEx, DistMult, EmbeddingModel, RotatE, TransE
from mpips.tasks.kge_options import KgeOptions
from mpips.tasks.kge_ranking import KnownTriples, best, ranks
from mpips.training.train import train

MODELS: list[tuple[str, EmbeddingModel]] = [
    ("complex", ComplEx()),
    ("distmult", DistMult()),
    ("rotate", RotatE()),
    ("transe", TransE(1)),
    ("transe", TransE(2)),
]
DIM = 6


def score(name: str, norm: int, h: Any, r: Any, t: Any) -> float:
    """The score of a triple, written out number by number."""
    half = DIM // 2
    z = [[complex(x[k], x[half + k]) for k in range(half)] for x in (h, t)]
    if name == "complex":
        w = [complex(r[k], r[half + k]) for k in range(half)]
        return sum((a * b * c.conjugate()).real for a, b, c in zip(z[0], w, z[1], strict=True))
    if name == "rotate":
        turns = [complex(math.cos(angle), math.sin(angle)) for angle in r]
        return -sum(abs(a * b - c) for a, b, c in zip(z[0], turns, z[1], strict=True))
    if name == "distmult":
        return float(sum(a * b * c for a, b, c in zip(h, r, t, strict=True)))
    differences = [abs(a + b - c) for a, b, c in zip(h, r, t, strict=True)]
    return -sum(differences) if norm == 1 else -math.sqrt(sum(d * d for d in differences))


def rows(model: EmbeddingModel, m: int, k: int) -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(m + k)
    return (
        draw.normal(size=(m, DIM)),
        draw.normal(size=(m, model.relation_dim(DIM))),
        draw.normal(size=(k, DIM)),
    )


def slope(f: Any, x: Any) -> Any:
    """The gradient of f at x by central differences."""
    found = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        ends = []
        for step in (1e-6, -1e-6):
            moved = x.copy()
            moved[place] += step
            ends.append(f(moved))
        found[place] = (ends[0] - ends[1]) / 2e-6
    return found


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


def test_rows_at_equal_places_are_added() -> None:
    out = np.zeros((4, 2), np.float32)
    add_rows(out, np.array([2, 0, 2]), np.array([[1, 2], [3, 4], [5, 6]], np.float32))
    add_rows(out, np.zeros(0, np.int64), np.zeros((0, 2), np.float32))
    assert out.tolist() == [[3, 4], [0, 0], [6, 8], [0, 0]]


class OneWorker:
    """A worker whose tables are arrays; `pushed` has the sum of the gradients of each."""

    def __init__(self, tables: dict[str, Any]) -> None:
        self.tables = tables
        self.pushed = {name: np.zeros_like(values) for name, values in tables.items()}

    def table(self, name: str) -> Any:
        return _Handle(self, name)


class _Handle:
    def __init__(self, worker: OneWorker, name: str) -> None:
        self._values, self._pushed = worker.tables[name], worker.pushed[name]

    def pull(self, keys: Any = None) -> Any:
        return self._values.copy() if keys is None else self._values[keys]

    def push(self, *args: Any, base: Any = None) -> None:
        keys, gradient = args if len(args) == 2 else (slice(None), args[0])
        assert base is not None
        assert base.shape == gradient.shape
        self._pushed[keys] += gradient


@pytest.mark.parametrize("reciprocals", [True, False])
@pytest.mark.parametrize(
    ("model", "loss", "negatives"),
    [
        ("complex", "softmax", 0),
        ("distmult", "softmax", 5),
        ("complex", "logistic", 5),
        ("rotate", "logistic", 5),
        ("transe", "logistic", 5),
        ("transe", "softmax", 0),
    ],
)
def test_a_step_pushes_the_gradient_of_the_loss_written_out_triple_by_triple(
    model: str, loss: str, negatives: int, reciprocals: bool
) -> None:
    # Large n3, so that an error in it shows; no temperature, through which no gradient flows.
    options = KgeOptions(
        model=model,  # type: ignore[arg-type]
        dim=DIM,
        loss=loss,  # type: ignore[arg-type]
        negatives=negatives,
        reciprocals=reciprocals,
        n3=0.3,
        dropout=0.0,
        temperature=0.0,
        margin=1.0,
    )
    task = Kge(Sizes(), options, 7)
    draw = np.random.default_rng(4)
    width = DIM // 2 if model == "rotate" else DIM
    tables = {"entity": draw.normal(size=(8, DIM)), "relation": draw.normal(size=(4, width))}
    batch = TripleBatch(
        np.array([[0, 1, 2], [2, 0, 0], [5, 1, 1]]), 2.0, np.zeros((0, 3), np.int64)
    )
    worker: Any = OneWorker(tables)
    result = task.step(worker, batch)
    drawn = task._draws(batch).integers(0, 8, negatives).tolist()

    def written_out(entity: Any, relation: Any) -> tuple[float, float]:
        total = penalty = 0.0
        for h, r, t in batch.ids.tolist():
            for given, right, reverse in ((h, t, False), (t, h, True)):
                row = relation[r + 2 if reverse and reciprocals else r]
                back = reverse and not reciprocals

                def level(e: int, given: int = given, row: Any = row, back: bool = back) -> float:
                    x, y = (entity[e], entity[given]) if back else (entity[given], entity[e])
                    return score(model, 2, x, row, y)

                others = [e for e in (drawn or range(8)) if e != right]
                own = level(right)
                if loss == "softmax":
                    total += math.log(1 + sum(math.exp(level(e) - own) for e in others))
                else:
                    total += math.log(1 + math.exp(-own - 1.0))
                    total += sum(math.log(1 + math.exp(level(e) + 1.0)) for e in others) / len(
                        others
                    )
                pieces = [entity[given], entity[right]] + ([row] if model != "rotate" else [])
                for piece in pieces:
                    if model in ("complex", "rotate"):
                        penalty += sum(abs(complex(piece[k], piece[3 + k])) ** 3 for k in range(3))
                    else:
                        penalty += sum(abs(v) ** 3 for v in piece)
        return total / 2, penalty / 2

    def objective(entity: Any, relation: Any) -> float:
        data, penalty = written_out(entity, relation)
        return batch.weight * (data + 0.3 * penalty) / 3

    entity, relation = tables["entity"], tables["relation"]
    assert result.n == 3
    assert result.loss_sum == pytest.approx(written_out(entity, relation)[0], rel=1e-5)
    by_entity = slope(lambda v: objective(v, relation), entity)
    by_relation = slope(lambda v: objective(entity, v), relation)
    np.testing.assert_allclose(worker.pushed["entity"], by_entity, atol=1e-5)
    np.testing.assert_allclose(worker.pushed["relation"], by_relation, atol=1e-5)


class Sizes:
    """A description of data with 8 entities and 2 relations."""

    def size(self, name: str) -> int:
        return {"entities": 8, "relations": 2}[name]


def test_a_repeated_step_has_the_same_random_numbers() -> None:
    task = Kge(Sizes(), KgeOptions(dim=DIM), 7)  # type: ignore[arg-type]
    ids = np.array([[0, 1, 2], [2, 0, 0]])
    none = np.zeros((0, 3), np.int64)
    drawn = [
        task._draws(TripleBatch(own, 1.0, none)).integers(0, 1 << 60)
        for own in (ids, ids.copy(), ids[::-1], ids[:1])
    ]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3


# The graph: each of 12 people has the next one as a friend, and lives in one of two towns by turns.
def lines(first: int, last: int) -> list[str]:
    found = []
    for i in range(first, last):
        found.append(f"p{i % 12}\tfriend\tp{(i + 1) % 12}")
        found.append(f"p{i % 12}\tlives in\ttown {'AB'[i % 2]}")
    return found


def job(folder: Path, *more: tuple[str, Any]) -> Any:
    (folder / "train.tsv").write_text("\n".join(lines(0, 11)) + "\n")
    (folder / "test.tsv").write_bytes(
        b"\xef\xbb\xbfp11\tlives in\ttown B\r\n\r\n p0\tfriend\tp1 \r\np0\tfriend\tnobody"
    )
    pairs = [
        ("task", "kge"),
        ("data.train", str(folder / "train.tsv")),
        ("data.test", str(folder / "test.tsv")),
        ("options.dim", 16),
        ("train.epochs", 30),
        ("train.batch_size", 8),
        ("checkpoint.folder", str(folder / "c")),
    ]
    return load_config(None, [*pairs, *more])


def test_a_trained_graph_is_evaluated_and_answers_without_the_training_file(tmp_path: Path) -> None:
    result = train(job(tmp_path), "none", verbose=False).value
    # Both directions of (p0, friend, p1) are right; an unknown name counts as 14 equal scores.
    assert result.metrics["mrr"] >= (2 + 2 / 7.5 + 2 / 14) / 6
    (tmp_path / "train.tsv").unlink()
    model = mpips.load(tmp_path / "c")
    found = model.evaluate(tmp_path / "test.tsv", ["mean_rank"])
    assert {name: value for name, value in found.items() if name != "mean_rank"} == {
        name: result.metrics[name] for name in ("mrr", "hits_at_1", "hits_at_3", "hits_at_10")
    }
    assert "1 of 3 triples have an entity or relation" in model.notes[0]

    (tmp_path / "ask.tsv").write_text(
        "p3 friend\np3\tfriend\tp4\n?\tlives in\ttown A\nx\tfriend\tp1\n"
    )
    columns = model.columns(tmp_path / "ask.tsv")
    assert columns is not None
    assert columns["head"][:10].tolist() == ["p3"] * 10
    # The known answer p4 is left out of the answers to the question, and is the best of the triple.
    assert "p4" not in columns["tail"][:10]
    assert columns["tail_rank"][:10].tolist() == list(range(1, 11))
    assert np.isnan(columns["head_rank"][:10]).all()
    assert (columns["tail"][10], columns["tail_rank"][10]) == ("p4", 1)
    towns = columns["head"][11:-1].tolist()
    assert not {f"p{i}" for i in range(0, 11, 2)} & set(towns)
    assert len(towns) == 14 - 6
    assert columns["head"][-1] == "x"
    assert np.isnan(columns["score"][-1])


@pytest.mark.parametrize(
    "more",
    [
        [],
        [("options.model", "rotate"), ("options.negatives", 6)],
        [("options.model", "transe"), ("options.negatives", 6), ("options.reciprocals", False)],
        [("options.model", "distmult"), ("options.negatives", 6)],
    ],
)
def test_training_from_a_checkpoint_gives_the_bits_of_a_run_without_a_break(
    tmp_path: Path, more: list[Any]
) -> None:
    whole, halves = tmp_path / "w", tmp_path / "h"
    for folder in (whole, halves):
        folder.mkdir()
    few = [*more, ("train.epochs", 4), ("checkpoint.every_steps", 4), ("checkpoint.keep_last", 99)]
    first = train(job(whole, *few), "none", verbose=False).value
    # Begin in the middle of an epoch.
    places = [open_checkpoint(info.path).manifest for info in list_checkpoints(whole / "c")]
    middle = next(m for m in places if m.workers[0].step > 0)
    start = str(whole / "c" / f"step-{middle.step:012d}")
    second = train(job(halves, *few, ("checkpoint.resume", start)), "none", verbose=False).value
    assert second.metrics == first.metrics
    a, b = (mpips.load(folder / "c").tables for folder in (whole, halves))
    for name in ("entity", "relation"):
        np.testing.assert_array_equal(a.table(name).values, b.table(name).values)
    assert first.history[-1]["loss"] < first.history[0]["loss"]


def test_each_triple_is_trained_on_once(tmp_path: Path) -> None:
    config = job(tmp_path, ("train.epochs", 1))
    (tmp_path / "train.tsv").write_text("a r b\nb r c\na r b\n\nc r a\n")
    result = train(config, "none", verbose=False).value
    assert result.samples == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tr\tb\nc\tr\n", r"train.tsv, line 2: 'c\\tr' has 2 cells: must be 3 \(head, relation"),
        (b"a\tr\tb\nc\tr\td\te\n", "line 2: .* has 4 cells"),
        (b"a\tr\tb\nc\t\td\n", "line 2: an empty cell"),
        (b"a\tr\t\xff\n", "is not UTF-8 text"),
        (b"\n\n", "contains no samples"),
        (b"", "contains no samples"),
    ],
)
def test_a_file_that_is_no_list_of_triples_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    config = job(tmp_path)
    (tmp_path / "train.tsv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        train(config, "none", verbose=False)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("options.dim", 7)], "options.dim = 7: must be even: rows of 'complex'"),
        ([("options.loss", "logistic"), ("options.negatives", 0)], "needs negatives"),
        ([("options.model", "conve")], "options.model"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, pairs: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(job(tmp_path, *pairs), "none", verbose=False)


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


def test_a_candidate_at_the_query_has_no_gradient_of_rounding() -> None:
    draw = np.random.default_rng(4)
    q = draw.normal(0, 1, (3, 64)).astype(np.float32)
    e = np.concatenate([q[:1] + np.float32(1e-4), draw.normal(0, 1, (2, 64)).astype(np.float32)])
    by_q, by_e = TransE(2).scores_gradient(q, e, np.ones((3, 3), np.float32))
    # Each pair that is certain contributes a vector of length 1 at most.
    assert np.linalg.norm(by_q, axis=1).max() <= 3.001
    assert np.linalg.norm(by_e, axis=1).max() <= 3.001


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
