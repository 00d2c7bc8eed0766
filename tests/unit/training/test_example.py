"""The example in a checkpoint: its predictions are those of the checkpoint's own values, and are checked."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from model_rig import ENDING, JOBS, make

import mpips
from mpips import load
from mpips.checkpoint import Manifest, list_checkpoints, open_checkpoint
from mpips.checkpoint.manifest import MANIFEST, decode, encode
from mpips.cli.ckpt import show as show_command
from mpips.cli.evaluate import command as evaluate_command
from mpips.config.schema import load_config
from mpips.data import DataInfo, DenseData, SparseData
from mpips.errors import CheckpointError
from mpips.inference.current import CurrentModel
from mpips.training import example
from mpips.training.train import train

pytest.importorskip("h5py")


@pytest.mark.parametrize("name", JOBS)
def test_each_checkpoint_has_the_predictions_of_its_own_values(name: str, tmp_path: Path) -> None:
    folder, _ = make(name, tmp_path)
    first = first_lines(folder / f"train.{ENDING[JOBS[name][1]]}", 5)
    seen, checkpoints = set(), list_checkpoints(folder / "checkpoints")
    for found in checkpoints:
        model = load(found.path)
        stored = np.array(model.manifest.example["predictions"])
        expected = model.predict_proba(first)
        expected = expected[:, 1:] if expected.shape[1] == 2 else expected
        assert stored.shape == expected.shape
        assert np.allclose(stored, expected, atol=1e-7, rtol=0)
        seen.add(stored.tobytes())
    assert len(seen) == len(checkpoints)


def first_lines(path: Path, n: int) -> Path:
    """Write the first samples of a file into another one."""
    head = path.suffix == ".csv"
    other = path.with_name(f"first{path.suffix}")
    other.write_text("".join(path.read_text().splitlines(keepends=True)[: n + head]))
    return other


@pytest.fixture(scope="module")
def trained(tmp_path_factory: Any) -> Path:
    return make("softmax", tmp_path_factory.mktemp("softmax"))[0]


def copy_with(checkpoint: Path, folder: Path, change: Callable[[Manifest], dict[str, Any]]) -> Path:
    """Copy a checkpoint, with another example in its manifest."""
    copy = folder / checkpoint.name
    shutil.copytree(checkpoint, copy)
    manifest = decode((copy / MANIFEST).read_bytes(), copy / MANIFEST)
    new = manifest.__class__(
        **{
            **{k: getattr(manifest, k) for k in manifest.__struct_fields__},
            "example": change(manifest),
        }
    )
    (copy / MANIFEST).write_bytes(encode(new, "0.0.1"))
    return copy


def moved(by: float) -> Callable[[Manifest], dict[str, Any]]:
    """Return a change that adds to one prediction."""

    def change(manifest: Manifest) -> dict[str, Any]:
        rows = [list(row) for row in manifest.example["predictions"]]
        rows[2][1] += by
        return {"predictions": rows}

    return change


def test_a_difference_is_one_sentence_and_can_be_overruled(trained: Path, tmp_path: Path) -> None:
    newest = (trained / "checkpoints" / "latest").resolve()
    value = load(newest).manifest.example["predictions"][2][1]
    other = copy_with(newest, tmp_path, moved(3e-5))
    with pytest.raises(CheckpointError) as caught:
        load(other)
    text = str(caught.value)
    assert (
        f"{other}: the prediction of sample 2 of its example, output 1 is {value:.7g}, and was "
        in text
    )
    assert f"{value + 3e-5:.7g} when it was trained (mpips " in text
    assert f"; here {mpips.__version__}, {np.__version__})" in text
    assert "or mpips.load(path, check=False)" in text
    assert "\n" not in text
    assert load(other, check=False).manifest.step == load(newest).manifest.step
    result = CliRunner().invoke(evaluate_command, [str(other), "--data", str(trained / "test.csv")])
    assert isinstance(result.exception, CheckpointError)


def test_a_difference_within_the_tolerance_is_none(trained: Path, tmp_path: Path) -> None:
    newest = (trained / "checkpoints" / "latest").resolve()
    load(copy_with(newest, tmp_path, moved(7e-6)))


def test_a_checkpoint_without_an_example_loads(trained: Path, tmp_path: Path) -> None:
    newest = (trained / "checkpoints" / "latest").resolve()
    expected = load(newest).predict_proba(trained / "test.csv")
    old = load(copy_with(newest, tmp_path, lambda _: {}))
    assert old.predict_proba(trained / "test.csv").tobytes() == expected.tobytes()


def test_a_server_of_predictions_stays_with_the_model_that_is_right(
    trained: Path, tmp_path: Path
) -> None:
    first, *_, last = list_checkpoints(trained / "checkpoints")
    shutil.copytree(first.path, tmp_path / first.path.name)
    current = CurrentModel(tmp_path)
    copy_with(last.path, tmp_path, moved(0.5))
    assert not current.follow()
    assert current.name == first.path.name
    assert "the prediction of sample 2 of its example" in current.failure


def test_an_error_of_a_task_while_a_newer_model_is_loaded_leaves_the_old_one(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_, last = list_checkpoints(trained / "checkpoints")
    shutil.copytree(first.path, tmp_path / first.path.name)
    current = CurrentModel(tmp_path)
    shutil.copytree(last.path, tmp_path / last.path.name)

    def fails(*_: object, **__: object) -> None:
        raise FileNotFoundError("table.bin")

    with monkeypatch.context() as patched:
        patched.setattr("mpips.inference.current.load", fails)
        assert not current.follow()
    assert current.failure == "FileNotFoundError: table.bin"
    assert current.name == first.path.name
    # The next look takes the newer one.
    assert current.follow()
    assert current.name == last.path.name
    assert current.failure == ""


TASKS = """
import itertools
import numpy as np
from mpips import DenseTable
from mpips.tasks import StepResult, Task

