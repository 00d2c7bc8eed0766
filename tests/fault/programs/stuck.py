"""Worker 0 waits, in a way that mpips knows nothing of, for worker 1, which waits for its server.

argv: a file to wait for, a folder of checkpoints. Under ASP worker 1 comes to its cut record at its next
tick, and its pull stands behind it; worker 0 does not tick before that pull is done.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

import mpips
from mpips.worker.worker import connection_of

done, folder = Path(sys.argv[1]), Path(sys.argv[2])
keys = np.arange(10)


def main(worker: mpips.Worker) -> None:
    table = worker.table("e")
    table.push(keys, np.ones((10, 2), np.float32)).wait()
    if worker.index == 0:
        worker.checkpoint()
        while not done.exists():
            time.sleep(0.001)
            connection_of(worker).control.poll()  # it is alive
        return
    asked = time.monotonic()
    # Until the scheduler has said that there is a cut, and some more.
    while connection_of(worker).control.cut.pending is None and time.monotonic() - asked < 30:
        connection_of(worker).control.poll()
    worker.clock()
    assert table.pull(keys).sum() < 0
    done.touch()


outcome = mpips.run(
    main,
    [mpips.EmbeddingTable("e", 2, mpips.SGD(1.0), mpips.ASP())],
    verbose=False,
    save=folder,
    timeout_s=4.0,
)
if outcome.is_first_worker:
    print(json.dumps(outcome.statistics["scheduler"]["checkpoints"]))
