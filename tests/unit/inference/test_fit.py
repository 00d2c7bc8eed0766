"""`mpips.fit`: the result of a training in this process, from every form of data."""

from __future__ import annotations

import gc
import json
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_rig import dense_csv

import mpips
from mpips.config.schema import load_config
from mpips.errors import ConfigError, DataError
from mpips.mpi import launch
from mpips.supervisor import child
from mpips.training.train import train as train_job


class Frame:
    """Stands in for a frame of pandas: names of columns, and what it writes."""

    def __init__(self, path: Path) -> None:
        self._text = path.read_text()
        self.columns = self._text.splitlines()[0].split(",")

    def to_csv(self, path: Path, index: bool) -> None:
        assert not index
        Path(path).write_text(self._text)


class Matrix:
    """Stands in for a matrix of SciPy in compressed rows."""

    def __init__(self, x: Any) -> None:
        rows, self.indices = np.nonzero(x)
        self.data = x[rows, self.indices]
        self.indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=len(x)))))
        self.shape = x.shape

    def tocsr(self) -> Matrix:
        return self

    def sum_duplicates(self) -> None:
        pass


def made(n: int = 90) -> tuple[Any, Any]:
    rng = np.random.default_rng(2)
    x = rng.integers(-3, 4, (n, 5)).astype(np.float64)
    return x, (x[:, 0] + x[:, 1] > 0).astype(np.int64)


def test_a_file_gives_the_result_of_a_job(tmp_path: Path) -> None:
    path = str(dense_csv(tmp_path / "a.csv", 200, 1))
    got = mpips.fit("mlp", path, path, epochs=4, lr=0.05, batch_size=20, hidden=[7])
    pairs = [("task", "mlp"), ("data.train", path), ("data.test", path), ("train.epochs", 4)]
    pairs += [("table.optimizer.lr", 0.05), ("train.batch_size", 20), ("options.hidden", [7])]
    wanted = train_job(load_config(None, pairs), "none", verbose=False).value
    assert got.metrics == wanted.metrics
    assert got.history == wanted.history
    assert (got.epochs, got.steps, got.stopped) == (4, 40, "")
    assert got.losses == [row["loss"] for row in wanted.history]
    assert got.model.evaluate(path)["accuracy"] == got.metrics["accuracy"]
    assert repr(got).startswith("<mpips fit: mlp, epoch 4; accuracy ")


def test_arrays_frames_and_matrices_are_the_files_that_they_would_be(tmp_path: Path) -> None:
    x, y = made()
    np.savez(tmp_path / "a.npz", x=x, y=y)
    file = mpips.fit("softmax", str(tmp_path / "a.npz"), epochs=2)
    arrays = mpips.fit("softmax", (x.tolist(), y.tolist()), epochs=2)
    assert arrays.metrics == file.metrics
    np.testing.assert_array_equal(arrays.model.predict(x), file.model.predict(x))
    # Labels of text.
    texts = np.where(y == 1, "yes", "no")
    named = mpips.fit("softmax", (x, texts), (x, texts), epochs=2)
    assert named.metrics["loss"] == file.metrics["loss"]
    assert named.model.predict(x).tolist() == ["yes" if p else "no" for p in file.model.predict(x)]
    # A frame with its column of labels.
    path = dense_csv(tmp_path / "a.csv", 60, 1)
    frame = mpips.fit("mlp", Frame(path), test=Frame(path), epochs=2)
    assert frame.metrics == mpips.fit("mlp", path, path, epochs=2).metrics
    # Sparse samples, numbered from 0 or from 1.
    lines = [
        f"{label} " + " ".join(f"{k}:{v}" for k, v in enumerate(row) if v)
        for row, label in zip(x.tolist(), y.tolist(), strict=True)
    ]
    (tmp_path / "a.svm").write_text("\n".join(lines) + "\n")
    sparse = mpips.fit("logistic", (Matrix(x), y), epochs=2)
    assert sparse.metrics == mpips.fit("logistic", tmp_path / "a.svm", epochs=2).metrics


def test_an_empty_first_column_of_a_matrix_stays_the_first() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    x = np.random.default_rng(1).integers(0, 2, (300, 6)).astype(float)
    x[:, 0] = 0
    y = (x[:, 3] > 0).astype(int)
    model = mpips.fit("logistic", (sparse.csr_matrix(x), y), epochs=10).model
    assert model.predict(sparse.csr_matrix(x)).tolist() == y.tolist()
    assert model.predict(x).tolist() == y.tolist()


