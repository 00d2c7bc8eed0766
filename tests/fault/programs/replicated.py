"""A script with the same table on servers, replicated and as the job decides. Worker 0 prints a JSON line.

usage: replicated.py CLOCKS [HOW:WORKER:CLOCK ...]   HOW: kill, or lose the node's replicated tables, too
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
EVERY = 5  # clocks between two checkpoints


def disturb(worker: mpips.Worker, clock: int) -> None:
    """Kill this worker at a clock if the command line says so and it has not happened before."""
    for text in sys.argv[2:]:
        how, index, at = text.split(":")
        mark = Path(f"{how}-{index}-{at}")
        if int(index) == worker.index and clock == int(at) and not mark.exists():
            mark.touch()
            if how == "lose":
                token = json.loads(Path(os.environ["MPIPS_RUN_DIR"], "run.json").read_text())[
                    "token"
                ]
                for path in Path("/dev/shm").glob(f"mpips-kept-*{token}.*-n*g*"):
                    path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def main(worker: mpips.Worker) -> dict[str, object]:
    """Push the same numbers to all tables and compare them at every clock, but for the one with a codec.

    What that one receives is rounded at random, by the step of the run.
    """
    served, copied, either = (worker.table(name) for name in ("served", "copied", "either"))
    coded = worker.table("coded")
    first = int(worker.cursor.get("clock", 0))
    differ = 0
    for clock in range(first, int(sys.argv[1])):
        update = np.random.default_rng([worker.index, clock]).standard_normal(SHAPE)
        values = served.pull()
        differ += values.tobytes() != copied.pull().tobytes()
        differ += values.tobytes() != either.pull().tobytes()
        served.push(update + values, closes=True)
        copied.push(update + values, closes=clock % 2 == 0)
        either.push(update + values)
        coded.push(update + values)
        disturb(worker, clock)
        worker.set_cursor({"clock": clock + 1})
        worker.clock()
    whole = copied.pull().tobytes() + coded.pull().tobytes()
    digest = hashlib.blake2b(whole, digest_size=8).hexdigest()
    differ += served.pull().tobytes() != copied.pull().tobytes()
    differ += served.pull().tobytes() != either.pull().tobytes()
    paths = {name: worker.table(name).paths for name in ("served", "copied", "either")}
    return {"first": first, "differ": differ, "digest": digest, "paths": paths}


if __name__ == "__main__":
    tables = [
        mpips.DenseTable("served", SHAPE, mpips.Adam(0.01)),
        mpips.DenseTable(
            "copied", SHAPE, mpips.Adam(0.01), placement=mpips.Replicated(check_every=2)
        ),
        mpips.DenseTable("either", SHAPE, mpips.Adam(0.01), placement="auto"),
        mpips.DenseTable("coded", SHAPE, mpips.SGD(0.01), compression="int8"),
    ]
    outcome = mpips.run(
        main,
        tables,
        servers=int(os.environ.get("SERVERS", "1")),
        timeout_s=float(os.environ.get("LIMIT_S", "60")),
        every_steps=EVERY,
        save=None if "MPIPS_RUN_DIR" in os.environ else "saved",
    )
    if outcome.is_first_worker:
        print(json.dumps(outcome.value), flush=True)
