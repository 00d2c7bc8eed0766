"""`mpips train` over real launches, and what its checkpoints hold."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from launcher import launch

from mpips.checkpoint import open_checkpoint


def train(n: int, *arguments: str, code: int = 0) -> tuple[dict, str]:
    """`mpips train` on n ranks; its JSON and what it said on stderr."""
    command = [sys.executable, "-m", "mpips", "train", *arguments, "--progress", "none", "--json"]
    with launch(n, command, timeout=90) as job:
        assert job.wait() == code, job.tail()
        lines = job.stdout().strip().splitlines()
        found = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
        return found, job.stderr()


def content(path: str) -> dict[str, np.ndarray]:
    """Every dataset of a checkpoint by its place, in global order."""
    found = {}
    with open_checkpoint(path) as checkpoint:
        checkpoint.verify()
        for table in checkpoint.manifest.tables:
            for dataset in table.datasets:
                found[dataset.path] = checkpoint.read(dataset, 0, dataset.n_units)
    return found


def assert_same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.tobytes() == second[name].tobytes(), name


def made_data(folder: Path) -> Path:
    """A small sparse data set, always the same."""
    rng = np.random.default_rng(5)
    lines = []
    for _ in range(700):
        keys = np.sort(rng.choice(400, 12, replace=False)) + 1
        label = int(keys.sum() % 2)
        lines.append(" ".join([str(label), *(f"{k}:1" for k in keys)]))
    path = folder / "made.svm"
    path.write_text("\n".join(lines) + "\n")
    return path
