"""A recommender of two towers, in plain PyTorch and with mpips: few lines differ, and both learn alike."""

from __future__ import annotations

import subprocess
import sys
from difflib import SequenceMatcher
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

PROGRAMS = Path(__file__).parents[2] / "fault/programs"
MOST_CHANGED = 20


def lines_of(name: str) -> list[str]:
    """Return the lines of a program that are not empty."""
    return [line for line in (PROGRAMS / name).read_text().splitlines() if line.strip()]


def test_at_most_twenty_lines_change() -> None:
    plain, own = lines_of("two_tower_plain.py"), lines_of("two_tower.py")
    changes = SequenceMatcher(None, plain, own, autojunk=False).get_opcodes()
    n = sum(max(b - a, d - c) for kind, a, b, c, d in changes if kind != "equal")
    assert 0 < n <= MOST_CHANGED


def test_both_programs_learn_and_keep_their_log_and_best_model(tmp_path: Path) -> None:
    recalls = []
    for name in ("two_tower_plain.py", "two_tower.py"):
        folder = tmp_path / name
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, PROGRAMS / name],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        rows = [line.split(",") for line in (folder / "log.csv").read_text().splitlines()]
        assert [int(row[0]) for row in rows] == [0, 1, 2, 3]
        rates = [float(row[2]) for row in rows]
        assert rates == pytest.approx([0.02 * 0.9**n for n in (1, 2, 3, 4)])
        recalls.append([float(row[1]) for row in rows])
        best = torch.load(folder / "best.pt", weights_only=True)
        assert best["item.layer.weight"].shape == (8, 8)
    # By chance an eighth of the clicks would be found.
    assert [max(found) > 0.35 for found in recalls] == [True, True], recalls
