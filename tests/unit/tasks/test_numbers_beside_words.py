"""Numbers in a CSV with columns of words: all tasks standardise them, whatever their size."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpips
from mpips.data.dataset import SparseBatch
from mpips.data.info import DataInfo
from mpips.data.moments import Moments
from mpips.data.readers import read
from mpips.data.words import SCALED, VALUES
from mpips.tasks.features import MAX_DEVIATION, SparseFeatures

N = 400
TASKS = ["logistic", "fm", "softmax", "mlp", "wide_deep"]
NAMES = ("word", "year", "amount", "gaps", "zero")


def rows(outlier: float = 6000.0) -> list[dict[str, Any]]:
    """Return samples: a constant year, amounts of which one lies far off, empty cells, zeros."""
    rng = np.random.default_rng(3)
    amount = rng.normal(size=N)
    found = [
        {
            "word": f"w{i % 3}",
            "year": 2026,
            "amount": float(f"{3000 + 500 * amount[i]:.2f}"),
            "gaps": "" if i % 4 == 0 else 0.25 * (i % 7),
            "zero": i % 2,
            "label": int(amount[i] + (i % 3 == 0) > 0.3),
        }
        for i in range(N)
    ]
    found[1]["amount"] = outlier
    return found


def written(path: Path, samples: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(samples[0]))
        writer.writeheader()
        writer.writerows(samples)
    return path


def scaled(samples: list[dict[str, Any]]) -> np.ndarray:
    """Return the numbers as tasks should see them, shape (n, 4), nan where a cell is empty."""
    cells = [
        [float(row[name]) if row[name] != "" else math.nan for name in NAMES[1:]] for row in samples
    ]
    x = np.array(cells)
    x = np.sign(x) * np.log1p(np.abs(x))
    spread = np.nanstd(x, axis=0)
    return np.clip((x - np.nanmean(x, axis=0)) / np.where(spread > 1e-9, spread, np.inf), -10, 10)


def batch_of(path: Path) -> tuple[SparseBatch, DataInfo, Moments]:
    part = read(path)
    batch = part.data.take(np.arange(N))
    assert isinstance(batch, SparseBatch)
    return batch, part.info, Moments.of(part.data)


def test_numbers_are_standardised_over_the_cells_that_are_there(tmp_path: Path) -> None:
    samples = rows(9e12)
    batch, info, moments = batch_of(written(tmp_path / "a.csv", samples))
    assert info.words == SCALED
    features = SparseFeatures(info, "logistic")
    features.prepare(moments)
    expected = scaled(samples)
    assert np.nanmax(expected) == MAX_DEVIATION
    for entries in (features.of(batch), features.of_unseen(batch)):
        found = np.full((N, len(NAMES)), math.nan)
        found[entries.row_ids, [info.columns.index(NAMES[c]) for c in batch.fields]] = (
            entries.values
        )
        assert (found[:, 0] == 1).all()
        np.testing.assert_allclose(found[:, 1:], expected, rtol=1e-5, atol=1e-6)
    assert features.report() == (
        "1 columns of words, 3 of numbers (standardised); constant, without influence: 'year'"
    )


def test_models_of_earlier_versions_keep_the_numbers_as_they_are(tmp_path: Path) -> None:
    batch, info, moments = batch_of(written(tmp_path / "a.csv", rows()))
    features = SparseFeatures(replace(info, words=VALUES), "logistic")
    features.prepare(moments)
    assert features.of(batch).values.tobytes() == batch.values.tobytes()


@pytest.mark.parametrize("task", TASKS)
def test_every_task_learns_from_numbers_of_any_size(task: str, tmp_path: Path) -> None:
    data = written(tmp_path / "a.csv", rows())
    fit = mpips.fit(task, str(data), str(data), epochs=5, folder=tmp_path / "m")
    assert fit.metrics["accuracy"] > 0.9
    other = {"log_loss", "cross_entropy"} & set(fit.metrics)
    assert fit.metrics[other.pop()] < 0.4
    # A model that is loaded scales new samples by the training data, not by their own.
    model = mpips.load(tmp_path / "m")
    whole = model.predict_proba(str(data))
    some = rows()[:8]
    for row in some:
        row.pop("label")
    part = model.predict_proba(str(written(tmp_path / "b.csv", some)))
    np.testing.assert_allclose(part, whole[:8], rtol=1e-5)
    # A constant column has no influence.
    for row in some:
        row["year"] = 1
    assert np.array_equal(model.predict_proba(str(written(tmp_path / "b.csv", some))), part)
