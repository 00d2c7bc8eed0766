"""Whole training jobs in this process, with data for which the right result is known."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crowd import crowd

from mpips.config.options import SessionOptions
from mpips.config.schema import load_config
from mpips.data import DataInfo, Moments, SparseData
from mpips.errors import ConfigError, DataError
from mpips.session.driver import run_alone
from mpips.tasks import TASKS
from mpips.training.epochs import Inputs, Result, train_epochs
from mpips.training.moments import combine_moments
from mpips.training.preflight import task_options
from mpips.training.prepare import ready
from mpips.training.train import train

rng = np.random.default_rng


def trained(task: str, train_file: Path, test_file: Path, **changes: Any) -> dict[str, float]:
    """Return the metrics of a job of one process."""
    keys = {"data.train": str(train_file), "data.test": str(test_file), **changes}
    config = load_config(
        None, [("task", task), *((k.replace("__", "."), v) for k, v in keys.items())]
    )
    found: dict[str, float] = train(config, "none", False).value.metrics
    return found


def write_csv(path: Path, columns: dict[str, Any]) -> Path:
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(repr(v.item()) for v in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def two_columns(n: int, seed: int) -> dict[str, Any]:
    """Write samples whose label is a function of `a`; `b` is noise."""
    a, b = rng(seed).normal(size=(2, n))
    return {"label": (a > 0).astype(int), "a": a, "b": b}


# Columns by name.


def test_columns_of_the_test_file_are_found_by_name(tmp_path: Path) -> None:
    train_file = write_csv(tmp_path / "train.csv", two_columns(400, 1))
    columns = two_columns(200, 2)
    same = write_csv(tmp_path / "same.csv", columns)
    other = {name: columns[name] for name in ("b", "label", "a")}
    exchanged = write_csv(tmp_path / "exchanged.csv", other)
    expected = trained("softmax", train_file, same, train__epochs=3)
    assert expected["accuracy"] > 0.95
    assert trained("softmax", train_file, exchanged, train__epochs=3) == expected


@pytest.mark.parametrize("categorical", [[], ["C*"]])
def test_missing_column_is_refused_and_an_extra_one_left_out(
    tmp_path: Path, categorical: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {"C1": np.arange(80) % 4, "a": rng(1).random(80), "label": np.arange(80) % 2}
    task = "logistic" if categorical else "softmax"
    train_file = write_csv(tmp_path / "train.csv", columns)
    less = write_csv(tmp_path / "less.csv", {k: columns[k] for k in ("C1", "label")})
    options = {"data__categorical": categorical, "train__epochs": 1}
    with pytest.raises(DataError, match="training data has column 'a' that this file lacks"):
        trained(task, train_file, less, **options)
    more = write_csv(tmp_path / "more.csv", {"C9": columns["a"], **columns, "b": columns["a"]})
    expected = trained(task, train_file, train_file, **options)
    assert trained(task, train_file, more, **options) == expected
    config = load_config(
        None,
        [
            ("task", task),
            ("data.train", str(train_file)),
            ("data.test", str(more)),
            ("data.categorical", categorical),
            ("train.epochs", 1),
        ],
    )
    train(config, "none", True)
    printed = capsys.readouterr().err
    assert "more.csv: columns 'C9', 'b' not in the training data: left out" in printed
    assert "train.csv: 80 samples, 2 columns" in printed
    assert "label column 'label': 2 classes: 0 (40), 1 (40)" in printed


def test_a_checkpoint_keeps_the_order_of_its_columns(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    columns = two_columns(300, 1)
    first = write_csv(tmp_path / "first.csv", columns)
    second = write_csv(tmp_path / "second.csv", {k: columns[k] for k in ("b", "a", "label")})
    folder = str(tmp_path / "checkpoints")
    saved = {"checkpoint__folder": folder}
    whole = trained("mlp", first, first, train__epochs=3)
    trained("mlp", first, first, train__epochs=2, **saved)
    assert trained("mlp", second, second, train__epochs=3, **saved) == whole
    third = write_csv(
        tmp_path / "third.csv", {"c" if k == "a" else k: v for k, v in columns.items()}
    )
    with pytest.raises(ConfigError, match=r"other columns: .* lacks \['a'\] and has \['c'\] more"):
        trained("mlp", third, third, train__epochs=4, **saved)
    columns["label"] = columns["label"] + 1
    fourth = write_csv(tmp_path / "fourth.csv", columns)
    with pytest.raises(
        ConfigError, match="trained on classes 0, 1, the training data now has classes 1, 2"
    ):
        trained("mlp", fourth, fourth, train__epochs=4, **saved)


# Targets.

LEAST_SQUARES = """
from mpips import SGD, DenseTable
from mpips.tasks import StepResult, Task
class LeastSquares(Task):
    name = "least-squares"
    labels = "targets"
    default_epochs = 30
    def __init__(self, info, options, seed):
        self.n_features = info.n_features
    def tables(self):
        return [DenseTable("w", (self.n_features,), SGD(0.1))]
    def step(self, worker, batch):
        x, w = batch.densify(self.n_features), worker.table("w").pull()
        error = x @ w - batch.labels
        worker.table("w").push(x.T @ error * (batch.weight / batch.n), base=w)
        return StepResult(float(error @ error), batch.n)
    def predict(self, worker, batch):
        return batch.densify(self.n_features) @ worker.table("w").pull()
