"""Starting `mpips run` from a test and looking into its run directory."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launcher
import numpy as np
import processes
from patience import PATIENCE

from tests.bench.kills import audit, content

PROGRAMS = Path(__file__).parents[1] / "fault/programs"
SHAPE = ["-n", "5", "--servers", "2"]
EPOCHS = 6
ENVIRONMENT = {"PYTHONPATH": str(PROGRAMS)}
# Counts how often each feature is seen; a push of 320 KiB to a dense table, and rows that are only pushed.
COUNTING = [
    "mpips.testing.counted:Counted",
    "options.copies=200",
    "options.fitted=false",
    "options.pause_s=0.01",
]


def made_data(folder: Path) -> Path:
    """A small sparse data set, always the same."""
    rng = np.random.default_rng(5)
    lines = []
    for _ in range(700):
        keys = np.sort(rng.choice(400, 12, replace=False)) + 1
        lines.append(" ".join([str(int(keys.sum() % 2)), *(f"{k}:1" for k in keys)]))
    path = folder / "made.svm"
    path.write_text("\n".join(lines) + "\n")
    return path


class Run:
    """`mpips run` in the background, its run directory in `folder/runs`."""

    def __init__(self, folder: Path, launched: launcher.Launch) -> None:
        self.folder = folder / "runs"
        self.launched = launched

    @property
    def path(self) -> Path:
        """The run directory."""
        return next(self.folder.iterdir())

    def read(self, name: str) -> dict[str, Any] | None:
        """A JSON file of the run directory, or None."""
        try:
            found: dict[str, Any] = json.loads((self.path / name).read_text())
            return found
        except (OSError, StopIteration):
            return None

    def until(self, condition: Callable[[dict[str, Any]], bool], timeout_s: float = 60.0) -> dict:
        """Wait until a condition on status.json, with the places of the ranks, holds; the status."""
        deadline = time.monotonic() + PATIENCE * timeout_s
        while True:
            status = self.read("status.json")
            if status is not None:
                places = self.read("places.json") or {"generation": None}
                mine = places["generation"] == status["generation"]
                status["ranks"] = places["ranks"] if mine else []
            if status is not None and condition(status):
                return status
            assert self.launched.poll() is None, self.launched.tail(80)
            assert time.monotonic() < deadline, self.launched.tail(80)
            time.sleep(0.02)

    def pid_of(self, role: str) -> int:
        """Pid of the rank with a role, once there is a checkpoint."""
        status = self.until(lambda s: bool(s["ranks"] and s["checkpoint"]))
        return next(p["pid"] for p in status["ranks"] if p["role"] == role)

    @property
    def attempts(self) -> int:
        """How many there have been."""
        return len(list((self.path / "logs").iterdir()))

    def final(self) -> dict[str, bytes]:
        """All datasets of the last checkpoint."""
        mark = self.read("finished.json")
        assert mark is not None
        return content(Path(mark["checkpoint"]))


def command(*arguments: str) -> list[str]:
    """The command line of `mpips run`."""
    return [sys.executable, "-m", "mpips", "run", "--progress", "none", *arguments]


def start(
    folder: Path, *arguments: str, timeout: float = 110.0, fault: str = "", **more: str
) -> Run:
    """`mpips run` with these arguments, in `folder`; `fault`: see native/src/shm/fault.hpp."""
    env = {**launcher.site_environment(), **ENVIRONMENT, "MPIPS_FAULT": fault, **more}
    return Run(folder, launcher.Launch(command(*arguments), env, timeout, folder))


def alive(run: Run) -> list[int]:
    """Processes of a run that are there, stopped ones too."""
    return processes.marked(f"MPIPS_RUN_DIR={run.path}")


def job(folder: Path, task: str, *settings: str) -> list[str]:
    """The task on its data."""
    sets = [word for text in (f"train.epochs={EPOCHS}", *settings) for word in ("--set", text)]
    return [task, "--train", str(made_data(folder)), *sets]


def counting(folder: Path, *settings: str) -> list[str]:
    """The task whose tables hold how often each feature was seen."""
    return job(folder, *COUNTING, *settings)


def expected_counts(folder: Path) -> np.ndarray:
    """How often each feature is in the data, times the epochs."""
    lines = (folder / "made.svm").read_text().splitlines()
    keys = [int(word.split(":")[0]) - 1 for line in lines for word in line.split()[1:]]
    return EPOCHS * np.bincount(keys)


def check_counts(run: Run, folder: Path) -> None:
    """Every push was applied exactly once."""
    assert audit(run.final(), expected_counts(folder)) == (0, 0)
