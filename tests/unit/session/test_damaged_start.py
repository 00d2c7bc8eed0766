"""A damaged newest checkpoint is a warning, which no option silences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoints import flip

import mpips
from mpips.checkpoint import list_checkpoints
from mpips.checkpoint.manifest import STATE
from mpips.config.schema import load_config
from mpips.training.train import train

TABLES = [mpips.DenseTable("t", (64,), mpips.SGD(1.0), init="zeros")]


def one_step(worker: mpips.Worker) -> float:
    table = worker.table("t")
    table.push(np.full(64, -1.0, np.float32)).wait()
    worker.clock()
    return float(table.pull()[0])


def damage_newest(folder: Path) -> str:
    newest = max(entry.path for entry in list_checkpoints(folder))
    state = newest / STATE
    flip(state, state.stat().st_size - 1)
    return newest.name


@pytest.mark.parametrize("verbose", [False, True])
def test_a_job_that_starts_from_an_older_checkpoint_warns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verbose: bool
) -> None:
    for i in range(2):
        value = mpips.run(one_step, TABLES, save=tmp_path, verbose=False).value
        assert value == i + 1.0
    assert "warning" not in capsys.readouterr().err
    name = damage_newest(tmp_path)
    assert mpips.run(one_step, TABLES, save=tmp_path, verbose=verbose).value == 2.0
    (line,) = [s for s in capsys.readouterr().err.splitlines() if "warning" in s]
    assert line.startswith("mpips: warning: checkpoint not used: ")
    assert name in line


def test_so_does_quiet_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "saved"
    for epochs in (1, 2):
        config = load_config(
            None,
            [
                ("task", "mlp"),
                ("data.train", "digits"),
                ("train.epochs", epochs),
                ("checkpoint.folder", str(folder)),
            ],
        )
        train(config, "none", verbose=False)
    name = damage_newest(folder)
    capsys.readouterr()
    train(config, "none", verbose=False)
    lines = capsys.readouterr().err.splitlines()
    assert [name in line for line in lines if "mpips: warning: checkpoint not used: " in line] == [
        True
    ]
