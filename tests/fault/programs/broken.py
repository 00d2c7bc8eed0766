"""A worker that goes wrong in the way that argv[1] names; argv[2] is JSON of options."""

import json
import os
import signal
import sys
import time

import numpy as np

import mpips

how = sys.argv[1]
options = json.loads(sys.argv[2])
side = options.pop("side", 10)


class Signalling:
    """An attribute that sends SIGTERM to this process while its class is made."""

    def __set_name__(self, owner: type, name: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)  # the handler ends it


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
            if how == "class":
                type("Made", (), {"attribute": Signalling()})
        table.push(update)
        worker.clock()


mpips.run(main, [mpips.DenseTable("dense", (side,))], verbose=False, **options)