def test_settings_job_files_folders_and_early_stopping(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text('task = "mlp"\n[data]\ntrain = "digits"\ntest = "digits"\n[train]\nepochs = 9\n')
    got = mpips.fit(
        str(job),
        None,
        patience=1,
        folder=tmp_path / "kept",
        settings={"train.min_delta": 0.5, "train.batch_size": 160},
    )
    assert got.stopped
    assert 1 < got.epochs < 9
    assert "ended early" in got._repr_html_()
    assert mpips.load(tmp_path / "kept").manifest.step == got.steps == 9 * got.epochs
    # Another one begins anew in the same folder.
    again = mpips.fit("mlp", "digits", epochs=1, batch_size=160, folder=tmp_path / "kept")
    assert again.steps == 9
    assert again.model.manifest.step == 9


def test_notebooks_show_a_table_and_a_line_and_names_are_no_markup(tmp_path: Path) -> None:
    got = mpips.fit("mlp", "digits", epochs=30, batch_size=240, settings={"train.eval_every": 3})
    got.task = "<script>"
    text = got._repr_html_()
    assert "<script>" not in text
    root = ET.fromstring(f"<div>{text}</div>")
    rows = root.findall("table/tr")
    assert [cell.text for cell in rows[0]] == ["epoch", "accuracy", "cross entropy", "loss"]
    assert len(rows) == 13
    assert [rows[i][0].text for i in (1, 12)] == ["1", "30"]
    points = root.find("svg/polyline").get("points").split()
    assert len(points) == 30
    assert all(0 <= float(point.split(",")[1]) <= 32 for point in points)


def test_temporary_files_go_with_the_last_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model = mpips.fit("softmax", made(), epochs=1).model
    gc.collect()
    assert len(list(tmp_path.iterdir())) == 1
    assert len(model.predict(made()[0])) == 90
    del model
    gc.collect()
    assert not list(tmp_path.iterdir())
    with pytest.raises(DataError):
        mpips.fit("softmax", 7)
    assert not list(tmp_path.iterdir())


class Interrupted:
    """Stands in for the supervisor of a run during which the user interrupts the call."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def wait(self) -> int:
        self.calls.append("wait")
        if len(self.calls) == 1:
            raise KeyboardInterrupt
        return 143

    def terminate(self) -> None:
        self.calls.append("terminate")


def test_an_interrupt_ends_the_run_and_leaves_what_it_needs_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Interrupted()
    monkeypatch.setattr(child, "start", lambda *_, **__: process)
    with pytest.raises(KeyboardInterrupt):
        mpips.fit(
            "softmax", made(), ranks=3, folder=tmp_path, settings={"checkpoint.folder": "elsewhere"}
        )
    assert process.calls == ["wait", "terminate", "wait"]
    data, run = sorted(tmp_path.iterdir())
    assert [path.name for path in data.iterdir()] == ["train.npz"]
    checkpoint = json.loads((run / "config.json").read_text())["checkpoint"]
    assert checkpoint.get("folder", "") == ""


class Axes:
    """Stands in for axes of matplotlib."""

    def __init__(self) -> None:
        self.lines: dict[str, list[float]] = {}

    def plot(self, x: list[float], y: list[float], label: str, marker: str | None) -> None:
        assert x == [1, 2, 3]
        self.lines[label] = y

    def set_xlabel(self, text: str) -> None:
        pass

    set_title = set_xlabel

    def legend(self) -> None:
        pass


def test_plot_draws_the_history() -> None:
    got = mpips.fit("mlp", "digits", epochs=3, batch_size=240, settings={"train.eval_every": 1})
    axes = got.plot(Axes())
    assert axes.lines["loss (training)"] == got.losses
    assert set(axes.lines) == {"loss (training)", "accuracy (test)", "cross entropy (test)"}


@pytest.mark.parametrize(
    ("data", "more", "message"),
    [
        (7, {}, "the train data is int: must be a path, a list of paths, a pair"),
        ((np.zeros((3, 2)), np.zeros(4)), {}, r"shape \(3, 2\) and labels of shape \(4,\)"),
        ((np.array([["a"]]), [1]), {}, "samples of dtype <U1"),
        ((Matrix(np.eye(2)), ["a", "b"]), {}, "sparse samples and labels of dtype <U1"),
        ((np.array([[np.nan]]), [1]), {}, "NaN"),
    ],
)
def test_data_that_is_wrong_is_named(data: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        mpips.fit("softmax", data, epochs=1, **more)


def test_options_that_are_wrong_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for more, message in (
        ({"hiddens": 3}, "unknown key 'options.hiddens'"),
        ({"settings": {"train.epoch": 3}}, "unknown key 'train.epoch'"),
        ({"ranks": 2}, "ranks = 2: must be 1"),
        ({"epochs": -1}, "train.epochs = -1"),
    ):
        with pytest.raises(ConfigError, match=message):
            mpips.fit("mlp", "digits", **more)
    monkeypatch.setattr(launch, "launched_size", lambda: 3)
    with pytest.raises(ConfigError, match="this process is a rank of one"):
        mpips.fit("mlp", "digits")
