"""The table of defaults on unseen data: its generated data, and rows of small data."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from tests.bench import defaults


def test_biases_predict_what_users_and_items_have_and_not_their_pairs(tmp_path: Path) -> None:
    pairs = np.array([(user, item) for user in range(30) for item in range(40)], float)
    values = 3 + 0.2 * pairs[:, 0] - 0.1 * pairs[:, 1]
    rows = np.column_stack([pairs, values])
    rows = np.random.default_rng(3).permutation(rows)
    found = defaults.of_biases(rows[:1000], rows[1000:])
    assert found < 0.5 < 2.0 < rows[1000:, 2].std()
    both = [defaults.write_ratings(tmp_path, 20, 5) for _ in range(2)]
    assert all(np.array_equal(a, b) for a, b in zip(*both, strict=True))
    train = (tmp_path / "train.csv").read_text().splitlines()
    assert (train[0], len(train)) == ("user,item,rating", 81)


def test_a_row_has_the_result_of_mpips_and_of_the_model_beside_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(defaults, "_RATINGS", ((40, 20),))
    monkeypatch.setattr(defaults, "_CLICKS", ((300, 4, 3),))
    monkeypatch.setattr(sys, "argv", ["defaults", "mf", "fm"])
    defaults.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| task | data | default | beside it |"
    assert lines[2].startswith("| `mf` | generated (40 users, 20 ratings of each) | RMSE ")
    assert lines[3].startswith("| `fm` | generated clicks (210 lines, 4 and 3 words) | AUC ")
    for line in lines[2:]:
        ours, other = (cell.split()[-1] for cell in line.split("|")[3:5])
        # Neither is that of a model without data: 0.5, and the standard deviation of the ratings.
        assert float(ours) == pytest.approx(float(other), abs=0.15), line


def test_an_unknown_task_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["defaults", "svm"])
    with pytest.raises(SystemExit):
        defaults.main()
    assert "svm: must be of logistic, softmax, mlp" in capsys.readouterr().err
