"""The last worker first pulls values of a clock when others of its node, in a group, wait for later ones."""

import json
import time

import numpy as np

import mpips
from mpips.worker.worker import connection_of

CLOCKS = 3
FAST, WAITER, SLOW = 2, 3, 4  # workers of the node without the server


def main(worker: mpips.Worker) -> list[float]:
    table, found = worker.table("t"), []
    pulls = connection_of(worker).node_pulls
    assert (pulls is not None) == (worker.index >= FAST)
    for clock in range(CLOCKS):
        if worker.index == WAITER and clock > 0:
            # At clock 1 it waits here for the slow worker to end clock 0.
            found.append(float(table.pull()[0]))
        if worker.index == SLOW:
            deadline = time.monotonic() + 10.0
            # Nobody else claims a pull before; without a claim the claimant is worker 0.
            while pulls is not None and pulls._pulls.claimant(0) == 0:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            found.append(float(table.pull()[0]))
        table.push(np.full(10, worker.index + 1, np.float32))
        worker.clock()
    return found


outcome = mpips.run(
    main,
    [mpips.DenseTable("t", (10,), mpips.SGD(1.0), consistency=mpips.BSP(reduce="sum"))],
    servers=1,
    topology=[[FAST, WAITER]],
    timeout_s=15.0,
)
if outcome.value:
    print(json.dumps([outcome.role, outcome.value]))
