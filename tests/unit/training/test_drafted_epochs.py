"""The number of epochs and the patience of a draft depend on the number of samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mpips.config.schema import load_config
from mpips.tasks import TASKS
from mpips.training.drafting import draft
from mpips.training.drafting_epochs import (
    LEAST_UPDATES,
    MOST_EPOCHS,
    MOST_UPDATES,
    choose_passes,
)
from mpips.training.drafting_own import draft_own


@pytest.mark.parametrize("name", ["mlp", "wide_deep", "logistic", "fm"])
def test_a_run_has_updates_between_two_bounds(name: str) -> None:
    task = TASKS[name]
    for n in (1, 100, 2000, 5000, 20_000, 10**6, 10**7, 10**9):
        for holds_out in (False, True):
            passes = choose_passes(task, n, holds_out)
            assert passes.epochs <= MOST_EPOCHS
            updates = passes.epochs * passes.per_epoch
            assert passes.per_epoch == -(-n // task.default_batch_size)
            assert updates <= MOST_UPDATES or passes.epochs == 3
            if holds_out and name in ("mlp", "wide_deep"):
                assert updates >= LEAST_UPDATES or passes.epochs == MOST_EPOCHS
            if holds_out:
                assert 2 <= passes.patience <= 5
                assert passes.patience <= max(passes.epochs // 3, 2)
            else:
                # Nothing ends a run that learns its samples by heart.
                assert passes.epochs <= task.default_epochs
                assert passes.patience == 0
            if name in ("logistic", "fm"):
                # A longer run has another penalty.
                assert passes.epochs <= task.default_epochs
            assert (passes.epochs == task.default_epochs) == (passes.reason == "")


def test_between_the_bounds_a_task_has_its_defaults() -> None:
    task = TASKS["wide_deep"]
    passes = choose_passes(task, 27_669, True)
    assert (passes.epochs, passes.patience) == (task.default_epochs, 5)
    few, many = choose_passes(task, 1800, True), choose_passes(task, 45_000_000, True)
    assert (few.epochs, few.patience, few.reason) == (173, 5, "few samples")
    assert (many.epochs, many.patience, many.reason) == (3, 2, "many samples")


def rows(n: int, n_features: int) -> str:
    """Return LIBSVM text of two classes."""
    random = np.random.default_rng(1)
    lines = []
    for i in range(n):
        keys = np.sort(random.choice(n_features, 3, replace=False)) + 1
        lines.append(" ".join([str(i % 2), *(f"{key}:1" for key in keys)]))
    return "\n".join([*lines, ""])


def test_a_draft_has_them_with_the_reason(tmp_path: Path) -> None:
    job, data = tmp_path / "job.toml", tmp_path / "a.svm"
    table = tmp_path / "a.csv"
    table.write_text("y,a,b\n" + "".join(f"{i % 2},{i % 7},{i % 11}\n" for i in range(2200)))
    job.write_text(draft(str(table)))
    # 1,980 samples of these 2,200 are trained on.
    said = "epochs = 81  # at most, 5,022 updates of one worker, few samples\n"
    assert said in job.read_text()
    config = load_config(str(job), [])
    assert (config.train.epochs, config.train.patience) == (81, 5)

    data.write_text(rows(2200, 60))
    job.write_text(draft(str(data)))
    assert "epochs = 30  # at most, 1,860 updates of one worker\n" in job.read_text()

    data.write_text(rows(300, 60))
    job.write_text(draft(str(data)))
    assert "epochs = 30  # 300 updates of one worker\n" in job.read_text()
    assert load_config(str(job), []).train.patience == 0


def test_a_draft_leaves_out_epochs_that_the_task_chooses_by_the_data(tmp_path: Path) -> None:
    job, data = tmp_path / "job.toml", tmp_path / "a.svm"
    # Fewer samples than features.
    data.write_text(rows(300, 2000))
    job.write_text(draft(str(data)))
    assert "# epochs = 0  # 0: the task chooses them by the data\n" in job.read_text()
    assert load_config(str(job), []).train.epochs == 0
    data.write_text("".join(f"a{i}\tis\tb{i % 7}\n" for i in range(50)))
    job.write_text(draft_own("kge", str(data)))
    assert load_config(str(job), []).train.epochs == 0
    data.write_text("a b c d\n" * 50)
    job.write_text(draft_own("word2vec", str(data)))
    assert load_config(str(job), []).train.epochs == TASKS["word2vec"].default_epochs
