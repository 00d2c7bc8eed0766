"""Models that stand alone: a model of a job in one process predicts and evaluates as it did there."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from model_rig import ENDING, JOBS, dense_csv, make

import mpips
from mpips import EmbeddingTable, _native, load
from mpips.checkpoint import find_newest, open_checkpoint
from mpips.cli.evaluate import command as evaluate_command
from mpips.cli.predict import command as predict_command
from mpips.config.schema import load_config
from mpips.errors import CheckpointError, ConfigError, DataError
from mpips.inference.model import Model
from mpips.model.initializer import Initializer, table_seed
from mpips.training.train import train

RNG_SEED = 3


@pytest.fixture(scope="module", params=JOBS)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: Any
) -> tuple[str, Path, dict[str, float]]:
    """Train a job; returns its name, its folder with train, test and checkpoints, and its metrics."""
    name = request.param
    return name, *make(name, tmp_path_factory.mktemp("job"))


def test_evaluate_equals_the_metrics_at_the_end_of_training(
    trained: tuple[str, Path, dict[str, float]],
) -> None:
    name, folder, metrics = trained
    test = folder / f"test.{ENDING[JOBS[name][1]]}"
    expected = {key: value for key, value in metrics.items() if key != "loss"}
    assert load(folder / "checkpoints").evaluate(test) == expected


def test_predictions_of_a_file_are_those_of_the_labels_metrics(
    trained: tuple[str, Path, dict[str, float]],
) -> None:
    name, folder, metrics = trained
    test = folder / f"test.{ENDING[JOBS[name][1]]}"
    model = load(folder / "checkpoints")
    found, probabilities = model.predict(test), model.predict_proba(test)
    assert probabilities.shape == (90, len(model.classes))
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-6)
    labels = labels_in(test)
    assert np.mean(found == labels) == pytest.approx(metrics["accuracy"], abs=1e-12)
    assert set(np.unique(found)) <= set(np.unique(labels))


def labels_in(path: Path) -> np.ndarray:
    lines = path.read_text().splitlines()
    if path.suffix == ".svm":
        return np.array([float(line.split()[0]) for line in lines])
    place = lines[0].split(",").index("label" if "label" in lines[0] else "y")
    return np.array([float(line.split(",")[place]) for line in lines[1:]])


def test_a_file_without_labels_and_with_other_columns_gives_the_same_predictions(
    trained: tuple[str, Path, dict[str, float]], tmp_path: Path
) -> None:
    name, folder, _ = trained
    test = folder / f"test.{ENDING[JOBS[name][1]]}"
    model = load(folder / "checkpoints")
    expected = model.predict_proba(test)
    other = tmp_path / test.name
    if test.suffix == ".svm":
        # Labels of LIBSVM are not read: one that the training data does not have changes nothing.
        lines = test.read_text().splitlines()
        other.write_text("\n".join(f"77 {line.partition(' ')[2]}" for line in lines))
    else:
        rows = [line.split(",") for line in test.read_text().splitlines()]
        place = next(i for i, cell in enumerate(rows[0]) if cell in ("label", "y"))
        # Turn the columns around, without the label and with one more.
        turned = [[*(c for i, c in enumerate(row) if i != place)][::-1] for row in rows]
        other.write_text(
            "\n".join(",".join([*row, "note" if i == 0 else "x"]) for i, row in enumerate(turned))
        )
    assert model.predict_proba(other).tobytes() == expected.tobytes()
    if test.suffix == ".csv":
        assert "column 'note' not in the training data: left out" in model.notes[0]


def test_the_order_and_number_of_samples_do_not_matter(
    trained: tuple[str, Path, dict[str, float]], tmp_path: Path
) -> None:
    name, folder, _ = trained
    test = folder / f"test.{ENDING[JOBS[name][1]]}"
    model = load(folder / "checkpoints")
    expected = model.predict_proba(test)
    lines = test.read_text().splitlines()
    head = lines[:1] if test.suffix == ".csv" else []
    body = lines[len(head) :]
    one = tmp_path / test.name
    for i in (0, 41, 89):
        one.write_text("\n".join([*head, body[i]]))
        assert np.allclose(model.predict_proba(one), expected[i], atol=1e-6, rtol=0)


def test_tables_are_those_of_the_checkpoint(trained: tuple[str, Path, dict[str, float]]) -> None:
    _, folder, _ = trained
    model = load(folder / "checkpoints")
    checkpoint = find_newest(folder / "checkpoints").checkpoint
    assert checkpoint is not None
    with checkpoint:
        assert list(model.tables) == [table.name for table in checkpoint.manifest.tables]
        for table in checkpoint.manifest.tables:
            found = model.tables[table.name]
            if table.kind == "dense":
                assert found.shape == table.shape
                assert found.reshape(-1).tobytes() == checkpoint.read_dense(table.name)[0].tobytes()
                continue
            [block] = checkpoint.iter_rows(table.name)
            assert found[0].tobytes() == block.keys.tobytes()
            assert found[1].tobytes() == block.values.tobytes()
    assert "absent" not in model.tables


@pytest.fixture(scope="module")
def softmax(tmp_path_factory: Any) -> Path:
    return make("softmax", tmp_path_factory.mktemp("softmax"))[0]


@pytest.fixture(scope="module")
def logistic(tmp_path_factory: Any) -> Path:
    return make("logistic", tmp_path_factory.mktemp("logistic"))[0]


def test_rows_without_an_update_have_the_initial_values_of_the_job(tmp_path: Path) -> None:
    folder, _ = make("hashed fm", tmp_path)
    factors = load(folder / "checkpoints").tables.table("factor")
    keys = np.arange(1000, dtype=np.int64)
    rows = factors.pull(keys)
    assert rows.std() == pytest.approx(0.5, rel=0.1)
    table = EmbeddingTable("factor", 3, init="normal(0.5)")
    assert isinstance(table.init, Initializer)
    expected = np.empty((1000, 3), np.float32)
    _native.initialize_rows(table.init.native(table_seed(0, "factor"), *table.fans), keys, expected)
    assert rows.tobytes() == expected.tobytes()


class Frame:
    """What is used of a frame of pandas."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.columns = text.splitlines()[0].split(",")

    def to_csv(self, path: Path, index: bool) -> None:
        assert not index
        Path(path).write_text(self.text)


