"""A script whose two workers pull and push rows of an embedding table by Zipf's law, for some seconds.

It is for tests that look for the hottest rows. The batch of each step is drawn anew, and the rank of a key
has nothing to do with the key.
"""

from __future__ import annotations

import time

import numpy as np

import mpips

N_KEYS = 20_000
BATCH = 40
KEYS = np.random.default_rng(7).permutation(N_KEYS).astype(np.int64) * 1_000_003 - (1 << 33)
SECONDS = 6.0


def main(worker: mpips.Worker) -> None:
    """Pull and push until the time is over."""
    weights = 1.0 / np.arange(1, N_KEYS + 1) ** 1.2
    rng = np.random.default_rng(worker.index)
    table, dense = worker.table("e"), worker.table("d")
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for row in rng.choice(N_KEYS, (50, BATCH), p=weights / weights.sum()):
            keys = np.unique(KEYS[row])
            rows = table.pull(keys)
            table.push(keys, np.ones_like(rows))
            dense.push(np.ones(8, np.float32))
            worker.clock()


if __name__ == "__main__":
    tables = [
        mpips.DenseTable("d", (8,), consistency="asp"),
        mpips.EmbeddingTable("e", 8, consistency="asp"),
    ]
    mpips.run(main, tables, servers=2)
