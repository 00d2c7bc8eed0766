"""A script that trains rows under BSP. argv: transport, depth of its look-ahead (0: none), how to end, steps.

How to end: "kill": in the launch of generation g worker g % 2 kills itself at the g-th of these steps, in the
middle of a clock, while rows of the next batch are under way. "raise": worker 0 raises there. "stuck": there
a call of MPI by the progress thread of worker 0 does not return.
"""

import hashlib
import json
import os
import signal
import sys
import time

import numpy as np

import mpips
from mpips.worker.worker import connection_of

transport, how = sys.argv[1], sys.argv[3]
depth, *deaths = map(int, [sys.argv[2], *sys.argv[4:]])
generation = int(os.environ.get("MPIPS_GENERATION", "0"))
N_STEPS = 40


def end(worker):
    """End in the way of the command line."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raise":
        raise RuntimeError("the program has raised this")
    for channel in connection_of(worker).channels:
        channel.advance = lambda: time.sleep(1000)
    while True:
        np.sum(np.ones(1000))


def main(worker):
    """Return the digest of all rows at the end."""
    table, start = worker.table("e"), worker.start
    first = start.cursor.get("step", 0) if start and start.cursor else 0
    random = np.random.default_rng(worker.index)
    batches = [random.zipf(1.2, 300) % 2000 for _ in range(N_STEPS)][first:]
    loop = batches
    if depth:
        loop = mpips.lookahead(batches, keys=lambda keys: keys, worker=worker, depth=depth)
    for step, keys in enumerate(loop, first):
        rows = table.pull(keys)
        is_last = generation >= len(deaths) or worker.index != generation % 2
        if not is_last and step == deaths[generation]:
            end(worker)
        table.push(keys, rows * np.float32(0.1) + np.float32(worker.index + 1))
        worker.set_cursor({"step": step + 1})
        worker.clock()
    values = table.pull(np.arange(2000))
    return {"digest": hashlib.sha256(values.tobytes()).hexdigest(), "first": first}


tables = [mpips.EmbeddingTable("e", 8, mpips.Adagrad(0.1), mpips.BSP())]
options = {"timeout_s": 3.0} if how == "stuck" else {}
outcome = mpips.run(main, tables, servers=2, verbose=False, transport=transport, **options)
if outcome.is_first_worker:
    print(json.dumps(outcome.value))