def test_arrays_and_frames_predict_as_the_file(softmax: Path) -> None:
    model = load(softmax / "checkpoints")
    test = softmax / "test.csv"
    expected = model.predict_proba(test)
    x = np.loadtxt(test, delimiter=",", skiprows=1)[:, [0, 1, 2, 4]]
    assert model.predict_proba(x).tobytes() == expected.tobytes()
    assert model.predict_proba(x.tolist()).tobytes() == expected.tobytes()
    assert model.predict_proba(Frame(test.read_text())).tobytes() == expected.tobytes()
    with pytest.raises(DataError, match="column 'small' that this file lacks"):
        model.predict(Frame("big,flat,wide\n1,2,3\n"))


def test_a_model_is_that_of_its_folder_and_needs_no_training_data(
    softmax: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere"
    newest = (softmax / "checkpoints" / "latest").resolve()
    shutil.copytree(newest, moved / newest.name)
    expected = load(softmax / "checkpoints").predict_proba(softmax / "test.csv")
    model = load(moved / newest.name)
    assert model.predict_proba(softmax / "test.csv").tobytes() == expected.tobytes()
    assert f"step {model.manifest.step}" in repr(model)
    assert model.classes.tolist() == [-1, 1, 4]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (np.zeros((2, 3)), "data has 3 features, the training data 4"),
        (np.zeros(4), r"samples are rows of numbers, shape \(n, 4\)"),
        (np.array([["a"] * 4]), "samples are rows of numbers"),
        (np.full((1, 4), np.nan), "contains NaN or infinity"),
        ("absent.csv", "absent.csv: cannot be read: No such file"),
    ],
)
def test_data_that_does_not_fit_is_one_sentence(softmax: Path, data: Any, text: str) -> None:
    with pytest.raises(DataError, match=text):
        load(softmax / "checkpoints").predict(data)


