"""The workers of a group send their updates by messages. Worker 1 finishes early; then worker 0 is killed."""

import json
import os
import signal
import sys
import time

import numpy as np

import mpips
from mpips import _native
from mpips.worker.worker import connection_of

CLOCKS = (8, 3, 8)
KILLED_AT = 6


def await_finish(worker: mpips.Worker, other: int) -> None:
    """Wait until all servers have the end of another worker."""
    channels = connection_of(worker).channels
    deadline = time.monotonic() + 10.0
    while any(channel.clocks()[other] != _native.FINISHED_CLOCK for channel in channels):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def main(worker: mpips.Worker) -> float:
    table, first = worker.table("t"), int(worker.cursor.get("clock", 0))
    for clock in range(first, CLOCKS[worker.index]):
        table.push(np.full(10, worker.index + 1, np.float32))
        if worker.index == 0 and clock == KILLED_AT and os.environ["MPIPS_GENERATION"] == "0":
            await_finish(worker, 1)
            os.kill(os.getpid(), signal.SIGKILL)
        worker.set_cursor({"clock": clock + 1})
        worker.clock()
    return float(table.pull()[0]) if worker.index == 0 else 0.0


outcome = mpips.run(
    main,
    [mpips.DenseTable("t", (10,), mpips.SGD(1.0), consistency=mpips.BSP(reduce="sum"))],
    servers=1,
    transport="p2p",
    topology=json.loads(sys.argv[1]),
    timeout_s=10.0,
)
if outcome.value:
    print(json.dumps(outcome.value))
