"""`mpips train` over real launches, and what its checkpoints hold."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import processes
from launcher import Launch, launch

from mpips.checkpoint import list_checkpoints, open_checkpoint

N_SAMPLES = 211


def train(
    n: int,
    *arguments: str,
    code: int = 0,
    timeout: float = 90,
    env: Mapping[str, str] | None = None,
) -> tuple[dict, str]:
    """`mpips train` on n ranks, with `env` added; its JSON and what it said on stderr."""
    command = [sys.executable, "-m", "mpips", "train", *arguments, "--progress", "none", "--json"]
    with launch(n, command, env, timeout) as job:
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


def finish(job: Launch, code: int = 0) -> dict:
    assert job.wait() == code, job.tail()
    lines = job.stdout().strip().splitlines()
    return json.loads(lines[-1]) if code == 0 else {}


def wait_for_checkpoint(folder: Path, job: Launch, number: int = 1) -> Path:
    """Until so many are published; the last of them."""

    def there() -> bool:
        assert job.poll() is None, job.tail()
        return folder.is_dir() and len(list_checkpoints(folder)) >= number

    assert processes.until(there, 30.0), job.tail()
    return list_checkpoints(folder)[-1].path


def numbers(folder: Path) -> Path:
    """Samples whose only feature is their number."""
    path = folder / "numbers.npz"
    x = np.arange(N_SAMPLES, dtype=np.float32)[:, None]
    np.savez(path, x=x, y=(np.arange(N_SAMPLES) % 2).astype(np.int64))
    return path


def assert_read(path: str, times: int) -> None:
    """Each sample so many times."""
    found = content(path)
    assert found["/tables/seen/keys"].tolist() == list(range(N_SAMPLES))
    assert (found["/tables/seen/values"].reshape(-1) == -times).all()
