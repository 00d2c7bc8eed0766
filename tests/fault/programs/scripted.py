"""A script for `mpips run`. argv: the number of steps, what happens, then anything."""

import json
import os
import signal
import sys

import numpy as np

import mpips

n_steps, how = int(sys.argv[1]), sys.argv[2]
if how == "wrong-table":
    mpips.DenseTable("w", (-4,))
if how == "no-run":
    sys.exit()


def main(worker):
    """Push one each step; BSP applies their mean once a clock, so the table counts the steps."""
    table, start = worker.table("w"), worker.start
    first = start.cursor.get("step", 0) if start and start.cursor else 0
    for step in range(first, n_steps):
        if step == n_steps // 2 and worker.index == 0 and os.environ["MPIPS_GENERATION"] == "0":
            if how in ("kill", "forgets"):
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "exit":
                sys.exit(3)
        table.push(np.ones(4, np.float32))
        if how != "forgets":
            worker.set_cursor({"step": step + 1})
        worker.clock()
        worker.report(0, step + 1, samples=5, loss_sum=10.0)
    return {"values": table.pull().tolist(), "first": first}


tables = [mpips.DenseTable("w", (4,), mpips.SGD(1.0))]
saving = {}
if "--save" in sys.argv:
    saving = {"save": sys.argv[sys.argv.index("--save") + 1], "resume": "never"}
outcome = mpips.run(main, tables, verbose=how == "forgets", **saving)
if how == "twice":
    mpips.run(main, tables)
if how == "after" and outcome.role == "scheduler":
    raise ValueError("after the job")
if outcome.is_first_worker:
    print(json.dumps({**outcome.value, "argv": sys.argv[1:], "main": __name__}))
