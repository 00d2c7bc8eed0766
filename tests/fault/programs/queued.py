"""A worker that pushes the samples of two programs, and a reader, for `mpips run`.

argv: name of the queues, without which they have that of the run; then "quiet", or nothing. Unless quiet, the
worker kills itself in the first two attempts, each time after some clocks, and stops itself for a second in
the third one. The reader prints the numbers and the sum of all samples that are held at the end.
"""

import json
import os
import signal
import subprocess
import sys

import numpy as np

import mpips

N = 120  # samples of each program
ENDS_AFTER = (50, 31)  # clocks, by attempt
stream = mpips.StreamTable(
    "s", {"x": (300,), "n": ((), "int64")}, 2 * N, producers=2, moments="none"
)
attempt = int(os.environ.get("MPIPS_GENERATION", "0"))


def end(clocks):
    """Kill or stop the worker if the attempt is to end after this number of clocks."""
    if attempt < len(ENDS_AFTER) and clocks == ENDS_AFTER[attempt]:
        os.kill(os.getpid(), signal.SIGKILL)
    if attempt == len(ENDS_AFTER) and clocks == 20:
        with subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {os.getpid()}"]):
            os.kill(os.getpid(), signal.SIGSTOP)


def serve(worker):
    clock, clocks = worker.clock, 0

    def counted():
        nonlocal clocks
        clock()
        clocks += 1
        end(clocks)

    if sys.argv[2:] != ["quiet"]:
        worker.clock = counted
    mine = [*range(worker.index - 1, 2, worker.n_workers - 1)]
    stream.serve(worker, sys.argv[1] if len(sys.argv) > 1 else "", mine, slots=5)


def read(worker, reader):
    for n, _ in enumerate(reader.batches(8, min_seen=1)):
        worker.set_cursor({"batches": n + 1})
        worker.clock()
    _, rows = worker.table("s.samples").all_rows()
    found, counts = stream.layout.decode(rows), reader.counts()
    assert (found.arrays["n"] == found.numbers).all()
    return {
        "numbers": sorted(zip(found.producers.tolist(), found.numbers.tolist(), strict=True)),
        "sum": float(np.sum(found.arrays["x"], dtype=np.float64)),
        "counts": [counts.produced, counts.held, counts.dropped, counts.ended],
    }


def main(worker):
    if worker.index == 0:
        return read(worker, stream.reader(worker))
    return serve(worker)


outcome = mpips.run(main, [stream], servers=2)
if outcome.is_first_worker:
    print(json.dumps({**outcome.value, "attempt": attempt}))
