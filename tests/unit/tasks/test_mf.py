"""Matrix factorisation: gradients against definitions, generated data with a known optimum, exact NDCG."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import mpips
from mpips.checkpoint import list_checkpoints, open_checkpoint
from mpips.cli.predict import command as predict
from mpips.cli.run import command as run
from mpips.config.schema import load_config
from mpips.data.quotients import Quotients
from mpips.data.ratings import PairData, RatingColumns, read_ratings
from mpips.data.rows import RowBatch
from mpips.errors import ConfigError, DataError
from mpips.tasks.mf import MatrixFactorization
from mpips.tasks.mf_options import MfOptions
from mpips.tasks.mf_ranking import SeenItems, best_items, gains
from mpips.training.preflight import preflight
from mpips.training.train import train

N_USERS, N_ITEMS = 60, 40


def draws() -> tuple[Any, Any]:
    """Ratings of all pairs of user and item, from biases and two factors; and a random order of pairs."""
    draw = np.random.default_rng(6)
    users, items = draw.normal(size=(N_USERS, 3)), draw.normal(size=(N_ITEMS, 3))
    ratings = 3.5 + 0.5 * (users[:, :1] + items[:, 0]) + users[:, 1:] @ items[:, 1:].T * 0.5
    pairs = np.array(list(itertools.product(range(N_USERS), range(N_ITEMS))))
    return ratings, draw.permutation(pairs)


def write(folder: Path, sigma: float = 0.0) -> None:
    ratings, pairs = draws()
    noise = np.random.default_rng(7).normal(size=len(pairs)) * sigma
    texts = [
        f"u{u},i{i},{ratings[u, i] + e:.9g}"
        for (u, i), e in zip(pairs.tolist(), noise, strict=True)
    ]
    for name, own in (("train", texts[600:]), ("test", texts[:600])):
        (folder / f"{name}.csv").write_text("user,item,rating\n" + "\n".join(own) + "\n")


def job(folder: Path, *more: tuple[str, Any]) -> Any:
    pairs = [
        ("task", "mf"),
        ("data.train", str(folder / "train.csv")),
        ("data.test", str(folder / "test.csv")),
        ("checkpoint.folder", str(folder / "c")),
        ("options.dim", 4),
        ("train.batch_size", 32),
    ]
    return load_config(None, [*pairs, *more])


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
    """A description of data with 5 items."""

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


FILES = {
    "header": b'\xef\xbb\xbfitem_id,rating,userId,when\r\n"a, b",4.5,7,1\r\n\r\nc,1,8,2\r\n',
    "u.data": b"7\ta, b\t4.5\t881250949\n8\tc\t1\t881250950\n",
    "ratings.dat": b"7::a, b::4.5::9\n8::c::1::9\n",
    "semicolon": b"user;item;rating\n7;a, b;4.5\n8;c;1\n",
}


@pytest.mark.parametrize("name", FILES)
def test_usual_files_of_ratings_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    found = read_ratings(str(tmp_path / name), RatingColumns(), rated=True)
    assert (found.users, found.items) == (["7", "8"], ["a, b", "c"])
    assert found.values.tolist() == [4.5, 1.0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"user,item,rating\na,b\n",
            r"line 2: 'a,b' has 2 cells: must be 3 \(user, item and rating\)",
        ),
        (b"user,item,rating\na,b,x\n", "line 2: rating 'x': must be a finite number"),
        (b"user,item,rating\na,b,nan\n", "line 2: rating 'nan'"),
        (b"user,item,rating\na,,3\n", "line 2: cell 2 is empty"),
        (b"user,item\na,b\n", "has no column of the rating: must be one of rating"),
        (b"a,b,3\na,b\n", "line 2: .* has 2 cells"),
        (b"a,b,3\n\xff,b,2\n", "is not UTF-8"),
        (b"user,item,rating\n", "contains no samples"),
        (b"\n", "contains no samples"),
    ],
)
def test_a_file_that_has_no_ratings_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    write(tmp_path)
    (tmp_path / "train.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        train(job(tmp_path), "none", verbose=False)


def test_columns_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("who,what,n\na,b,2\n")
    found = read_ratings(str(tmp_path / "r.csv"), RatingColumns("who", "what", "n"), rated=True)
    assert (found.users, found.items, found.values.tolist()) == (["a"], ["b"], [2.0])
    with pytest.raises(DataError, match=r"no column of the user: must be 'whom'; set options.user"):
        read_ratings(str(tmp_path / "r.csv"), RatingColumns("whom", "what", "n"), rated=True)


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


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ([("options.least_rating", 3)], "applies only with options.implicit = true"),
        ([("options.implicit", True), ("options.rating", "r")], "for options.least_rating alone"),
        ([("task", "kge"), ("options.norm", 1)], "only to transe, options.model is complex"),
        ([("task", "kge"), ("options.margin", 2.0)], "only to the loss logistic"),
        ([("task", "kge"), ("options.temperature", 2.0)], "only to the loss logistic"),
    ],
)
def test_options_without_effect_are_refused(
    more: list[tuple[str, Any]], text: str, tmp_path: Path
) -> None:
    write(tmp_path)
    with pytest.raises(
        ConfigError, match=rf"^options\.\w+ = .* has no effect: .*{text}.*leave it out$"
    ):
        preflight(
            load_config(None, [("task", "mf"), ("data.train", str(tmp_path / "train.csv")), *more])
        )


@pytest.mark.parametrize(
    "more",
    [
        [("options.implicit", True), ("options.least_rating", 3), ("options.rating", "rating")],
        [("options.rating", "rating")],
        [("task", "kge"), ("options.model", "transe"), ("options.norm", 1), ("options.margin", 2)],
        [("task", "kge"), ("options.loss", "logistic"), ("options.temperature", 0)],
    ],
)
def test_options_with_an_effect_are_accepted(more: list[tuple[str, Any]], tmp_path: Path) -> None:
    write(tmp_path)
    preflight(
        load_config(None, [("task", "mf"), ("data.train", str(tmp_path / "train.csv")), *more])
    )


def test_fit_takes_files_and_frames_but_no_arrays(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(
        DataError, match="the train data is tuple: task 'mf' reads its files itself; give the path"
    ):
        mpips.fit("mf", (np.zeros((3, 2)), np.zeros(3)))
    with pytest.raises(DataError, match="the test data is tuple"):
        mpips.fit("mf", tmp_path / "train.csv", (np.zeros((3, 2)), np.zeros(3)))
    assert mpips.fit("mf", tmp_path / "train.csv", epochs=1, dim=2).epochs == 1
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(tmp_path / "train.csv")
    assert mpips.fit("mf", frame, epochs=1, dim=2).epochs == 1


def test_run_takes_the_task_beside_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mf").mkdir()
    arguments = ["mf", "-n", "3", "--train", "train.csv", "--dry-run"]
    found = CliRunner().invoke(run, arguments)
    assert found.exit_code == 0, found.exception
    assert "mpirun" in found.stdout or "mpiexec" in found.stdout
    for wrong in (["--resume-run", "mf"], ["--discard-memory", "mf"]):
        assert "is no run directory" in str(CliRunner().invoke(run, wrong).exception)
    (tmp_path / "other").mkdir()
    assert "is no run directory" in str(CliRunner().invoke(run, ["other"]).exception)
