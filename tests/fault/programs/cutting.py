"""Workers that push until a file says stop. argv: ready file, folder of checkpoints, JSON of options.

The ready file holds the workers' pids; beside it, `.step` tells worker 0's clock and `.stop` ends all.
Worker 0's rank prints what the scheduler says of checkpoints.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import mpips

ready, folder = Path(sys.argv[1]), Path(sys.argv[2])
options = json.loads(sys.argv[3])


def write(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.rename(path)


def main(worker: mpips.Worker) -> None:
    pids = worker.gather("pids", str(os.getpid()).encode())
    table = worker.table("w")
    step_file, stop = ready.with_suffix(".step"), ready.with_suffix(".stop")
    for step in range(10**6):
        table.pull()
        table.push(np.ones(1000, np.float32))
        worker.clock()
        time.sleep(0.001)
        if worker.index == 0 and step % 10 == 0:
            write(step_file, str(step))
        if worker.index == 0 and step == 20:
            write(ready, " ".join(pid.decode() for pid in pids))
        if stop.exists():
            return


outcome = mpips.run(main, [mpips.DenseTable("w", (1000,))], verbose=False, save=folder, **options)
if outcome.is_first_worker:
    print(json.dumps(outcome.statistics["scheduler"]["checkpoints"]))
