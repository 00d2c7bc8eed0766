"""Stands for `mpips train` where a test is about the batch script and not about training.

`... train --save FOLDER JOB` with JOB a JSON file {"turns": n, "saves": bool}. Every turn but the last one
waits until each rank has got SIGUSR1, leaves a checkpoint (if it saves), and ends with 75 on all ranks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

LIMIT_S = 100.0


def wait_for(path: Path) -> None:
    """Wait for another rank's file."""
    deadline = time.monotonic() + LIMIT_S
    while not path.exists():
        if time.monotonic() > deadline:
            sys.exit(f"no {path} after {LIMIT_S:g} s")
        time.sleep(0.01)


def main() -> None:
    """One rank of one turn."""
    # Before anything else: a test signals as soon as all ranks are ready.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    arguments = sys.argv[1:]
    assert arguments[:2] == ["train", "--save"], arguments
    folder, job = Path(arguments[2]), json.loads(Path(arguments[-1]).read_text())
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMIX_RANK"])
    n_ranks = int(os.environ["SLURM_NTASKS"])

    turn = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    folder.mkdir(parents=True, exist_ok=True)
    if turn == job["turns"] - 1:
        sys.exit(0)
    (folder / f"ready-{turn}-{rank}").touch()
    got = signal.sigtimedwait({signal.SIGUSR1}, LIMIT_S)
    assert got is not None, "no warning came"
    (folder / f"warned-{turn}-{rank}").touch()
    if rank == 0:
        for other in range(n_ranks):
            wait_for(folder / f"warned-{turn}-{other}")
        if job["saves"]:
            latest = folder / "latest.new"
            latest.symlink_to(f"step-{turn:012}")
            latest.rename(folder / "latest")
        (folder / f"saved-{turn}").touch()
    wait_for(folder / f"saved-{turn}")
    sys.exit(75)


if __name__ == "__main__":
    main()
