"""Weights of samples and classes: what they do in every task, from every source, and what has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from thread_ranks import prepared
from training import content

import mpips
from mpips.checkpoint import list_checkpoints
from mpips.config.schema import load_config
from mpips.data.stream import StreamedData
from mpips.errors import ConfigError, DataError
from mpips.training.train import train

PENALTIES = {
    "softmax": {"l2": 0.0},
    "mlp": {"l2": 0.0},
    "logistic": {"prior": 0.0},
    "fm": {"prior": 0.0, "factor_prior": 0.0},
    "wide_deep": {"l2": 0.0, "prior": 0.0},
    "deepfm": {"l2": 0.0, "prior": 0.0},
    "dcnv2": {"l2": 0.0, "prior": 0.0},
}


def csv(folder: Path, weights: str = "3 if label == 'b' else 1", text: bool = False) -> Path:
    """A CSV file of two classes with a column `w`; `weights`: expression of label and number i."""
    rng = np.random.default_rng(1)
    rows = ["x,w,z,label"]
    for i in range(200):
        label = "ab"[i % 3 == 0]
        x = rng.normal(i % 3, 1)
        cell = f"{'uv'[i % 2]}" if text else f"{rng.normal():.3f}"
        rows.append(f"{x:.3f},{eval(weights, {'label': label, 'i': i})},{cell},{label}")
    path = folder / "data.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def values(folder: Path, *more: tuple[str, Any], rate: float = 0.5, task: str = "softmax") -> Any:
    """The tables after two epochs of gradient descent."""
    pairs = [
        ("task", task),
        ("train.epochs", 2),
        ("train.batch_size", 32),
        ("table.optimizer", {"name": "sgd", "lr": rate}),
        ("table.clip_norm", 0.0),
        ("checkpoint.folder", str(folder)),
        *((f"options.{name}", value) for name, value in PENALTIES[task].items()),
        *more,
    ]
    train(load_config(None, pairs), "none", verbose=False)
    found = content(str(list_checkpoints(folder)[-1].path))
    return {name: array for name, array in found.items() if "tables" in name or "values" in name}


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    assert first.keys() == second.keys()
    assert first
    return all(first[name].tobytes() == second[name].tobytes() for name in first)


@pytest.mark.parametrize("task", PENALTIES)
def test_twice_the_weight_is_twice_the_gradient_in_every_task(tmp_path: Path, task: str) -> None:
    text = task not in ("softmax", "mlp")
    data = ("data.train", str(csv(tmp_path, "1", text)))
    ignore = ("data.ignore", ["w"])
    plain = values(tmp_path / "plain", data, ignore, rate=0.5, task=task)
    double = values(
        tmp_path / "double",
        data,
        ignore,
        ("data.class_weight", {"a": 2, "b": 2}),
        rate=0.25,
        task=task,
    )
    assert same(plain, double)
    other = ("data.class_weight", {"b": 2})
    assert not same(plain, values(tmp_path / "other", data, ignore, other, task=task))


def test_a_column_of_weights_is_a_weight_and_no_feature(tmp_path: Path) -> None:
    data = ("data.train", str(csv(tmp_path)))
    column = values(tmp_path / "column", data, ("data.weight", "w"))
    classes = ("data.class_weight", {"b": 3})
    by_class = values(tmp_path / "class", data, ("data.ignore", ["w"]), classes)
    assert same(column, by_class)
    # The file to predict needs no such column, and may have one.
    model = mpips.load(tmp_path / "column")
    assert model.info.columns == ("x", "z")
    without = tmp_path / "without.csv"
    lines = [line.split(",") for line in Path(data[1]).read_text().split()]
    without.write_text("\n".join(",".join((a, c, d)) for a, _, c, d in lines) + "\n")
    assert np.array_equal(model.predict_proba(without), model.predict_proba(data[1]))
    assert model.evaluate(without) == model.evaluate(data[1])


@pytest.mark.parametrize(
    ("form", "logarithms"),
    [("csv", False), ("csv", True), ("parquet", False), ("parquet", True), ("hashed", True)],
)
@pytest.mark.parametrize("memory_mib", [1024.0, 0.004], ids=["in memory", "in windows"])
@pytest.mark.parametrize("n_workers", [1, 3])
def test_every_sample_has_its_weight(
    tmp_path: Path, form: str, logarithms: bool, memory_mib: float, n_workers: int
) -> None:
    path = csv(
        tmp_path, "(i % 7 + (5 if label == 'b' else 0)) / 7 * 10 ** (i % 9)", form == "hashed"
    )
    text = path.read_text().split()
    if form == "parquet":
        pa = pytest.importorskip("pyarrow")
        from pyarrow import csv as reader
        from pyarrow import parquet

        path = tmp_path / "data.parquet"
        parquet.write_table(
            reader.read_csv(pa.BufferReader("\n".join(text).encode())), path, row_group_size=50
        )
    task = "logistic" if form == "hashed" else "softmax"
    pairs = [("task", task), ("data.train", str(path)), ("data.weight", "w")]
    pairs += [("data.numeric", "log" if logarithms else "auto")]
    found = prepared(
        load_config(None, [*pairs, ("data.memory_mib", memory_mib), ("data.validation", 0.1)]),
        n_workers,
    )
    batches = []
    for inputs in found:
        assert isinstance(inputs.train, StreamedData) == (memory_mib < 1)
        assert inputs.test is not None
        batches += [data.take(np.arange(data.n)) for data in (inputs.train, inputs.test)]
    rows = sorted(
        (int(label), float(weight))
        for batch in batches
        for label, weight in zip(batch.labels, batch.weights, strict=True)
    )
    cells = [line.split(",") for line in text[1:]]
    # The very numbers of the file, also where the reader takes logarithms.
    assert rows == sorted(("ab".index(c[3]), float(np.float32(c[1]))) for c in cells)
    if form == "hashed":
        assert {int(f) for batch in batches for f in batch.fields} == {0, 1}
    else:
        assert batches[0].x.shape[1] == 2


def test_balanced_classes_have_equal_sums_of_weights(tmp_path: Path) -> None:
    data = ("data.train", str(csv(tmp_path)))
    ignore = ("data.ignore", ["w"])
    balanced = values(tmp_path / "balanced", data, ignore, ("data.class_weight", "balanced"))
    # 133 samples are of class a, 67 of class b.
    given = {"a": 200 / (2 * 133), "b": 200 / (2 * 67)}
    assert same(balanced, values(tmp_path / "given", data, ignore, ("data.class_weight", given)))
    # Of those that are trained on, where some are held out.
    held = ("data.validation", 0.1)
    both = values(tmp_path / "held", data, ignore, held, ("data.class_weight", "balanced"))
    wrong = values(tmp_path / "wrong", data, ignore, held, ("data.class_weight", given))
    assert not same(both, wrong)


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ([("data.weight", "v")], ConfigError, "data.weight = 'v': must be a column of .*x, w, z"),
        ([("data.weight", "label")], ConfigError, "must be a column of .* beside the label"),
        (
            [("data.weight", "w"), ("data.categorical", ["w", "z"])],
            ConfigError,
            "the column is text, weights are numbers",
        ),
        (
            [("data.weight", "w"), ("data.ignore", ["x", "z"])],
            ConfigError,
            "the data has no other column",
        ),
        ([("data.weight", "x")], DataError, "column 'x': the weight -[0-9.]* is not a number of 0"),
        ([("data.class_weight", {"c": 1.0})], ConfigError, "no class 'c'; the classes are a, b"),
        ([("data.class_weight", {"a": -1.0})], ConfigError, "class_weight.a = -1.0: must be 0"),
        ([("data.class_weight", "equal")], ConfigError, "data.class_weight"),
        (
            [("data.train", "digits"), ("data.weight", "w")],
            ConfigError,
            "must be a column of digits beside the label; it has none",
        ),
        (
            [("task", "word2vec"), ("data.class_weight", "balanced")],
            ConfigError,
            "data.class_weight = 'balanced' has no effect: task 'word2vec' reads its files",
        ),
    ],
)
def test_weights_that_cannot_be_are_refused(
    tmp_path: Path, more: list[Any], error: type[Exception], message: str
) -> None:
    pairs = [("task", "softmax"), ("data.train", str(csv(tmp_path))), *more]
    with pytest.raises(error, match=message):
        train(load_config(None, pairs), "none", verbose=False)
