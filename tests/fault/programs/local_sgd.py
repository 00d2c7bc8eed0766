"""A script with tables under DiLoCo: fragments, delay, mixing, Adam. Worker 0 prints a JSON line.

usage: local_sgd.py STEPS [HOW:WORKER:STEP ...]   once in a run, at the end of that step. HOW: kill; or lose,
where the memory of the worker's own values is gone, too: at the first step from there on with a checkpoint,
in a launch that begins after what the command line names before it has happened.
"""

import hashlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np

import mpips

SIZES = (3000, 500, 1700)
PERIOD = 6
MADE = {path.name for path in Path().glob("*-*-*")}  # marks of earlier launches


def has_checkpoint(step: int) -> bool:
    """Return True if the run has a checkpoint. In the last step wait for it, in others only a little.

    For a cut the worker must go on. The first one is made long before the last step, and to write it the
    servers need no worker.
    """
    latest = Path(os.environ["MPIPS_RUN_DIR"]) / "checkpoints" / "latest"
    deadline = time.monotonic() + (60 if step == int(sys.argv[1]) - 1 else 0.3)
    while not latest.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return latest.exists()


def lose_memory(part: str) -> None:
    """Remove the file of the part of the run's shared memory whose name has this end, a pattern."""
    names = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    (name,) = (name for name in names if re.search(f"{part}$", name))
    Path(name).unlink()


def disturb(worker: mpips.Worker, step: int) -> None:
    """Kill this worker if the command line says so and it has not happened before."""
    for i, text in enumerate(sys.argv[2:]):
        how, index, at = text.split(":")
        mark = Path(f"{how}-{index}-{at}")
        if int(index) != worker.index or step < int(at) or mark.exists():
            continue
        # A worker may be ahead of another one by the delay of an outer step, so also of an earlier kill.
        in_order = MADE.issuperset(earlier.replace(":", "-") for earlier in sys.argv[2 : 2 + i])
        if step == int(at) if how == "kill" else in_order and has_checkpoint(step):
            mark.touch()
            if how == "lose":
                lose_memory(rf"-i{index}g\d+")
            os.kill(os.getpid(), signal.SIGKILL)


def main(worker: mpips.Worker) -> dict[str, object]:
    """Push numbers that depend on the values, so that an error anywhere changes all later values."""
    tables = [worker.table(f"w{i}") for i in range(len(SIZES))]
    first = int(worker.cursor.get("step", 0))
    for step in range(first, int(sys.argv[1])):
        for i, table in enumerate(tables):
            noise = np.random.default_rng([worker.index, step, i]).standard_normal(table.shape)
            table.push(noise + table.pull())
        disturb(worker, step)
        worker.set_cursor({"step": step + 1})
        worker.clock()
    own = b"".join(table.pull().tobytes() for table in tables)
    gathered = worker.gather("own", hashlib.blake2b(own, digest_size=8).digest())
    worker.synchronize()
    with worker.averaged():
        whole = b"".join(table.pull().tobytes() for table in tables)
    digests = [bytes(d).hex() for d in gathered] if gathered is not None else []
    return {
        "first": first,
        "own": digests,
        "digest": hashlib.blake2b(whole, digest_size=8).hexdigest(),
        "now": worker.now,
        "pushed": worker.counters()["pushed_bytes"],
    }


if __name__ == "__main__":
    consistency = mpips.DiLoCo(
        PERIOD, mpips.Nesterov(0.7, 0.9), fragments=2, delay=2, mix=0.5, compression="int8"
    )
    outcome = mpips.run(
        main,
        [
            mpips.DenseTable(f"w{i}", (n,), mpips.Adam(0.01), consistency)
            for i, n in enumerate(SIZES)
        ],
        servers=int(os.environ.get("SERVERS", "2")),
        timeout_s=60.0,
        every_steps=10,
        save=None if "MPIPS_RUN_DIR" in os.environ else "saved",
    )
    if outcome.is_first_worker:
        print(json.dumps(outcome.value), flush=True)
