"""An imitation of `mpips train` for tests of the batch scripts.

Called as `... train --save FOLDER JOB`, where JOB is a JSON file {"allocations": n, "saves": bool}. In every
allocation but the last one, the ranks wait until each has received SIGUSR1 or SIGTERM, leave a checkpoint (if
"saves"), and all exit with 75.
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
    """Run one rank in one allocation."""
    # Block the signals first: a test sends one as soon as all ranks are ready.
    signals = {signal.SIGUSR1, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    arguments = sys.argv[1:]
    assert arguments[:2] == ["train", "--save"], arguments
    folder, job = Path(arguments[2]), json.loads(Path(arguments[-1]).read_text())
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMIX_RANK"])
    n_ranks = int(os.environ["SLURM_NTASKS"])

    allocation = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    folder.mkdir(parents=True, exist_ok=True)
    if allocation == job["allocations"] - 1:
        sys.exit(0)
    (folder / f"ready-{allocation}-{rank}").touch()
    got = signal.sigtimedwait(signals, LIMIT_S)
    assert got is not None, "no warning arrived"
    (folder / f"warned-{allocation}-{rank}").touch()
    if rank == 0:
        for other in range(n_ranks):
            wait_for(folder / f"warned-{allocation}-{other}")
        if job["saves"]:
            latest = folder / "latest.new"
            latest.symlink_to(f"step-{allocation:012}")
            latest.rename(folder / "latest")
        (folder / f"saved-{allocation}").touch()
    wait_for(folder / f"saved-{allocation}")
    sys.exit(75)


if __name__ == "__main__":
    main()
