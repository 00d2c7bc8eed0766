"""Data of the jobs that tests plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def svm(tmp_path: Path) -> Path:
    """160 sparse samples of two classes over 90 keys."""
    rng = np.random.default_rng(4)
    lines = []
    for i in range(160):
        keys = sorted(rng.choice(90, 6, replace=False) + 1)
        lines.append(f"{1 if i % 3 else -1} " + " ".join(f"{k}:1" for k in keys))
    path = tmp_path / "a.svm"
    path.write_text("\n".join(lines) + "\n")
    return path
