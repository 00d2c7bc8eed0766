"""Workers with helper processes: pools that are terminated, forked children that end in every way.

argv: JSON of options. Prints one line of JSON on worker 0: exit codes of the children, and the values.
"""

import json
import multiprocessing
import os
import signal
import sys

import numpy as np

import mpips

options = json.loads(sys.argv[1])
STEPS = 3


def forked(work) -> int:
    """The exit code of a child that does `work` and goes on from there."""
    pid = os.fork()
    if pid == 0:
        work()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(worker: mpips.Worker) -> dict:
    table, rows = worker.table("w"), worker.table("e")
    keys = np.arange(10)
    codes = []
    for _ in range(STEPS):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            values = pool.map(float, range(1000))
        table.push(np.array(values, np.float32))
        rows.push(keys, np.ones((10, 2), np.float32))
        codes.append(forked(lambda: table.push(np.ones(1000, np.float32))))
        codes.append(forked(lambda: sys.exit(5)))
        codes.append(forked(lambda: os.kill(os.getpid(), signal.SIGTERM)))
        worker.clock()
    pid = os.fork()
    if pid == 0:
        return {}
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    worker.barrier("end")
    return {
        "codes": codes,
        "dense": bool((table.pull() == -STEPS * np.arange(1000)).all()),
        "rows": bool((rows.pull(keys) == -STEPS).all()),
    }


rule = mpips.SGD(lr=1.0)
outcome = mpips.run(
    main,
    [mpips.DenseTable("w", (1000,), rule), mpips.EmbeddingTable("e", 2, rule)],
    verbose=False,
    **options,
)
# Outside the job a child ends as any, without finalizing its parent's MPI.
code = forked(lambda: sys.exit(9))
if outcome.is_first_worker:
    print(json.dumps({**outcome.value, "after": code}))