"""


@pytest.mark.parametrize("ending", [".csv", ".svm"])
def test_a_task_that_wants_targets_learns_the_numbers(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_least_squares.py").write_text(LEAST_SQUARES)
    monkeypatch.syspath_prepend(tmp_path)
    x = rng(1).choice([-1.0, -0.5, 0.5, 1.0], (300, 2))
    y = 10 * x[:, 0] - 3 * x[:, 1]
    path = tmp_path / f"data{ending}"
    if ending == ".csv":
        write_csv(path, {"label": y, "a": x[:, 0], "b": x[:, 1]})
    else:
        path.write_text("".join(f"{v} 1:{a} 2:{b}\n" for v, (a, b) in zip(y, x, strict=True)))
    found = trained("own_least_squares:LeastSquares", path, path)
    sys.modules.pop("own_least_squares")
    assert found["rmse"] < 1e-3
    assert found["r2"] == pytest.approx(1, abs=1e-6)
    assert set(found) == {"rmse", "r2", "loss"}


# Penalties of sparse models.


def clicks(n: int, wide: bool) -> SparseData:
    """Two categorical columns; with `wide`, the keys are spread as hashes are."""
    random = rng(7)
    first, second = random.zipf(1.6, n) % 50, 50 + random.integers(0, 5, n)
    keys = np.stack([first, second], axis=1).reshape(-1).astype(np.int64)
    if wide:
        keys = (keys + 1) << 55
    labels = (random.random(n) < np.where(second == 50, 0.5, 0.02)).astype(np.int64)
    values = np.ones(2 * n, np.float32)
    return SparseData(2 * np.arange(n + 1), keys, values, labels, 1 << 62 if wide else 55)


def in_process(
    name: str,
    data: SparseData,
    options: dict[str, Any],
    work: Callable[[Any, Any], Any],
    n_epochs: int = 5,
    batch_size: int = 32,
) -> Any:
    """Train, then return what `work(worker, task)` returns."""
    info = DataInfo(data.n, data.n, data.n_features, (0.0, 1.0), "sparse")
    task = TASKS[name](info, task_options(TASKS[name], options), 0)
    inputs = Inputs(info, task, task.tables(), n_epochs, batch_size, data, None)

    def main(worker: Any) -> Any:
        train_epochs(worker, inputs, ready(worker, inputs, 0), 0, Result())
        return work(worker, task)

    return run_alone(main, inputs.tables, SessionOptions()).value


@pytest.mark.parametrize("name", ["logistic", "fm"])
def test_hashed_keys_bear_the_penalty_of_counted_ones(name: str) -> None:
    weights = []
    for wide in (False, True):
        data = clicks(2000, wide)
        keys = np.unique(data.indices)
        # Let the factors be equal at the start for all keys.
        options = {"init_std": 1e-30} if name == "fm" else {}
        weights.append(
            in_process(
                name,
                data,
                options,
                lambda worker, _, keys=keys: worker.table("weight").pull(np.append(keys, -1)),
            )
        )
    np.testing.assert_array_equal(*weights)


def test_a_rare_event_of_hashed_data_is_predicted_with_its_rate() -> None:
    n, rate = 60_000, 0.0015
    labels = np.zeros(n, np.int64)
    labels[rng(3).permutation(n)[: int(rate * n)]] = 1
    keys = np.full(n, 1 << 60, np.int64)
    data = SparseData(np.arange(n + 1), keys, np.ones(n, np.float32), labels, 1 << 62)

    def predicted(worker: Any, task: Any) -> float:
        return float(task.predict(worker, data.take(np.array([0])))[0])

    found = in_process("logistic", data, {}, predicted, n_epochs=3, batch_size=64)
    assert found == pytest.approx(rate, rel=0.1)


@pytest.mark.parametrize("n_workers", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("per_round", [7, 1 << 22])
def test_counts_of_hashed_keys_are_those_of_all_workers(
    n_workers: int, per_round: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpips.training.halving._KEYS_PER_ROUND", per_round)
    data = clicks(300, wide=True)
    parts = [data.take(np.arange(w, 300, n_workers)) for w in range(n_workers)]
    local = [Moments.of(SparseData(p.indptr, p.keys, p.values, p.labels, 1 << 62)) for p in parts]
    found = crowd(n_workers, lambda mine: combine_moments(mine, local[mine.index]))
    for w in range(n_workers):
        assert found[w].count == 300
        assert found[w].keys.tolist() == local[w].keys.tolist()
        expected = [np.count_nonzero(data.indices == key) for key in found[w].keys]
        assert found[w].present.tolist() == expected


def test_l1_keeps_as_many_weights_for_any_batch_size_and_number_of_epochs(tmp_path: Path) -> None:
    random = rng(5)
    n, d = 1000, 30
    x = (random.random((n, d)) < 0.4).astype(float)
    strength = 1.5 * 0.8 ** np.arange(d) * np.where(np.arange(d) % 2, 1, -1)
    labels = (random.random(n) < 1 / (1 + np.exp(-x @ strength))).astype(int)
    path = tmp_path / "data.svm"
    rows = (" ".join(f"{k + 1}:1" for k in np.flatnonzero(row)) for row in x)
    path.write_text("".join(f"{y} {row}\n" for y, row in zip(labels, rows, strict=True)))
    pytest.importorskip("h5py")
    from training import content

    kept = []
    for batch_size, n_epochs in ((16, 20), (64, 20), (256, 20), (64, 40)):
        folder = tmp_path / f"{batch_size}-{n_epochs}"
        trained(
            "logistic",
            path,
            path,
            train__epochs=n_epochs,
            train__batch_size=batch_size,
            options__l1=10.0,
            options__prior=0.0,
            checkpoint__folder=str(folder),
        )
        values = content(str(folder / "latest"))["/tables/weight/values"]
        kept.append(np.count_nonzero(values))
    assert max(kept) - min(kept) <= 3
    assert 5 < kept[0] < 25


# Features.


def test_a_zero_that_is_left_out_is_a_zero(tmp_path: Path) -> None:
    random = rng(2)
    n = 400
    x = random.integers(1, 9, n)  # every training sample contains the feature
    y = (x > 4).astype(int)
    train_file = tmp_path / "train.svm"
    train_file.write_text("".join(f"{b} 1:{a} 2:1\n" for a, b in zip(x, y, strict=True)))
    test_x = np.arange(200) % 9
    labels = (test_x > 4).astype(int)
    found = {}
    for name in ("written", "left out"):
        lines = [
            f"{b} 2:1\n" if name == "left out" and a == 0 else f"{b} 1:{a} 2:1\n"
            for a, b in zip(test_x, labels, strict=True)
        ]
        (tmp_path / "test.svm").write_text("".join(lines))
        for task in ("logistic", "fm", "softmax"):
            found[task, name] = trained(task, train_file, tmp_path / "test.svm", train__epochs=10)
    for task in ("logistic", "fm", "softmax"):
        assert found[task, "left out"] == found[task, "written"]
        assert found[task, "written"]["auc"] == 1.0


@pytest.mark.parametrize("ending", [".csv", ".npz"])
def test_seconds_since_1970_are_features(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = 1.7e9 + rng(1).permutation(600) / 4
    y = (seconds > 1.7e9 + 75).astype(int)
    constant = np.full(600, 0.1)
    path = tmp_path / f"data{ending}"
    if ending == ".csv":
        write_csv(path, {"label": y, "seconds": seconds, "always": constant})
    else:
        np.savez(path, x=np.stack([seconds, constant], axis=1), y=y)
    # A test file with a single sample is read with the same precision.
    config = load_config(
        None,
        [
            ("task", "softmax"),
            ("data.train", str(path)),
            ("data.test", str(path)),
            ("train.epochs", 10),
        ],
    )
    assert train(config, "none", True).value.metrics["accuracy"] > 0.98
    dropped = "'always'" if ending == ".csv" else "1"
    printed = capsys.readouterr().err
    assert (
        f"features: 1 of 2 features standardised; constant, without influence: {dropped}\n"
        in printed
    )


def test_metrics_are_taken_from_logits(tmp_path: Path) -> None:
    # Separable in one direction, so that a large rate makes logits beyond float32 probabilities.
    x = np.linspace(-1, 1, 400)
    y = (x > 0).astype(int)
    train_file = write_csv(tmp_path / "train.csv", {"label": y, "a": x})
    shift = rng(1).permutation(400)
    test_x = np.linspace(0.5, 1, 400)
    test_y = (shift / 400 < np.linspace(0.2, 0.8, 400)).astype(int)
    test_file = write_csv(tmp_path / "test.csv", {"label": test_y, "a": test_x})
    found = trained("softmax", train_file, test_file, options__learning_rate=50.0, options__l2=0.0)
    ones, zeros = test_x[test_y == 1], test_x[test_y == 0]
    exact = np.mean(ones[:, None] > zeros[None, :])
    assert found["auc"] == pytest.approx(exact, abs=1e-3)
    assert found["log_loss"] > 35 * np.mean(test_y == 0)  # no floor of 1e-15
    assert math.isfinite(found["log_loss"])


@pytest.mark.parametrize("wide", [False, True])
def test_fm_ignores_features_that_it_has_never_seen(wide: bool) -> None:
    data = clicks(500, wide)
    shift = 55 if wide else 0
    some, unseen = (np.array([k], np.int64) << shift for k in (51 + wide, 60 + wide))
    # Feature 60 is in no sample; with factors this large it would matter.
    data = SparseData(data.indptr, data.indices, data.values, data.labels, 1 << 62 if wide else 70)

    def scores(worker: Any, task: Any) -> list[float]:
        ones = np.ones(1, np.float32)
        labels = np.zeros(1, np.int64)
        plain = SparseData(np.array([0, 1]), some, ones, labels, data.n_features)
        both = SparseData(
            np.array([0, 2]), np.concatenate([some, unseen]), np.ones(2, np.float32), labels, 70
        )
        return [float(task.predict(worker, d.take(np.array([0])))[0]) for d in (plain, both)]

    without, with_unseen = in_process("fm", data, {"init_std": 3.0, "factor_prior": 0.0}, scores)
    assert with_unseen == without
