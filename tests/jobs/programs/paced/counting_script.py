"""A script that counts its steps in a table. It pauses before each step in the first allocation of a job."""

import os
import sys
import time
from pathlib import Path

import numpy as np

import mpips

N_STEPS = 200
READY = 10  # steps of worker 0, after which it makes the file "at-work"
PAUSE_S = 0.2  # seconds
folder, word = Path(sys.argv[1]), sys.argv[2]


def main(worker):
    table = worker.table("count")
    first = worker.start.cursor["step"] if worker.start and worker.start.cursor else 0
    for step in range(first, N_STEPS):
        if os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
            time.sleep(PAUSE_S)
            if worker.index == 0 and step == READY:
                (folder / "at-work").touch()
        table.push(-np.ones(3, np.float32))
        worker.set_cursor({"step": step + 1})
        worker.clock()
    return first, table.pull().tolist()


outcome = mpips.run(main, [mpips.DenseTable("count", (3,), mpips.SGD(lr=1.0))])
if outcome.is_first_worker:
    first, values = outcome.value
    print(f"{word}: began anew at step {first}, counted {values}", flush=True)
