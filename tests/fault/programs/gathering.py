"""A script that pulls rows, sums over workers, and pushes under BSP. Worker 0 prints a JSON line.

usage: gathering.py STEPS STEP ...   In each STEP, once in a run, worker 1 is killed behind its pushes, before
the others have pushed.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import mpips

KEYS = np.arange(40)


def disturb(worker: mpips.Worker, step: int, died: Path) -> None:
    """Kill worker 1; let the others wait for the end of the launch, so that all repeat this clock."""
    if worker.index == 1:
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    deadline = time.monotonic() + 60
    while True:
        assert time.monotonic() < deadline, f"the launch has not ended in step {step}"
        time.sleep(0.01)


def main(worker: mpips.Worker) -> dict[str, object]:
    """Add 1 to each row in each step."""
    table, ones = worker.table("e"), np.ones((len(KEYS), 4), np.float32)
    first = int(worker.cursor.get("step", 0))
    for step in range(first, int(sys.argv[1])):
        assert (table.pull(KEYS) == -float(worker.n_workers * step)).all()
        # All look before the sum, behind which worker 1 writes the file.
        died = Path(f"died-{step}")
        is_last = str(step) in sys.argv[2:] and not died.exists()
        assert worker.reduce("workers", np.ones(1)) == worker.n_workers
        if is_last and worker.index != 1:
            disturb(worker, step, died)
        table.push(KEYS, ones)
        if is_last and worker.index == 1:
            disturb(worker, step, died)
        worker.set_cursor({"step": step + 1})
        worker.clock()
    return {"first": first, "values": sorted(set(table.pull(KEYS).reshape(-1).tolist()))}


if __name__ == "__main__":
    rows = mpips.EmbeddingTable("e", 4, mpips.SGD(1.0), mpips.BSP("sum"), init="zeros")
    outcome = mpips.run(main, [rows], servers=2, timeout_s=15.0)
    if outcome.is_first_worker:
        print(json.dumps(outcome.value), flush=True)
