"""Several labels of a sample: the training, and all that stands alone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from model_rig import several_csv

import mpips
from mpips.cli.evaluate import command as evaluate_command
from mpips.cli.export import command as export_command
from mpips.cli.predict import command as predict_command
from mpips.config.schema import load_config
from mpips.data import SparseData, read
from mpips.data.label_columns import take_out
from mpips.errors import ConfigError, DataError, MpipsError
from mpips.inference.model import Model
from mpips.training.train import rehearse, train

pytest.importorskip("h5py")

NAMES = ["b", "a", "rare"]  # another order than that of the file
TASKS = ("mlp", "wide_deep", "deepfm", "dcnv2")


def job(task: str, file: Path, *more: tuple[str, Any]) -> Any:
    pairs = [
        ("task", task),
        ("data.train", str(file)),
        ("data.label", NAMES),
        ("train.epochs", 6),
        ("options.hidden", [16]),
        *more,
    ]
    return load_config(None, pairs)


class Trained:
    """A model of a generated table, with its metrics and files."""

    def __init__(self, folder: Path, task: str) -> None:
        self.task = task
        self.test = several_csv(folder / "test.csv", 400, 2, task != "mlp")
        self.path = folder / "checkpoints"
        self.train = several_csv(folder / "train.csv", 1600, 1, task != "mlp")
        config = job(
            task,
            self.train,
            ("data.test", str(self.test)),
            ("checkpoint.folder", str(self.path)),
        )
        self.metrics: dict[str, float] = train(config, "none", False).value.metrics
        self.model: Model = mpips.load(self.path)
        self.y = labels_in(self.test)


def labels_in(path: Path) -> Any:
    header, *rows = [line.split(",") for line in path.read_text().splitlines()]
    return np.array([[int(row[header.index(name)]) for name in NAMES] for row in rows])


@pytest.fixture(scope="module", params=TASKS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Trained:
    return Trained(tmp_path_factory.mktemp("several"), request.param)


def test_predictions_have_a_column_for_each_label(trained: Trained, tmp_path: Path) -> None:
    model, n = trained.model, 400
    p, labels = model.predict_proba(trained.test), model.predict(trained.test)
    assert (p.dtype, p.shape) == (np.float32, (n, 3))
    assert (labels.dtype, labels.tolist()) == (np.int64, (p >= 0.5).astype(int).tolist())
    assert model.classes.tolist() == NAMES
    assert model.notes == ()  # the columns of labels are no strange columns
    out = tmp_path / "out.csv"
    arguments = [str(trained.path), "--data", str(trained.test), "--out", str(out)]
    result = CliRunner().invoke(predict_command, arguments)
    assert result.exit_code == 0, result.output
    header, *lines = out.read_text().splitlines()
    assert header == "b,a,rare,probability_b,probability_a,probability_rare"
    rows = np.array([line.split(",") for line in lines])
    assert rows[:, :3].astype(int).tolist() == labels.tolist()
    assert np.allclose(rows[:, 3:].astype(np.float32), p, atol=1e-6)
    # A file without labels gives the same.
    cells = [line.split(",") for line in trained.test.read_text().splitlines()]
    kept = [i for i, name in enumerate(cells[0]) if name not in NAMES]
    bare = tmp_path / "bare.csv"
    bare.write_text("\n".join(",".join(row[i] for i in kept) for row in cells) + "\n")
    assert model.predict_proba(bare).tobytes() == p.tobytes()


def test_evaluate_equals_the_metrics_of_the_training(trained: Trained) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    found = trained.model.evaluate(trained.test)
    assert found == {name: v for name, v in trained.metrics.items() if name != "loss"}
    p, labels = trained.model.predict_proba(trained.test), trained.model.predict(trained.test)
    expected = {
        "micro_f1": metrics.f1_score(trained.y, labels, average="micro"),
        "macro_f1": metrics.f1_score(trained.y, labels, average="macro", zero_division=0),
        "mean_auc": metrics.roc_auc_score(trained.y, p, average="macro"),
        "hamming_loss": metrics.hamming_loss(trained.y, labels),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-5), name
    arguments = [str(trained.path), "--data", str(trained.test), "--json"]
    result = CliRunner().invoke(evaluate_command, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["macro_f1"] == found["macro_f1"]


def test_the_known_model_is_learned(trained: Trained) -> None:
    """The mean log-loss is within 0.03 of that of the model that drew the labels."""
    header, *rows = [line.split(",") for line in trained.test.read_text().splitlines()]
    cells = {name: [row[i] for row in rows] for i, name in enumerate(header)}
    size, age = np.array(cells["size"], float), np.array(cells["age"], float)
    red = np.array(cells.get("colour", ["?"] * len(size))) == "red"
    part = red * 1.0 if "colour" in cells else 0.5
    logits = np.stack([6 * part - 3 + 0.02 * age, 2 * size - 6, 0.1 * age - 8], axis=1)
    best = np.logaddexp(0, np.where(trained.y == 1, -logits, logits)).mean()
    assert trained.metrics["log_loss"] < best + 0.03
    assert trained.metrics["mean_auc"] > 0.8


def test_checkpoint_and_exports_know_the_labels(trained: Trained, tmp_path: Path) -> None:
    assert np.array(trained.model.manifest.example["predictions"]).shape == (5, 3)
    means = trained.model.moments.targets
    assert means is not None
    assert np.allclose(means.mean, labels_in(trained.train).mean(axis=0))
    for kind in ("npz", *(("torch",) if trained.task == "mlp" else ())):
        out = tmp_path / f"m.{kind}"
        if kind == "torch":
            pytest.importorskip("torch")
        arguments = [str(trained.path), "--format", kind, "-o", str(out)]
        result = CliRunner().invoke(export_command, arguments)
        assert result.exit_code == 0, result.output
    with np.load(tmp_path / "m.npz") as archive:
        assert archive["classes"].tolist() == NAMES


def test_an_estimator_of_scikit_learn_has_indicators(trained: Trained) -> None:
    pytest.importorskip("sklearn")
    pandas = pytest.importorskip("pandas")
    x = pandas.read_csv(trained.test).drop(columns=NAMES)
    found = trained.model.to_sklearn()
    assert found.predict(x).tolist() == trained.model.predict(trained.test).tolist()
    exact = (trained.model.predict(trained.test) == trained.y).all(axis=1).mean()
    assert found.score(x, trained.y) == pytest.approx(exact)


def test_the_same_model_from_arrays(tmp_path: Path) -> None:
    file = several_csv(tmp_path / "a.csv", 300, 1, text=False)
    table = np.loadtxt(file, delimiter=",", skiprows=1)  # size, a, age, b, rare
    x, y = table[:, [0, 2]], table[:, [3, 1, 4]]
    options: dict[str, Any] = {"epochs": 2, "hidden": [8]}
    of_file = mpips.fit("mlp", str(file), settings={"data.label": NAMES}, **options).model
    of_arrays = mpips.fit("mlp", (x, y.astype(bool)), (x, y), **options)
    assert of_arrays.model.predict_proba(x).tobytes() == of_file.predict_proba(x).tobytes()
    assert of_arrays.model.classes.tolist() == ["y0", "y1", "y2"]
    assert "hamming_loss" in of_arrays.metrics
    with pytest.raises(
        DataError, match=r"labels of shape \(300, 3\) and dtype .*: several labels are"
    ):
        mpips.fit("mlp", (x, y.astype(str)))


@pytest.mark.parametrize("task", ["mlp", "wide_deep"])
def test_windows_held_out_samples_weights_and_patterns(task: str, tmp_path: Path) -> None:
    """Columns of labels go through the cache and several files, beside a column of weights."""
    pandas = pytest.importorskip("pandas")
    frames = []
    for i in range(2):
        file = several_csv(tmp_path / f"raw{i}.csv", 700, i, task != "mlp")
        frames.append(pandas.read_csv(file).assign(y=1.5))
        frames[i].to_csv(tmp_path / f"part{i}.csv", index=False)
    pandas.concat(frames).to_csv(tmp_path / "whole.csv", index=False)

    def run(name: str, *more: tuple[str, Any]) -> dict[str, float]:
        folder = tmp_path / f"{name}{len(more)}"
        settings = (("data.weight", "y"), ("checkpoint.folder", str(folder)))
        config = job(task, tmp_path / name, ("data.validation", 0.2), *settings, *more)
        found: dict[str, float] = train(config, "none", False).value.metrics
        test = tmp_path / "raw0.csv"
        assert mpips.load(folder).evaluate(test)["micro_f1"] > 0.6
        return found

    whole = run("whole.csv")
    assert run("part*.csv") == whole
    windows = run("whole.csv", ("data.memory_mib", 0.01))
    assert windows["log_loss"] == pytest.approx(whole["log_loss"], abs=0.05)


def test_an_empty_cell_is_no_label(tmp_path: Path) -> None:
    """In hashed data an empty cell has no entry, which is not the number 0."""
    file = several_csv(tmp_path / "a.csv", 200, 1)
    header, *rows = file.read_text().splitlines()
    assert header.split(",")[2] == "a"
    cells = rows[70].split(",")
    cells[2] = ""
    file.write_text("\n".join([header, *rows[:70], ",".join(cells), *rows[71:]]) + "\n")
    for more in ((), (("data.empty", "zero"),)):
        with pytest.raises(
            DataError, match="label column 'a' contains an empty cell: each of several"
        ):
            train(job("deepfm", file, *more), "none", verbose=False)


def test_early_stopping_watches_such_a_metric(tmp_path: Path) -> None:
    file = several_csv(tmp_path / "a.csv", 200, 1)
    more = (("data.test", str(file)), ("train.patience", 1), ("train.metric", "macro_f1"))
    result = train(job("wide_deep", file, *more, ("table.optimizer.lr", 1e-9)), "none", False).value
    assert "macro f1 did not improve" in result.stopped


def test_parquet_has_such_columns_too(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.read_csv(several_csv(tmp_path / "a.csv", 300, 1))
    frame[NAMES] = frame[NAMES].astype(bool).astype("int8")
    frame.to_parquet(tmp_path / "a.parquet", index=False)
    found = [
        train(job("deepfm", tmp_path / name, ("data.test", str(tmp_path / "a.csv"))), "none", False)
        for name in ("a.csv", "a.parquet")
    ]
    assert found[0].value.metrics == found[1].value.metrics


def test_a_restart_goes_on_with_the_same_labels_only(tmp_path: Path) -> None:
    file = several_csv(tmp_path / "a.csv", 200, 1)

    def run(epochs: int, folder: str, *more: tuple[str, Any]) -> Any:
        own = (("train.epochs", epochs), ("checkpoint.folder", str(tmp_path / folder)))
        config = job("dcnv2", file, ("data.test", str(file)), *own, *more)
        return train(config, "none", verbose=False).value.metrics

    run(2, "twice")
    assert run(4, "twice") == run(4, "once")
    with pytest.raises(
        ConfigError, match="trained on labels b, a, rare, the training data now has labels a"
    ):
        run(6, "once", ("data.label", ["a"]), ("data.ignore", ["b", "rare"]))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"data.label": ["a", "zebra"]},
            r"a\.csv has no column 'zebra'; the columns are colour",
        ),
        ({"data.label": ["a", "a"]}, "names 'a' twice"),
        ({"data.label": ["a", "colour"]}, "column 'colour' is text"),
        (
            {"data.label": ["a", "size"]},
            r"label column 'size' contains -?[0-9.]+: each of several labels",
        ),
        (
            {"data.label": ["a", "b", "rare", "size", "age"], "data.ignore": ["colour"]},
            "no other column",
        ),
        (
            {"task": "logistic"},
            "task 'logistic' takes one label of each sample; .* for mlp, wide_deep",
        ),
        ({"options.labels": "targets"}, "options.labels = 'targets' means something else"),
        ({"data.class_weight": "balanced"}, "predicts several labels, which are no classes"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_use_is_named(changes: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    file = several_csv(tmp_path / "a.csv", 30, 1)
    given = {"task": "wide_deep", "data.train": str(file), "data.label": NAMES, **changes}
    with pytest.raises(MpipsError, match=complaint):
        rehearse(load_config(None, list(given.items())))


def test_files_that_lack_a_label_or_have_an_empty_one_are_named(tmp_path: Path) -> None:
    file = several_csv(tmp_path / "a.csv", 30, 1)
    for name, change, complaint in (
        (
            "lacks.csv",
            lambda text: text.replace("rare", "other"),
            r"column 'rare' that this file lacks",
        ),
        (
            "empty.csv",
            lambda text: text.rstrip()[:-1] + "\n",
            "'rare' contains an empty cell",
        ),
    ):
        (tmp_path / name).write_text(change(file.read_text()))
        with pytest.raises(DataError, match=complaint):
            rehearse(job("wide_deep", file, ("data.test", str(tmp_path / name))))
    (tmp_path / "x.svm").write_text("1 1:2\n0 1:3\n")
    with pytest.raises(
        ConfigError, match=r"x\.svm has no column 'b'; it has no named columns, which CSV"
    ):
        rehearse(job("mlp", tmp_path / "x.svm"))
    # An empty cell of dense data is an error of the reader, with its line.
    dense = several_csv(tmp_path / "d.csv", 30, 1, text=False)
    dense.write_text(dense.read_text().rstrip()[:-1] + "\n")
    with pytest.raises(DataError, match=r"d\.csv:31: "):
        rehearse(job("mlp", dense))


@pytest.mark.parametrize("text", [True, False])
def test_columns_are_taken_out_of_any_place(text: bool, tmp_path: Path) -> None:
    from mpips.data import ReadOptions

    file = several_csv(tmp_path / "a.csv", 50, 1, text)
    options = ReadOptions(labelled=False, label="", as_is=tuple(NAMES))
    part = read(file, options=options)
    columns = part.info.columns
    rest, numbers = take_out(part.data, [columns.index(name) for name in NAMES])
    assert numbers.tolist() == labels_in(file).tolist()
    left = tuple(name for name in columns if name not in NAMES)
    bare = read(file, options=ReadOptions(labelled=False, label="", ignore=tuple(NAMES)))
    assert bare.info.columns == left
    batch, expected = (data.take(np.arange(50)) for data in (rest, bare.data))
    if isinstance(rest, SparseData):
        assert rest.n_fields == len(left)
        for field in ("indptr", "keys", "values", "fields"):
            assert getattr(batch, field).tolist() == getattr(expected, field).tolist()
    else:
        assert batch.x.tolist() == expected.x.tolist()


def test_a_file_without_samples_of_one_value_evaluates(tmp_path: Path) -> None:
    model = mpips.fit(
        "mlp",
        str(several_csv(tmp_path / "a.csv", 200, 1, False)),
        epochs=1,
        settings={"data.label": NAMES},
    ).model
    test = tmp_path / "b.csv"
    test.write_text("size,age,a,b,rare\n1,2,0,0,0\n2,3,0,0,0\n")
    assert math.isnan(model.evaluate(test)["mean_auc"])
    test.write_text("size,age,a,b,rare\n1,2,7,0,0\n")
    with pytest.raises(DataError, match="label column 'a' contains 7"):
        model.evaluate(test)
    with pytest.raises(ConfigError, match="this task has none of this name; it has micro_f1"):
        model.evaluate(test, ["f1"])
