"""Permutation importance: shuffles of columns, the choice of samples, and the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import mpips
from mpips.cli.evaluate import command
from mpips.config.schema import load_config
from mpips.data import DenseData, SparseData
from mpips.errors import ConfigError, DataError
from mpips.inference import importance
from mpips.inference.importance import measure, sample, shuffled
from mpips.training.train import train


def dense(n: int) -> DenseData:
    return DenseData(np.arange(3.0 * n, dtype=np.float32).reshape(n, 3), np.arange(n))


def sparse(fields: bool) -> SparseData:
    """Four samples with 2, 0, 3 and 1 entries."""
    groups = np.array([0, 2, 0, 1, 2, 1])
    return SparseData(
        np.array([0, 2, 2, 5, 6]),
        np.array([10, 12, 20, 21, 22, 31]) if fields else groups,
        np.arange(6, dtype=np.float32),
        np.arange(4),
        40,
        groups.astype(np.int32) if fields else None,
        3 if fields else 0,
    )


def cells(data: SparseData) -> list[list[tuple[int, int, float]]]:
    """Column, key and value of each entry of each sample."""
    groups = data.fields if data.fields is not None else data.indices
    found = list(zip(groups.tolist(), data.indices.tolist(), data.values.tolist(), strict=True))
    return [found[a:b] for a, b in zip(data.indptr, data.indptr[1:], strict=False)]


def test_a_dense_column_is_shuffled_alone() -> None:
    data, order = dense(4), np.array([2, 0, 3, 1])
    found = shuffled(data, [1], order)
    assert found.x[:, 1].tolist() == data.x[order, 1].tolist()
    assert found.x[:, [0, 2]].tolist() == data.x[:, [0, 2]].tolist()
    assert data.x.tolist() == dense(4).x.tolist()
    # Several numbers of a column have one order.
    both = shuffled(data, [0, 2], order)
    assert both.x[:, [0, 2]].tolist() == data.x[order][:, [0, 2]].tolist()
    assert both.x[:, 1].tolist() == data.x[:, 1].tolist()


@pytest.mark.parametrize("fields", [True, False])
@pytest.mark.parametrize("column", [[0], [1], [2], [0, 2]])
def test_entries_of_a_column_go_to_the_samples_that_take_them(
    fields: bool, column: list[int]
) -> None:
    data, order = sparse(fields), np.array([2, 0, 3, 1])
    found, before = cells(shuffled(data, column, order)), cells(data)
    for i, own in enumerate(found):
        taken = [cell for cell in before[order[i]] if cell[0] in column]
        kept = [cell for cell in before[i] if cell[0] not in column]
        assert own == sorted(taken + kept)
    same = shuffled(data, column, np.arange(4))
    assert cells(same) == before
    assert same.indptr.tolist() == data.indptr.tolist()


def blocks(*sizes: int) -> Iterator[DenseData]:
    whole, start = dense(sum(sizes)), 0
    for size in sizes:
        yield DenseData(whole.x[start : start + size], whole.labels[start : start + size])
        start += size


def test_the_choice_of_samples_does_not_depend_on_blocks() -> None:
    found, n = sample(blocks(100), 20, 7)
    assert (found.n, n) == (20, 100)
    assert found.labels.tolist() == sorted(found.labels.tolist())
    assert (found.x[:, 0] == 3 * found.labels).all()  # type: ignore[union-attr]
    for sizes in ([1] * 100, [45, 0, 10, 45], [99, 1]):
        assert sample(blocks(*sizes), 20, 7)[0].labels.tolist() == found.labels.tolist()
    assert sample(blocks(100), 20, 8)[0].labels.tolist() != found.labels.tolist()
    assert sample(blocks(100), 100, 7)[0].labels.tolist() == list(range(100))
    # Each sample is chosen equally often: 100 * 0.2 times, with a deviation of 4.
    counts = np.zeros(100)
    for seed in range(100):
        counts[sample(blocks(60, 40), 20, seed)[0].labels] += 1
    assert counts.min() > 20 - 4 * 4
    assert counts.max() < 20 + 4 * 4
    with pytest.raises(DataError, match="there are no samples"):
        sample(blocks(0), 20, 7)


def test_the_choice_is_bounded_in_samples_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    held = []
    real = importance.join
    monkeypatch.setattr(
        importance, "join", lambda parts: held.append(sum(p.n for p in parts)) or real(parts)
    )
    sample(blocks(*[10] * 100), 20, 0)
    assert max(held) <= 2 * 20 + 10
    monkeypatch.setattr(importance, "_LEAST_SAMPLES", 3)
    monkeypatch.setattr(importance, "_MOST_BYTES", 12 * 8)  # 12 bytes a sample
    assert sample(blocks(50, 50), 20, 0)[0].n == 8
    monkeypatch.setattr(importance, "_MOST_BYTES", 12)
    assert sample(blocks(50, 50), 20, 0)[0].n == 3


def test_mean_and_spread_are_those_of_the_losses() -> None:
    data = dense(6)

    def metric(some: DenseData) -> float:
        # Distance of column 1 from its values; other columns have no influence.
        return float(np.abs(some.x[:, 1] - data.x[:, 1]).sum())

    value, found = measure(data, [("a", [0]), ("b", [1])], metric, False, 3, 5)
    assert value == 0.0
    assert [column.column for column in found] == ["b", "a"]
    assert found[1].losses == (0.0, 0.0, 0.0)
    generator = np.random.Generator(np.random.PCG64([5, 1]))
    expected = [metric(shuffled(data, [1], generator.permutation(6))) for _ in range(3)]
    assert found[0].losses == tuple(expected)
    assert found[0].mean == pytest.approx(np.mean(expected), rel=1e-12)
    assert found[0].std == pytest.approx(np.std(expected, ddof=1), rel=1e-12)
    # Where higher values are better the loss has the other sign; one shuffle has no spread.
    _, other = measure(data, [("b", [1])], metric, True, 1, 5)
    assert (other[0].losses, other[0].std) == ((-expected[0],), 0.0)


def written(path: Path, n: int = 240) -> Path:
    """Samples whose label depends on `colour` much, on `size` less, and on `noise` not at all."""
    rng = np.random.default_rng(3)
    rows = ["noise,colour,size,y"]
    for _ in range(n):
        colour, size, noise = rng.choice(["red", "green"]), rng.normal(), rng.normal()
        score = (3.0 if colour == "red" else -3.0) + 2.0 * size
        rows.append(f"{noise:.3f},{colour},{size:.3f},{int(score > 0)}")
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("importance")
    pairs: list[tuple[str, Any]] = [
        ("task", "wide_deep"),
        ("data.train", str(written(folder / "train.csv"))),
        ("train.epochs", 10),
        ("checkpoint.folder", str(folder / "model")),
    ]
    train(load_config(None, pairs), "none", verbose=False)
    return folder


def test_columns_of_words_and_numbers_are_in_their_order(model: Path) -> None:
    loaded = mpips.load(model / "model")
    found = loaded.importance(model / "train.csv", repeats=3)
    assert found.metric == "log_loss"
    assert found.value == loaded.evaluate(model / "train.csv")["log_loss"]
    assert [column.column for column in found.columns] == ["colour", "size", "noise"]
    assert found.columns[1].mean > 4 * abs(found.columns[2].mean)
    assert (found.n_samples, found.n_total) == (240, 240)
    assert loaded.importance(model / "train.csv", repeats=3) == found
    other = loaded.importance(model / "train.csv", repeats=3, seed=1)
    assert other.columns[0].losses != found.columns[0].losses
    few = loaded.importance(model / "train.csv", "auc", samples=100)
    assert (few.metric, few.n_samples, few.n_total) == ("auc", 100, 240)
    assert "a random 100 of 240 samples are used" in loaded.notes[-1]


def test_the_parts_of_a_date_are_one_column(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    days = [f"{rng.choice([2004, 2020])}-0{rng.integers(1, 8)}-15" for _ in range(120)]
    rows = [f"{day},{i % 7},{int(day > '2010')}" for i, day in enumerate(days)]
    path = tmp_path / "days.csv"
    path.write_text("\n".join(["day,other.year,y", *rows]) + "\n")
    pairs: list[tuple[str, Any]] = [("task", "logistic"), ("data.train", str(path))]
    pairs += [("data.convert", {"day": "date_ymd"}), ("train.epochs", 5)]
    pairs += [("checkpoint.folder", str(tmp_path / "model"))]
    train(load_config(None, pairs), "none", verbose=False)
    loaded = mpips.load(tmp_path / "model")
    assert loaded.info.columns == ("day.year", "day.month", "day.weekday", "other.year")
    found = loaded.importance(path, repeats=2)
    assert [column.column for column in found.columns] == ["day", "other.year"]
    assert found.columns[0].mean > 0.1


def test_the_command_prints_a_table_or_json(model: Path) -> None:
    given = [
        str(model / "model"),
        "--data",
        str(model / "train.csv"),
        "--importance",
        "--repeats",
        "2",
    ]
    lines = CliRunner().invoke(command, given).stdout.splitlines()
    assert lines[0].split() == ["column", "loss", "of", "log", "loss", "spread"]
    assert [line.split()[0] for line in lines[1:4]] == ["colour", "size", "noise"]
    assert lines[4].startswith("log loss 0.")
    assert ", 240 samples  (" in lines[4]
    found = json.loads(CliRunner().invoke(command, [*given, "--json", "--metric", "f1"]).stdout)
    assert (found["metric"], found["repeats"], found["n_samples"]) == ("f1", 2, 240)
    assert [len(column["losses"]) for column in found["columns"]] == [2, 2, 2]
    assert float(lines[1].split()[1]) > 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--metric", "auc", "--metric", "f1", "--importance"], "takes one --metric"),
        (["--repeats", "3"], "--repeats: has no effect without --importance"),
        (["--importance", "--metric", "calibration"], "has no better values"),
        (["--importance", "--metric", "rmse"], "metric 'rmse': this task has none of this name"),
    ],
)
def test_what_has_no_importance_is_refused(model: Path, more: list[str], message: str) -> None:
    given = [str(model / "model"), "--data", str(model / "train.csv"), *more]
    found = CliRunner().invoke(command, given)
    assert isinstance(found.exception, ConfigError)
    assert message in str(found.exception)


def test_features_without_names_have_the_numbers_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.svm"
    rng = np.random.default_rng(1)
    rows = [f"{int(a > 0)} 1:{a:.3f} 3:{b:.3f}" for a, b in rng.normal(size=(80, 2))]
    path.write_text("\n".join(rows) + "\n")
    pairs: list[tuple[str, Any]] = [("task", "logistic"), ("data.train", str(path))]
    pairs += [("train.epochs", 5), ("checkpoint.folder", str(tmp_path / "model"))]
    train(load_config(None, pairs), "none", verbose=False)
    found = mpips.load(tmp_path / "model").importance(path)
    assert [column.column for column in found.columns] == ["1", "3"]
    assert found.columns[0].mean > 10 * abs(found.columns[1].mean)
    with pytest.raises(ConfigError, match="repeats = 0, samples = 1, seed = 0: must be"):
        mpips.load(tmp_path / "model").importance(path, repeats=0, samples=1)
