"""A script with the same tables on servers and replicated; worker 0 prints a line of JSON with the result.

usage: replicated.py CLOCKS [HOW:WORKER:CLOCK ...]   HOW: kill or stop, once in a run
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

import mpips

SHAPE = (300, 40)


def disturb(worker: mpips.Worker, clock: int) -> None:
    """Kill or stop this worker if the command line says so and it has not happened before."""
    for text in sys.argv[2:]:
        how, index, at = text.split(":")
        mark = Path(f"{how}-{index}-{at}")
        if (int(index), int(at)) == (worker.index, clock) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)


def main(worker: mpips.Worker) -> dict[str, object]:
    """Push the same numbers to both tables and compare them at every clock."""
    served, copied = worker.table("served"), worker.table("copied")
    first = int(worker.cursor.get("clock", 0))
    differ = 0
    for clock in range(first, int(sys.argv[1])):
        update = np.random.default_rng([worker.index, clock]).standard_normal(SHAPE)
        values = served.pull()
        differ += values.tobytes() != copied.pull().tobytes()
        served.push(update + values, closes=True)
        copied.push(update + values, closes=clock % 2 == 0)
        disturb(worker, clock)
        worker.set_cursor({"clock": clock + 1})
        worker.clock()
    digest = hashlib.blake2b(copied.pull().tobytes(), digest_size=8).hexdigest()
    differ += served.pull().tobytes() != copied.pull().tobytes()
    return {"first": first, "differ": differ, "digest": digest}


if __name__ == "__main__":
    tables = [
        mpips.DenseTable("served", SHAPE, mpips.Adam(0.01)),
        mpips.DenseTable(
            "copied", SHAPE, mpips.Adam(0.01), placement=mpips.Replicated(check_every=2)
        ),
    ]
    outcome = mpips.run(
        main,
        tables,
        servers=int(os.environ.get("SERVERS", "1")),
        timeout_s=float(os.environ.get("LIMIT_S", "60")),
        every_steps=5,
        save=None if "MPIPS_RUN_DIR" in os.environ else "saved",
    )
    if outcome.is_first_worker:
        print(json.dumps(outcome.value), flush=True)