def test_labels_that_the_training_data_lacks_are_refused_in_evaluation(
    softmax: Path, tmp_path: Path
) -> None:
    path = dense_csv(tmp_path / "other.csv", 30, 5, (2, 3, 8))
    with pytest.raises(
        DataError, match="does not occur in the training data, whose labels are -1, 1, 4"
    ):
        load(softmax / "checkpoints").evaluate(path)


def test_a_loaded_model_refuses_pushes(softmax: Path) -> None:
    model = load(softmax / "checkpoints")
    with pytest.raises(ConfigError, match="table 'weight' of a loaded model cannot be changed"):
        model.tables.table("weight").push(np.zeros(1))
    with pytest.raises(ConfigError, match="no table 'w'; there are weight, bias"):
        model.tables.table("w")
    # A change of what a pull returned changes nothing.
    model.tables.table("weight").pull()[:] = 0
    assert model.tables["weight"].any()


def test_what_is_no_model_is_refused(softmax: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no checkpoints in .*give the folder of a run"):
        load(tmp_path)

    def main(worker: mpips.Worker) -> None:
        worker.table("w").push(np.ones(2, np.float32))
        worker.clock()

    mpips.run(main, [mpips.DenseTable("w", (2,))], save=tmp_path / "script")
    with pytest.raises(
        ConfigError, match=r"was written by a script .* mpips\.torch\.load_checkpoint"
    ):
        load(tmp_path / "script")


def test_a_damaged_model_is_refused(softmax: Path, tmp_path: Path) -> None:
    newest = (softmax / "checkpoints" / "latest").resolve()
    copy = tmp_path / newest.name
    shutil.copytree(newest, copy)
    with open_checkpoint(copy) as checkpoint:
        offset = checkpoint.manifest.table("weight").dataset("values").offset
    with (copy / "state.h5").open("r+b") as file:
        file.seek(offset)
        file.write(b"\x55")
    with pytest.raises(CheckpointError, match=r"values of table 'weight'.*checksum does not match"):
        load(copy)
    # Of a folder the one before it is taken, and the reason is said.
    older = sorted(newest.parent.glob("step-*"))[-2]
    shutil.copytree(older, tmp_path / older.name)
    model = load(tmp_path)
    assert model.path.name == older.name
    assert "checksum does not match" in model.refused[0]
    arguments = [str(tmp_path), "--data", str(softmax / "test.csv")]
    assert "checksum does not match" in CliRunner().invoke(evaluate_command, arguments).output


def test_a_checkpoint_of_an_earlier_version_says_what_is_missing(
    softmax: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpips.inference.opening.ATTACHED", {})
    with pytest.raises(
        ConfigError, match="without the scale of the features; continue the training"
    ):
        load(softmax / "checkpoints")


def test_the_file_describes_the_scale_of_the_features(softmax: Path) -> None:
    with h5py.File(softmax / "checkpoints" / "latest" / "state.h5") as file:
        x = np.loadtxt(softmax / "train.csv", delimiter=",", skiprows=1)[:, [0, 1, 2, 4]]
        assert file["features/count"][()] == 300
        assert np.allclose(file["features/mean"][:], x.mean(axis=0), rtol=1e-12)
        assert file["features/present"][:].tolist() == [300] * 4
        assert np.allclose(file["features/squares"][:] / 300, x.var(axis=0), rtol=1e-9, atol=1e-20)
        assert json.loads(file["data"][()])["columns"] == ["big", "small", "flat", "wide"]
        assert file["features/mean"].attrs["units"] == b"feature"


def test_predict_writes_csv_and_npz(softmax: Path, tmp_path: Path) -> None:
    model = load(softmax / "checkpoints")
    test = softmax / "test.csv"
    expected = {"prediction": model.predict(test)}
    for label, column in zip((-1, 1, 4), model.predict_proba(test).T, strict=True):
        expected[f"probability_{label}"] = column

    def run(*more: str) -> str:
        result = CliRunner().invoke(
            predict_command, [str(softmax / "checkpoints"), "--data", str(test), *more]
        )
        assert result.exit_code == 0, result.output
        return result.stdout

    run("--out", str(tmp_path / "a.csv"))
    assert (tmp_path / "a.csv").read_text() == run()
    table = np.genfromtxt(tmp_path / "a.csv", delimiter=",", names=True, deletechars="")
    run("--out", str(tmp_path / "a.npz"))
    with np.load(tmp_path / "a.npz") as archive:
        for name, column in expected.items():
            assert archive[name].tobytes() == column.tobytes()
            assert table[name].astype(column.dtype).tobytes() == column.tobytes()


def test_predict_refuses_an_unknown_ending_and_leaves_no_part_of_a_file(
    softmax: Path, tmp_path: Path
) -> None:
    arguments = [str(softmax / "checkpoints"), "--data", str(softmax / "test.csv"), "--out"]
    result = CliRunner().invoke(predict_command, [*arguments, str(tmp_path / "a.txt")])
    assert "use an extension of .csv, .npz, .parquet" in str(result.exception)
    result = CliRunner().invoke(predict_command, [*arguments, str(tmp_path / "no" / "a.csv")])
    assert "cannot be written: No such file or directory" in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_evaluate_prints_the_metrics(softmax: Path) -> None:
    arguments = [str(softmax / "checkpoints"), "--data", str(softmax / "test.csv")]
    metrics = load(softmax / "checkpoints").evaluate(softmax / "test.csv")
    text = CliRunner().invoke(evaluate_command, arguments).output
    assert text.startswith(
        f"accuracy {metrics['accuracy']:.4f}, cross entropy {metrics['cross_entropy']:.4f}"
    )
    found = json.loads(CliRunner().invoke(evaluate_command, [*arguments, "--json"]).output)
    assert {name: found[name] for name in metrics} == metrics


REGRESSION = '''
import numpy as np
from mpips import SGD, DenseTable
from mpips.tasks import StepResult, Task

class Line(Task):
    """Least squares on standardised features; its predictions need the moments."""

    name = "line"
    labels = "targets"
    default_epochs = 20

    def __init__(self, info, options, seed):
        self.d = info.n_features

    def tables(self):
        return [DenseTable("w", (self.d + 1,), optimizer=SGD(0.1))]

    def prepare(self, worker, moments):
        self.mean, self.scale = (a.astype(np.float32) for a in moments.standardise())

    def x(self, batch):
        return (batch.densify(self.d) - self.mean) * self.scale

    def step(self, worker, batch):
        w, x = worker.table("w").pull(), self.x(batch)
        error = x @ w[1:] + w[0] - batch.labels.astype(np.float32)
        gradient = np.concatenate([[error.sum()], x.T @ error]).astype(np.float32) / batch.n
        worker.table("w").push(gradient, base=w)
        return StepResult(float((error ** 2).sum()), batch.n)

    def predict(self, worker, batch):
        w = worker.table("w").pull()
        return self.x(batch) @ w[1:] + w[0]
'''


def test_a_task_of_a_user_with_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "line_task.py").write_text(REGRESSION)
    rng = np.random.default_rng(RNG_SEED)
    x = rng.normal(100, 10, (200, 2))
    y = 3 * x[:, 0] - x[:, 1] + 5
    np.savez(tmp_path / "d.npz", x=x, y=y)
    pairs = [
        ("task", "line_task:Line"),
        ("data.train", "d.npz"),
        ("data.test", "d.npz"),
        ("checkpoint.folder", "checkpoints"),
    ]
    outcome = train(load_config(None, pairs), "none", verbose=False)
    model = load("checkpoints")
    assert model.evaluate("d.npz") == {
        k: v for k, v in outcome.value.metrics.items() if k != "loss"
    }
    assert model.evaluate("d.npz")["r2"] > 0.99
    assert np.allclose(model.predict(x), y, rtol=0.05)
    np.savez(tmp_path / "unlabelled.npz", x=x)
    assert model.predict("unlabelled.npz").tobytes() == model.predict("d.npz").tobytes()
    with pytest.raises(ConfigError, match="predicts numbers, which have no probabilities"):
        model.predict_proba(x)
    assert isinstance(model, Model)
    (tmp_path / "line_task.py").rename(tmp_path / "gone")
    monkeypatch.delitem(sys.modules, "line_task")
    with pytest.raises(ConfigError, match="no module line_task"):
        load("checkpoints")