counter = itertools.count()

class Mean(Task):
    name = "mean"
    labels = "targets"
    def __init__(self, info, options, seed):
        pass
    def tables(self):
        return [DenseTable("w", (3,))]
    def step(self, worker, batch):
        worker.table("w").push(np.full(3, -1, np.float32))
        return StepResult(0.0, batch.n)
    def predict(self, worker, batch):
        return (batch.x * worker.table("w").pull()).sum(axis=1).astype(np.float32)

class Unstable(Mean):
    def predict(self, worker, batch):
        return np.full(batch.n, next(counter), np.float32)

class Growing(Mean):
    def predict(self, worker, batch):
        return np.zeros((batch.n, 2 + next(counter)), np.float32)

class Exiting(Mean):
    def predict(self, worker, batch):
        raise SystemExit(3)

class Broken(Mean):
    def predict(self, worker, batch):
        raise RuntimeError("no GPU")

class Infinite(Mean):
    def predict(self, worker, batch):
        return np.array([np.nan, np.inf, -np.inf, 2.0**99, 2.5], np.float32)[: batch.n]
"""


def run(task: str, folder: Path, monkeypatch: pytest.MonkeyPatch, epochs: int = 1) -> Any:
    """Train a task of a user on numbers; return the outcome."""
    (folder / "own_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(str(folder))
    x = np.arange(36, dtype=np.float32).reshape(12, 3)
    np.savez(folder / "a.npz", x=x, y=x.sum(axis=1))
    pairs = [
        ("task", f"own_tasks:{task}"),
        ("data.train", str(folder / "a.npz")),
        ("train.epochs", epochs),
        ("checkpoint.folder", str(folder / "checkpoints")),
    ]
    return train(load_config(None, pairs), "none", verbose=False)


def test_numbers_of_a_task_of_a_user_are_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = []
    for epochs in (1, 2):
        run("Mean", tmp_path, monkeypatch, epochs=epochs)
        model = load(tmp_path / "checkpoints")
        weights.append(model.tables["w"])
        expected = np.arange(15.0).reshape(5, 3) @ weights[-1]
        found = np.array(model.manifest.example["predictions"])
        assert np.allclose(found[:, 0], expected, rtol=1e-6, atol=0)
    assert (weights[1] > weights[0]).all()


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("Unstable", "predict returned other values when it was called again"),
        ("Growing", "predict returned other values when it was called again"),
        ("Exiting", "predict raised SystemExit: 3"),
        ("Broken", "predict raised RuntimeError: no GPU"),
    ],
)
def test_a_task_that_cannot_be_checked_says_so_and_loads(
    task: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = run(task, tmp_path, monkeypatch)
    assert outcome.statistics["servers"][0]["checkpoint"]["notes"] == [f"no example: {reason}"]
    assert load(tmp_path / "checkpoints").manifest.example == {"absent": reason}
    assert reason in CliRunner().invoke(show_command, [str(tmp_path / "checkpoints")]).output


def test_predictions_that_are_no_numbers_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("Infinite", tmp_path, monkeypatch)
    rows = load(tmp_path / "checkpoints").manifest.example["predictions"]
    assert rows == [[None], [None], [None], [6.338253e29], [2.5]]
    assert example.difference(np.array([[1.0]]), np.array([[np.nan]])) == (0, 0)
    assert example.difference(np.array([[np.nan]]), np.array([[1.0]])) == (0, 0)


def test_large_dense_tables_have_no_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "_MOST_BYTES", 1)
    run("Mean", tmp_path, monkeypatch)
    assert "more than 0 MiB" in load(tmp_path / "checkpoints").manifest.example["absent"]


def test_the_samples_are_few_and_small() -> None:
    info = DataInfo(9, 9, 1 << 16, (0.0, 1.0), "dense")
    data = DenseData(np.ones((3, 1 << 16), np.float32), np.zeros(3))
    assert example.arrays_of(data, info)["example/x"].shape == (1, 1 << 16)
    lengths = [3, 0, 4093, 1, 5, 2]
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    keys = np.arange(indptr[-1]) + (1 << 60)
    info = DataInfo(6, 6, 1 << 62, (0.0, 1.0), "sparse", columns=("a",))
    fields = np.zeros(len(keys), np.int32)
    sparse = SparseData(
        indptr, keys, np.ones(len(keys), np.float32), np.zeros(6), 1 << 62, fields, 1
    )
    arrays = example.arrays_of(sparse, info)
    assert tuple(arrays) == example.names_of(info)
    batch = example.batch_of(arrays, info)
    assert batch.n == 3
    assert np.array_equal(batch.keys, keys[:4096])
    assert example.arrays_of(sparse, DataInfo(6, 6, 0, (), "other")) == {}
    # A worker without samples has an example of none.
    none = DenseData(np.ones((0, 4), np.float32), np.zeros(0))
    info = DataInfo(1, 1, 4, (0.0, 1.0), "dense")
    assert example.batch_of(example.arrays_of(none, info), info).n == 0


def test_rows_are_found_in_the_file(tmp_path: Path) -> None:
    folder, _ = make("fm", tmp_path)
    with open_checkpoint((folder / "checkpoints" / "latest").resolve()) as checkpoint:
        [block] = checkpoint.iter_rows("factor")
        wanted = np.array([block.keys[-1] + 1, *block.keys[::-1], -(1 << 60), block.keys[0]])
        found, rows = checkpoint.find_rows("factor", wanted)
        assert found.tolist() == [key in block.keys.tolist() for key in wanted.tolist()]
        expected = np.concatenate([block.values[::-1], block.values[:1]])
        assert rows.tobytes() == expected.tobytes()
        assert checkpoint.find_rows("factor", wanted[:1])[1].shape == (0, 3)
