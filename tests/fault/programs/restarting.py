"""Trains under ASP, and ends attempts by SIGKILL: each time when a new checkpoint is there.

Usage: restarting.py STEPS. The variable KILLS has the number of attempts that end so; without it none does.
Worker 0 copies the checkpoints that are there when an attempt begins into the folder `kept` beside them.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np

import mpips

STEPS = int(sys.argv[1])
KILLS = int(os.environ.get("KILLS", "0"))
N = 40_000  # values; three blocks


def checkpoints() -> set[str]:
    """Names of the checkpoints of the run."""
    folder = Path(os.environ["MPIPS_RUN_DIR"]) / "checkpoints"
    return {path.name for path in folder.glob("step-*") if not path.name.endswith(".tmp")}


def main(worker: mpips.Worker) -> None:
    """Pull, push and count, from where the last checkpoint was."""
    w, small, e = worker.table("w"), worker.table("s"), worker.table("e")
    attempt, before = int(os.environ["MPIPS_GENERATION"]), checkpoints()
    if worker.index == 0 and KILLS:
        folder = Path(os.environ["MPIPS_RUN_DIR"])
        for name in before:
            shutil.copytree(
                folder / "checkpoints" / name, folder / "kept" / name, dirs_exist_ok=True
            )
    is_killed = attempt < KILLS and worker.index == attempt % worker.n_workers
    # The worker that ends the attempt does so whatever the time that a checkpoint takes.
    last = 1 << 30 if is_killed else STEPS
    for step in range(worker.cursor.get("step", 0), last):
        values = w.pull()
        w.push(np.sin(values + worker.index) * 0.1).wait()
        keys = np.unique(worker.random.integers(0, 200, 30))
        rows = e.pull(keys)
        e.push(keys, np.cos(rows) * 0.1)
        small.push(np.tanh(small.pull()) + worker.random.random(8).astype(np.float32))
        worker.set_cursor({"step": step + 1})
        worker.clock()
        if is_killed and checkpoints() - before:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    mpips.run(
        main,
        [
            mpips.DenseTable("w", (N,), optimizer=mpips.Adam(0.05), consistency=mpips.ASP()),
            mpips.DenseTable(
                "s", (8,), optimizer=mpips.SGD(0.1), consistency=mpips.ASP(mpips.Reject(4))
            ),
            mpips.EmbeddingTable(
                "e", 4, optimizer=mpips.Adagrad(0.1), consistency=mpips.ASP(mpips.Scale())
            ),
        ],
        servers=2,
        every_steps=5,
    )
