"""A run continues on a file with the columns of the first one in another order."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_rig import dense_csv, mixed_csv

import mpips
from mpips.config.schema import load_config
from mpips.training.train import train


def reordered(source: Path, target: Path) -> Path:
    """Write the columns of a CSV in reverse order."""
    with source.open() as file, target.open("w", newline="") as out:
        csv.writer(out).writerows(row[::-1] for row in csv.reader(file))
    return target


def scores(folder: Path, test: Path, parts: list[tuple[Path, int]], *more: tuple[str, Any]) -> Any:
    """Train on each file up to its epoch, continuing; return the predictions for the test file."""
    for path, epochs in parts:
        pairs = [
            ("data.train", str(path)),
            ("train.epochs", epochs),
            ("checkpoint.folder", str(folder)),
            *more,
        ]
        train(load_config(None, pairs), "none", verbose=False)
    return mpips.load(folder).predict_proba(test)


@pytest.mark.parametrize(
    ("task", "write"),
    [("wide_deep", mixed_csv), ("deepfm", mixed_csv), ("fm", mixed_csv), ("mlp", dense_csv)],
)
def test_a_run_continues_on_columns_in_another_order(
    tmp_path: Path, task: str, write: Callable[[Path, int, int], Path]
) -> None:
    first, test = write(tmp_path / "a.csv", 300, 1), write(tmp_path / "t.csv", 60, 2)
    second, other = (reordered(path, tmp_path / f"other {path.name}") for path in (first, test))
    more: list[tuple[str, Any]] = [("task", task)]
    if task in ("wide_deep", "deepfm", "mlp"):
        more.append(("options.hidden", [6]))
    whole = scores(tmp_path / "whole", test, [(first, 4)], *more)
    parted = scores(tmp_path / "parted", other, [(first, 2), (second, 4)], *more)
    np.testing.assert_allclose(parted, whole, atol=2e-4)
    short = scores(tmp_path / "short", test, [(first, 2)], *more)
    assert np.abs(short - whole).max() > 2e-3
