"""Every push counted once. argv: JSON of options; prints one line of JSON on worker 0.

Each worker pushes integers of random size and number, from a seed of its own, with random delays; at
the end the tables must hold exactly the sum of what all workers say they have pushed.
"""

import json
import sys
import time

import numpy as np

import mpips

options = json.loads(sys.argv[1])
steps = options.pop("steps")
model = options.pop("model")
consistency = {"bsp": mpips.BSP(reduce="sum"), "ssp": mpips.SSP(1), "asp": mpips.ASP()}[model]
SHAPE = (61, 977)  # segmented: larger than a ring of small slots
KEYS, DIM = 400, 3
# A rate of -1 makes SGD a counter; integers below 2^24 are exact in float32.
rule = mpips.SGD(lr=1.0)
tables = [
    mpips.DenseTable("dense", SHAPE, rule, consistency),
    mpips.DenseTable("small", (5,), rule, consistency),
    mpips.EmbeddingTable("rows", DIM, rule, consistency),
]


def main(worker: mpips.Worker) -> dict:
    rng = np.random.default_rng([7, worker.index])
    dense, small, rows = (worker.table(n) for n in ("dense", "small", "rows"))
    mine = [np.zeros(SHAPE), np.zeros(5), np.zeros((KEYS, DIM))]
    pushes = 0
    for _ in range(steps):
        update = rng.integers(-3, 4, SHAPE).astype(np.float32)
        dense.push(-update)
        mine[0] += update
        keys = rng.integers(0, KEYS, rng.integers(0, 900))
        values = rng.integers(-3, 4, (len(keys), DIM)).astype(np.float32)
        rows.push(keys, -values)
        np.add.at(mine[2], keys, values)
        pushes += 2
        if rng.random() < 0.5:
            small.push(-np.full(5, 2, np.float32))
            mine[1] += 2
            pushes += 1
        if rng.random() < 0.3:
            time.sleep(rng.random() * 0.004)
        if rng.random() < 0.5:
            rows.pull(keys)
        worker.clock()
    worker.flush()
    totals = []
    for i, part in enumerate(mine):
        parts = worker.gather(f"table {i}", part.tobytes())
        totals.append(sum(np.frombuffer(p).reshape(part.shape) for p in parts))
    found = [dense.pull(), small.pull(), rows.pull(np.arange(KEYS))]
    return {
        "exact": [bool((f == t).all()) for f, t in zip(found, totals, strict=True)],
        "nonzero": [int(np.count_nonzero(t)) for t in totals],
        "counters": worker.counters(),
    }


outcome = mpips.run(main, tables, verbose=False, **options)
if outcome.is_first_worker:
    names = [t.name for t in tables]
    servers = outcome.statistics["servers"]
    total = {
        key: sum(s["tables"][n][key] for s in servers for n in names)
        for key in ("pushed", "applied")
    }
    sent = sum(w["pushes"]["pushed"] for w in outcome.statistics["workers"])
    print(json.dumps({**outcome.value, **total, "sent": sent, "transports": outcome.transports}))
