"""Matrix factorisation: gradients against definitions, and generated data with a known optimum."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from click.testing import CliRunner
from mf_rig import draws, job, write

import mpips
from mpips.checkpoint import list_checkpoints, open_checkpoint
from mpips.cli.predict import command as predict
from mpips.data.rows import RowBatch
from mpips.errors import ConfigError
from mpips.tasks.mf import MatrixFactorization
from mpips.tasks.mf_options import MfOptions
from mpips.tasks.mf_ranking import SeenItems
from mpips.training.train import train


def test_ratings_without_noise_are_recovered(tmp_path: Path) -> None:
    write(tmp_path)
    more = [("options.l2", 0.0), ("options.learning_rate", 0.1), ("train.epochs", 40)]
    found = train(job(tmp_path, *more), "none", verbose=False).value
    assert draws()[0].std() > 0.9
    assert found.metrics["rmse"] < 0.04
    assert found.metrics["r2"] > 0.999


def test_the_error_on_noisy_ratings_is_nearly_the_noise(tmp_path: Path) -> None:
    write(tmp_path, sigma=0.3)
    more = [("options.dim", 2), ("options.l2", 0.01)]
    found = train(job(tmp_path, *more), "none", verbose=False).value
    # The optimum is 0.3; with 1800 ratings for 300 parameters an unbiased fit has about 0.33.
    assert 0.28 < found.metrics["rmse"] < 0.36
    model = mpips.load(tmp_path / "c")
    assert model.evaluate(tmp_path / "test.csv", ["mae"])["rmse"] == found.metrics["rmse"]


class OneWorker:
    """A worker whose tables are arrays; `pushed` has the sum of the gradients of each."""

    def __init__(self, tables: dict[str, Any]) -> None:
        self.tables = tables
        self.pushed = {name: np.zeros_like(values) for name, values in tables.items()}

    def table(self, name: str) -> Any:
        return _Handle(self.tables[name], self.pushed[name])


class _Handle:
    def __init__(self, values: Any, pushed: Any) -> None:
        self._values, self._pushed = values, pushed

    def pull(self, keys: Any) -> Any:
        return self._values[keys]

    def push(self, keys: Any, rows: Any, base: Any) -> None:
        assert base.shape == rows.shape
        assert len(set(keys.tolist())) == len(keys)
        self._pushed[keys] += rows


class Sizes:
    """A description of data with 5 items, of which nothing was chosen."""

    chosen: ClassVar[dict[str, float]] = {}

    def size(self, name: str) -> int:
        return {"items": 5}[name]


def test_a_pair_has_other_negatives_in_each_epoch_and_the_same_after_a_restart() -> None:
    task = MatrixFactorization(Sizes(), MfOptions(implicit=True), 3)  # type: ignore[arg-type]
    task._n_items = 1000
    task._seen = SeenItems(np.array([[0, 1]]), 1000)
    batch = RowBatch(np.array([[0, 1]]), np.zeros(1))

    def drawn(epoch: int) -> int:
        task.begin_step(epoch, 0, 1)
        return int(task._negatives(batch)[0])

    found = [drawn(epoch) for epoch in range(8)]
    assert len(set(found)) > 5
    assert [drawn(epoch) for epoch in range(8)] == found


@pytest.mark.parametrize("implicit", [False, True])
def test_a_step_pushes_the_gradient_of_the_loss_written_out_line_by_line(implicit: bool) -> None:
    options = MfOptions(dim=2, l2=0.3, implicit=implicit)
    task = MatrixFactorization(Sizes(), options, 3)  # type: ignore[arg-type]
    names = {"user": 4, "item": 5}
    ids = np.array([[0, 1], [0, 3], [2, 1], [2, 1]])
    task.receive(
        {
            **{
                f"vocabulary/{n}s": np.frombuffer(b"".join(b"%d\n" % i for i in range(k)), np.uint8)
                for n, k in names.items()
            },
            "task/scale": np.array([3.0, 1.0, 5.0]),
            "task/seen": ids,
        }
    )
    draw = np.random.default_rng(1)
    tables = {name: draw.normal(size=(k, 3)) for name, k in names.items()}
    batch = RowBatch(ids, np.array([1.0, 5.0, 4.0, 2.0]), 2.0)
    worker: Any = OneWorker(tables)
    result = task.step(worker, batch)
    others = task._negatives(batch).tolist()
    assert not {(u, j) for u, j in zip(ids[:, 0].tolist(), others, strict=True)} & {
        (0, 1),
        (0, 3),
        (2, 1),
    }

    def level(p: Any, q: Any) -> float:
        return float(p[0] + q[0] + p[1] * q[1] + p[2] * q[2])

    def written_out(user: Any, item: Any) -> tuple[float, float]:
        loss = penalty = 0.0
        for (u, i), rating, j in zip(ids.tolist(), batch.labels, others, strict=True):
            p, q = user[u], item[i]
            if implicit:
                loss += math.log(1 + math.exp(level(p, item[j]) - level(p, q)))
                penalty += float((item[j] ** 2).sum()) / 2
            else:
                loss += (3.0 + level(p, q) - rating) ** 2 / 2
            penalty += float((p**2).sum() + (q**2).sum()) / 2
        return loss, penalty

    user, item = tables["user"], tables["item"]
    assert result.n == 4
    assert result.loss_sum == pytest.approx(written_out(user, item)[0], rel=1e-6)

    def objective(user: Any, item: Any) -> float:
        loss, penalty = written_out(user, item)
        return 2.0 * (loss + 0.3 * penalty) / 4

    for name, of in (
        ("user", lambda v: objective(v, item)),
        ("item", lambda v: objective(user, v)),
    ):
        values = tables[name]
        for place in np.ndindex(values.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = values.copy()
                moved[place] += step
                ends.append(of(moved))
            slope = (ends[0] - ends[1]) / 2e-6
            assert worker.pushed[name][place] == pytest.approx(slope, abs=1e-5)


def test_unknown_users_and_items_have_no_bias_and_no_factor(tmp_path: Path) -> None:
    write(tmp_path)
    train(job(tmp_path, ("train.epochs", 2)), "none", verbose=False)
    model = mpips.load(tmp_path / "c")
    (tmp_path / "new.csv").write_text("user,item\nu0,i0\nnobody,i0\nu0,nothing\nnobody,nothing\n")
    values = model.predict(tmp_path / "new.csv")
    mean, low, high = model.arrays["task/scale"].tolist()
    user, item = (
        model.tables.table(name).pull(
            np.array(
                [model.task._users.key("u0") if name == "user" else model.task._items.key("i0")]
            )
        )[0]  # type: ignore[attr-defined, call-arg]
        for name in ("user", "item")
    )
    want = [mean + user[0] + item[0] + user[1:] @ item[1:], mean + item[0], mean + user[0], mean]
    np.testing.assert_allclose(values, np.clip(want, low, high), rtol=1e-6)
    assert "3 of 4 lines have a user or item" in model.notes[0]


@pytest.mark.parametrize("more", [[], [("options.implicit", True), ("options.least_rating", 4.0)]])
def test_training_from_a_checkpoint_gives_the_bits_of_a_run_without_a_break(
    tmp_path: Path, more: list[Any]
) -> None:
    whole, halves = tmp_path / "w", tmp_path / "h"
    for folder in (whole, halves):
        folder.mkdir()
        write(folder)
    few = [*more, ("train.epochs", 4), ("checkpoint.every_steps", 4), ("checkpoint.keep_last", 99)]
    first = train(job(whole, *few), "none", verbose=False).value
    # Begin in the middle of an epoch.
    places = [open_checkpoint(info.path).manifest for info in list_checkpoints(whole / "c")]
    middle = next(m for m in places if m.workers[0].step > 0)
    start = str(whole / "c" / f"step-{middle.step:012d}")
    second = train(job(halves, *few, ("checkpoint.resume", start)), "none", verbose=False).value
    assert second.metrics == first.metrics
    a, b = (mpips.load(folder / "c").tables for folder in (whole, halves))
    for name in ("user", "item"):
        np.testing.assert_array_equal(a.table(name).values, b.table(name).values)


def test_the_number_of_items_is_an_option_of_prediction(tmp_path: Path) -> None:
    write(tmp_path)
    train(job(tmp_path, ("train.epochs", 1)), "none", verbose=False)
    (tmp_path / "ask.csv").write_text("user,item\nu1,?\n")
    ten = mpips.load(tmp_path / "c").columns(tmp_path / "ask.csv")
    three = mpips.load(tmp_path / "c", options={"top": 3}).columns(tmp_path / "ask.csv")
    assert ten is not None
    assert three is not None
    assert len(ten["item"]) == 10
    assert three["item"].tolist() == ten["item"][:3].tolist()
    arguments = [str(tmp_path / "c"), "--data", str(tmp_path / "ask.csv"), "--set"]
    lines = CliRunner().invoke(predict, [*arguments, "options.top=3"]).stdout.splitlines()
    assert [line.split(",")[1] for line in lines] == ["item", *ten["item"][:3]]
    for text, message in (
        ("options.dim=3", r"^options.dim: is fixed by the training; task 'mf' lets options.top be"),
        ("options.tip=3", r"^options.tip: is fixed by the training"),
        ("options.top=0", r"options.top = 0"),
        ("train.epochs=3", r"options of the task alone, such as options.top=5"),
    ):
        found = CliRunner().invoke(predict, [*arguments, text])
        assert isinstance(found.exception, ConfigError)
        assert re.search(message, str(found.exception)), found.exception
