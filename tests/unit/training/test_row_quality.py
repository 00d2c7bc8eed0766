"""Rows in half of the memory train as well as those of float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click_logs import click_lines, write_clicks

import mpips

TASKS = {"fm": ("weight", "factor"), "logistic": ("weight",)}


@pytest.mark.parametrize(("task", "tables"), TASKS.items(), ids=TASKS)
def test_bf16_rows_have_the_loss_of_float32(
    tmp_path: Path, task: str, tables: tuple[str, ...]
) -> None:
    """Within 0.2 percent on data that neither was trained on."""
    train = write_clicks(tmp_path / "train.tsv", click_lines(1500))
    test = write_clicks(tmp_path / "test.tsv", click_lines(400, seed=2))

    def loss(**settings: object) -> float:
        found = mpips.fit(task, train, test, epochs=3, batch_size=100, settings=settings)
        return float(found.metrics["log_loss"])

    exact = loss()
    assert exact < 0.55
    half = loss(**{f"tables.{name}.row_dtype": "bf16" for name in tables})
    assert half != exact
    assert np.isclose(half, exact, rtol=0.002)
