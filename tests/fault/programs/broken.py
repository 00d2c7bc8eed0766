"""A worker that goes wrong in the way that argv[1] names; argv[2] is JSON of options."""

import json
import sys

import numpy as np

import mpips

how = sys.argv[1]
options = json.loads(sys.argv[2])
side = options.pop("side", 10)


def main(worker: mpips.Worker) -> None:
    table = worker.table("dense")
    for step in range(5):
        table.pull()
        update = np.ones((side,), np.float32)
        if worker.index == 1 and step == 3:
            if how == "raise":
                raise ValueError("the user's own mistake")
            if how == "nan":
                update[7] = np.nan
            if how == "shape":
                update = np.ones((side + 1,), np.float32)
            if how == "exit":
                sys.exit(3)
        table.push(update)
        worker.clock()


mpips.run(main, [mpips.DenseTable("dense", (side,))], verbose=False, **options)
