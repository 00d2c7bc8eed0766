"""`on_epoch_end` of `mpips.fit`: called once for each epoch, and able to end the training."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_rig import dense_csv

import mpips
from mpips.data import Cursor
from mpips.errors import CallbackError, ConfigError
from mpips.model.consistency import BSP
from mpips.model.table import DenseTable
from mpips.training import epochs
from mpips.training.callback import EpochCallback
from mpips.training.epochs import Inputs, refuse_backup
from mpips.training.result import Result

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


@pytest.mark.parametrize("code", [0, None, 3, "enough"])
def test_a_call_that_exits_is_no_success(
    files: tuple[Path, Path], code: int | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def leaves(row: dict[str, float]) -> Any:
        calls.append(row["epoch"])
        raise SystemExit(code)

    with pytest.raises(CallbackError, match=r"^on_epoch_end raised SystemExit after epoch 1"):
        mpips.fit("softmax", *files, epochs=3, on_epoch_end=leaves)
    monkeypatch.setitem(sys.modules, "leaving", types.SimpleNamespace(leaves=leaves))
    with pytest.raises(CallbackError, match=r"'leaving:leaves' raised SystemExit after epoch 1"):
        mpips.fit("softmax", *files, epochs=3, on_epoch_end="leaving:leaves")
    assert calls == [1, 1]


class Calls(EpochCallback):
    """Writes calls down."""

    def __init__(self, ends_at: int = 0) -> None:
        super().__init__(lambda row: None)
        self.epochs: list[int] = []
        self.ends_at = ends_at

    def ends(self, worker: Any, epochs: int, losses: Any, metrics: Any) -> bool:
        self.epochs.append(epochs)
        return epochs == self.ends_at


def inputs_at(*cursors: tuple[int, int], callback: Any, **more: Any) -> Inputs:
    """Return the inputs of a job of six epochs whose workers start at these epochs and steps."""
    at = tuple(Cursor(*cursor) for cursor in cursors)
    values: dict[str, Any] = {"tables": [], "n_epochs": 6, "batch_size": 1, "cursors": at, **more}
    nothing: Any = None
    return Inputs(info=nothing, task=nothing, callback=callback, **values)


@pytest.mark.parametrize(
    ("unevaluated", "called"), [(False, [3, 4, 5]), (True, [2, 3, 4, 5])], ids=["inside", "at end"]
)
def test_workers_behind_call_for_no_epoch_that_another_has_completed(
    unevaluated: bool, called: list[int]
) -> None:
    """The worker ahead does not come to these calls, which are collective: the others would wait for it."""
    calls = Calls()
    inputs = inputs_at((2, 0), (0, 3), (1, 1), callback=calls, unevaluated=unevaluated)
    worker: Any = None
    result = Result()
    for epoch in range(6):
        epochs._call_back(worker, inputs, epoch, (1.0, 2), result)
    # The one for the last epoch comes with the last metrics of the job.
    assert calls.epochs == called
    assert not result.stopped


def test_a_call_that_ends_training_is_the_last_one() -> None:
    calls, result, worker = Calls(ends_at=2), Result(), None
    inputs = inputs_at((0, 0), callback=calls)
    for epoch in range(6):
        epochs._call_back(worker, inputs, epoch, (1.0, 2), result)  # type: ignore[arg-type]
    assert (calls.epochs, result.epochs) == ([1, 2], 2)
    assert result.stopped == "after epoch 2: by on_epoch_end"
    assert result.is_ended_by_caller


@pytest.mark.parametrize("backup", [0, 1])
def test_backup_workers_and_a_callback_are_refused_together(backup: int) -> None:
    tables = [DenseTable("a", (3,)), DenseTable("b", (3,), consistency=BSP(backup=backup))]
    refuse_backup(inputs_at((0, 0), callback=None, tables=tables))
    inputs = inputs_at((0, 0), callback=Calls(), tables=tables)
    if not backup:
        refuse_backup(inputs)
        return
    with pytest.raises(ConfigError, match="on_epoch_end does not work with backup workers"):
        refuse_backup(inputs)
