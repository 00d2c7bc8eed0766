"""Training of embeddings of knowledge graphs: pushes of a step, restarts, files and options."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from kge_rig import DIM, job, score, slope

import mpips
from mpips.checkpoint import list_checkpoints, open_checkpoint
from mpips.data.triples import TripleBatch
from mpips.errors import ConfigError, DataError
from mpips.tasks.kge import Kge
from mpips.tasks.kge_options import KgeOptions
from mpips.training.train import train


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
    """A description of data with 8 entities and 2 relations, of an earlier version."""

    chosen: ClassVar[dict[str, Any]] = {}

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
