"""Jobs that train slowly enough to be disturbed, and the comparison of their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import processes
import slurm
from slurm import Slurm

from mpips.checkpoint import open_checkpoint
from mpips.checkpoint.compare import compare

Script = Callable[[str], Path]
PACED = Path(__file__).parent / "programs/paced"
JOB = """
task = "paced:Paced"

[data]
train = "DATA"
test = "DATA"

[train]
epochs = 6
batch_size = 75

[cluster]
servers = 1

[table]
consistency = "bsp"
"""
RANKS = 4


def write_data(path: Path) -> Path:
    """Write the same small set of samples of four classes each time, without importing scikit-learn."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((1200, 16), dtype=np.float32)
    y = (x @ rng.standard_normal((16, 4), dtype=np.float32)).argmax(axis=1)
    np.savez(path, x=x, y=y)
    return path


def start(cluster: Slurm, folder: Path, *argv: str | Path, spares: int = 0) -> int:
    """Submit a job whose run folder is `folder`."""
    env = {"PYTHONPATH": str(PACED), "MPIPS_FOLDER": str(folder), "MPIPS_TEST_PACED": str(folder)}
    env["MPIPS_SPARES"] = str(spares)
    folder.mkdir()
    return cluster.submit(f"--output={folder}.out", *argv, env=env)


@dataclass(frozen=True)
class Ended:
    """The end of a job: its Slurm state, number of restarts, output and run folder."""

    state: str
    restarts: int
    output: str
    folder: Path


def end(cluster: Slurm, job: int) -> Ended:
    """Wait for the end of a job that `start` submitted."""
    shown = cluster.wait(job, 150)
    output = Path(shown["StdOut"])
    return Ended(
        shown["JobState"], int(shown["Restarts"]), cluster.output(shown), output.with_suffix("")
    )


def latest(folder: Path) -> Path | None:
    """Return the newest checkpoint of a run folder, which scripts put at different depths."""
    return next(folder.glob("**/checkpoints/latest"), None)


def wait_at_work(cluster: Slurm, job: int, folder: Path, saved: bool = False) -> None:
    """Wait until the first allocation is in the middle of training, and has a checkpoint if `saved`."""

    def ready() -> bool:
        assert cluster.show(job)["JobState"] not in slurm.ENDED, cluster.output(cluster.show(job))
        return (folder / "at-work").exists() and (not saved or latest(folder) is not None)

    assert processes.until(ready, 90.0), cluster.output(cluster.show(job))


def assert_same(found: Path | None, expected: Path) -> None:
    assert found is not None
    with open_checkpoint(found) as first, open_checkpoint(expected) as second:
        assert first.manifest.step == second.manifest.step
        different = [d for d in compare(first, second) if not d.same]
    assert not different
