"""The bits of a BSP run. argv: JSON of options; prints one line of JSON on worker 0.

The sum of the workers' updates depends on its order, so equal bits mean equal order.
"""

import hashlib
import json
import sys
import time

import numpy as np

import mpips

options = json.loads(sys.argv[1])
consistency = mpips.BSP()
tables = [
    mpips.DenseTable("dense", (300, 70), mpips.Adam(0.01), consistency, init="xavier"),
    mpips.EmbeddingTable("rows", 5, mpips.Adagrad(0.1), consistency, init="normal(0.1)"),
]


def main(worker: mpips.Worker) -> str:
    rng = np.random.default_rng([11, worker.index])
    jitter = np.random.default_rng()
    dense, rows = worker.table("dense"), worker.table("rows")
    keys = np.arange(-50, 50)
    for _ in range(25):
        d, r = dense.pull(), rows.pull(keys)
        time.sleep(jitter.random() * 0.002)
        dense.push(
            d * rng.standard_normal(d.shape).astype(np.float32) * 10.0 ** rng.integers(-3, 3)
        )
        some = rng.choice(keys, 60)
        rows.push(some, r[some + 50] + rng.standard_normal((60, 5)).astype(np.float32))
        worker.clock()
    bits = dense.pull().tobytes() + rows.pull(keys).tobytes()
    return hashlib.sha256(bits).hexdigest()


outcome = mpips.run(main, tables, verbose=False, **options)
if outcome.is_first_worker:
    print(json.dumps({"digest": outcome.value, "transports": outcome.transports}))
