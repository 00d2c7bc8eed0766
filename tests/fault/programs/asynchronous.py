"""Trains under ASP and SSP: what is pushed depends on what was pulled, so every bit depends on the order."""

import sys

import numpy as np

import mpips

CHANGED = "--changed" in sys.argv
N = 40_000  # values; three blocks


def main(worker: mpips.Worker) -> float:
    """Pull, push and count."""
    w, small, e = worker.table("w"), worker.table("s"), worker.table("e")
    total = 0.0
    for step in range(60):
        values = w.pull()
        w.push(np.sin(values + worker.index) * 0.1).wait()
        keys = np.unique(worker.random.integers(0, 200, 30))
        rows = e.pull(keys)
        e.push(keys, np.cos(rows) * 0.1)
        bias = small.pull()
        change = 1.0 if CHANGED and step == 40 and worker.index == 1 else 0.0
        small.push(np.tanh(bias) + worker.random.random(8).astype(np.float32) + np.float32(change))
        total += float(bias.sum())
        worker.clock()
    return total


if __name__ == "__main__":
    mpips.run(
        main,
        [
            mpips.DenseTable("w", (N,), optimizer=mpips.Adam(0.05), consistency=mpips.ASP()),
            mpips.DenseTable(
                "s", (8,), optimizer=mpips.SGD(0.1), consistency=mpips.SSP(3, mpips.Reject(4))
            ),
            mpips.EmbeddingTable(
                "e", 4, optimizer=mpips.Adagrad(0.1), consistency=mpips.ASP(mpips.Scale())
            ),
        ],
        servers=2,
    )
