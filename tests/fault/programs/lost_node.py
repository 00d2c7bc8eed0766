"""A script that counts steps. In its first launch it waits in the middle until a node is lost."""

import json
import os
import time

import numpy as np

import mpips

STEPS = 60


def main(worker: mpips.Worker) -> dict[str, object]:
    """Push 1 to a dense table and to three rows of each step; return all values, and the first step."""
    dense, rows = worker.table("dense"), worker.table("rows")
    first = int(worker.cursor.get("step", 0))
    for step in range(first, STEPS):
        while step == STEPS // 2 and os.environ["MPIPS_GENERATION"] == "0":
            time.sleep(0.1)
        dense.push(-np.ones(4, np.float32))
        rows.push(np.arange(step, step + 3), -np.ones((3, 2), np.float32))
        worker.set_cursor({"step": step + 1})
        worker.clock()
    values = {"dense": dense.pull(), "rows": rows.pull(np.arange(STEPS + 2))[:, 0]}
    return {"first": first, **{name: found.tolist() for name, found in values.items()}}


if __name__ == "__main__":
    model = mpips.BSP(reduce="sum")
    outcome = mpips.run(
        main,
        [
            mpips.DenseTable("dense", (4,), mpips.SGD(1.0), model),
            mpips.EmbeddingTable("rows", 2, mpips.SGD(1.0), model, init="zeros"),
        ],
        servers=2,
        every_steps=20,
    )
    if outcome.is_first_worker:
        print(json.dumps(outcome.value), flush=True)
