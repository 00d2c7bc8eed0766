"""Trains under consistency="auto" with one slow worker; every bit behind the switch depends on the order."""

import os
import time

import numpy as np

import mpips

N = 20_000  # values; two blocks
STEPS = 60


def main(worker: mpips.Worker) -> float:
    """Pull, compute for a while, push and count."""
    w, e = worker.table("w"), worker.table("e")
    total = 0.0
    for _ in range(STEPS):
        values = w.pull()
        keys = np.unique(worker.random.integers(0, 200, 30))
        rows = e.pull(keys)
        time.sleep(float(os.environ.get("SLOW_S", "0.04")) if worker.index == 1 else 0.004)
        w.push(np.sin(values + worker.index) * 0.1)
        e.push(keys, np.cos(rows) * 0.1)
        total += float(values.sum())
        worker.clock()
    return total


if __name__ == "__main__":
    mpips.run(
        main,
        [
            mpips.DenseTable("w", (N,), optimizer=mpips.Adam(0.05), consistency="auto"),
            mpips.EmbeddingTable("e", 4, optimizer=mpips.Adagrad(0.1), consistency="auto"),
        ],
        servers=2,
    )
