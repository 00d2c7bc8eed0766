"""`on_epoch_end` of `mpips.fit`: called once for each epoch, and able to end the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_rig import dense_csv

import mpips
from mpips.errors import CallbackError, ConfigError

pytest.importorskip("h5py")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("data")
    return dense_csv(folder / "train.csv", 200, 1), dense_csv(folder / "test.csv", 60, 2)


@pytest.mark.parametrize("eval_every", [0, 1, 2])
def test_each_epoch_has_one_call_with_its_row(files: tuple[Path, Path], eval_every: int) -> None:
    rows: list[dict[str, float]] = []
    settings = {"train.eval_every": eval_every}
    fit = mpips.fit("softmax", *files, epochs=5, settings=settings, on_epoch_end=rows.append)
    assert rows == fit.history
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4, 5]
    evaluated = [int(row["epoch"]) for row in rows if "accuracy" in row]
    assert evaluated == {0: [5], 1: [1, 2, 3, 4, 5], 2: [2, 4, 5]}[eval_every]
    assert not fit.stopped


def test_a_callback_changes_no_bit(files: tuple[Path, Path]) -> None:
    plain = mpips.fit("softmax", *files, epochs=3)
    called = mpips.fit("softmax", *files, epochs=3, on_epoch_end=lambda row: None)
    assert called.history == plain.history
    assert called.model.tables["weight"].tobytes() == plain.model.tables["weight"].tobytes()


@pytest.mark.parametrize("eval_every", [0, 1])
def test_a_callback_ends_the_training(files: tuple[Path, Path], eval_every: int) -> None:
    rows: list[dict[str, float]] = []

    def ends(row: dict[str, float]) -> bool:
        rows.append(row)
        # A comparison with a number of NumPy is no bool of Python.
        return row["epoch"] == (np.float64(2) if eval_every else 2)  # type: ignore[return-value]

    settings = {"train.eval_every": eval_every}
    fit = mpips.fit("softmax", *files, epochs=9, settings=settings, on_epoch_end=ends)
    assert len(rows) == fit.epochs == 2
    assert fit.stopped == "after epoch 2: by on_epoch_end"
    # The values and metrics are those of a training of two epochs.
    short = mpips.fit("softmax", *files, epochs=2, settings=settings)
    assert fit.metrics == short.metrics
    assert fit.model.tables["weight"].tobytes() == short.model.tables["weight"].tobytes()


def test_early_stopping_calls_once_for_its_last_epoch(files: tuple[Path, Path]) -> None:
    rows: list[dict[str, float]] = []
    settings = {"train.min_delta": 1e9}
    fit = mpips.fit(
        "softmax", *files, epochs=9, patience=2, settings=settings, on_epoch_end=rows.append
    )
    text = "after epoch 3: cross entropy did not improve in 2 evaluations"
    assert fit.stopped.startswith(text)
    assert rows == fit.history
    assert fit.epochs == len(rows) == 3


def test_without_test_data_there_are_losses(files: tuple[Path, Path]) -> None:
    rows: list[dict[str, float]] = []
    mpips.fit("softmax", files[0], epochs=2, on_epoch_end=rows.append)
    assert [sorted(row) for row in rows] == [["epoch", "loss"]] * 2


def test_an_exception_in_it_ends_the_training(files: tuple[Path, Path], tmp_path: Path) -> None:
    def breaks(row: dict[str, float]) -> Any:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        mpips.fit("softmax", *files, epochs=3, on_epoch_end=breaks)
    # The process can train again.
    assert mpips.fit("softmax", *files, epochs=1).epochs == 1


def test_workers_of_other_processes_cannot_call_it(files: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match="on_epoch_end with ranks = 3: the workers are other"):
        mpips.fit("softmax", *files, ranks=3, on_epoch_end=print)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("here", r"train\.on_epoch_end = 'here': must be module:function"),
        (
            "no_such_module:f",
            r"train\.on_epoch_end = 'no_such_module:f': no module no_such_module in",
        ),
        ("json:epoch", r"train\.on_epoch_end = 'json:epoch': module json has no epoch"),
        ("json:__name__", r"train\.on_epoch_end = 'json:__name__': is 'json', and no function"),
    ],
)
def test_a_name_that_is_no_function_is_refused(
    files: tuple[Path, Path], name: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        mpips.fit("softmax", *files, epochs=1, on_epoch_end=name)


def test_functions_by_name_are_called_here_too(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "watching.py").write_text(
        "rows = []\n"
        "def ends(row):\n    rows.append(row)\n    return row['epoch'] == 2\n"
        "def breaks(row):\n    raise SystemExit('enough')\n"
    )
    fit = mpips.fit("softmax", *files, epochs=5, on_epoch_end="watching:ends")
    assert fit.stopped == "after epoch 2: by on_epoch_end"
    with pytest.raises(
        CallbackError, match="'watching:breaks' raised SystemExit after epoch 1: enough"
    ):
        mpips.fit("softmax", *files, epochs=2, on_epoch_end="watching:breaks")
    settings = {"train.on_epoch_end": "watching:ends"}
    with pytest.raises(ConfigError, match="and a function was given, too"):
        mpips.fit("softmax", *files, settings=settings, on_epoch_end=print)
    backup = {**settings, "table.consistency": {"name": "bsp", "backup": 1}}
    with pytest.raises(ConfigError, match=r"backup"):
        mpips.fit("softmax", *files, settings=backup)
