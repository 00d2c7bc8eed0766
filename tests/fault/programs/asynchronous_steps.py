"""A script with tables under asynchronous DiLoCo that count inner steps. Worker 0 prints a JSON line.

usage: asynchronous_steps.py STEPS [HOW:WORKER:STEP ...]   see local_sgd.py. Worker w subtracts 2^w at each
step, so the values at the end show how often each worker's steps are counted. A step of worker 1 takes twice
the time of one of worker 0, by a clock that the script gives, so its periods have half of the inner steps.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from local_sgd import SIZES, disturb

import mpips
from mpips.worker.worker import connection_of

PERIOD = 6


def marks() -> list[tuple[int, int, Path]]:
    """Return worker, step and mark of each disturbance of the command line, see `disturb`."""
    fields = [text.split(":") for text in sys.argv[2:]]
    return [(int(index), int(at), Path(f"{how}-{index}-{at}")) for how, index, at in fields]


def wait_for_earlier(worker: mpips.Worker, step: int, made: set[Path]) -> None:
    """Before this worker's next disturbance, wait until the launch ends by an earlier one.

    Workers wait for nobody else, so one of them could be at its end by then. `made`: marks of the launches
    before this one.
    """
    earlier = [mark for index, _, mark in marks() if mark not in made][:1]
    own = [mark for index, at, mark in marks() if (index, at - 1) == (worker.index, step)]
    deadline = time.monotonic() + 60
    while own and own[0] not in made and earlier != own:
        assert time.monotonic() < deadline, f"this launch has not ended by {earlier}"
        time.sleep(0.01)


def main(worker: mpips.Worker) -> dict[str, object]:
    """Count inner steps."""
    local = connection_of(worker).local
    assert local is not None
    made = {mark for _, _, mark in marks() if mark.exists()}
    now = 0.0
    local.pace.now, local.pace.fastest = lambda: now, lambda: 1.0
    tables = [worker.table(f"w{i}") for i in range(len(SIZES))]
    first = int(worker.cursor.get("step", 0))
    for step in range(first, int(sys.argv[1])):
        for table in tables:
            table.push(np.full(table.shape, float(2**worker.index), np.float32))
        wait_for_earlier(worker, step, made)
        disturb(worker, step)
        now += 1.0 + worker.index
        worker.set_cursor({"step": step + 1})
        worker.clock()
    lengths = worker.gather("lengths", bytes([worker.inner_steps]))
    worker.synchronize()
    worker.flush()
    worker.barrier("counted")
    whole = np.concatenate([table.pull() for table in tables])
    return {
        "first": first,
        "least": float(whole.min()),
        "greatest": float(whole.max()),
        "lengths": [bytes(n)[0] for n in lengths] if lengths is not None else [],
    }


if __name__ == "__main__":
    consistency = mpips.DiLoCo(
        PERIOD, mpips.SGD(1.0), fragments=2, asynchronous=True, steps_by_speed=True
    )
    outcome = mpips.run(
        main,
        [mpips.DenseTable(f"w{i}", (n,), mpips.SGD(1.0), consistency) for i, n in enumerate(SIZES)],
        servers=2,
        timeout_s=60.0,
        every_steps=10,
        save=None if "MPIPS_RUN_DIR" in os.environ else "saved",
    )
    if outcome.is_first_worker:
        print(json.dumps(outcome.value), flush=True)
