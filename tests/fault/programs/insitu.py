"""Two producers and a reader, for `mpips run`. Prints what is held at the end. argv: "quiet" or "kills".

With "kills", in the first attempt producer 0 dies after a sample whose counts are not pushed yet, in the
second one it kills one of two servers between two samples, in the third one the reader dies between two
batches.
"""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

import mpips

N = 80
stream = mpips.StreamTable(
    "s", {"x": (50,), "n": ((), "int64")}, 48, producers=2, held_out=0.25, seed=4
)
attempt = int(os.environ.get("MPIPS_GENERATION", "0")) if sys.argv[1] == "kills" else -1


def kill_a_server():
    places = json.loads(Path(os.environ["MPIPS_RUN_DIR"], "places.json").read_text())
    (pid,) = (place["pid"] for place in places["ranks"] if place["role"] == "server 1")
    os.kill(pid, signal.SIGKILL)


def produce(worker, producer):
    for n in range(producer.produced, N):
        if attempt == 1 and producer.number == 0 and n == 2 * N // 3:
            kill_a_server()
        dies = attempt == 0 and producer.number == 0 and n == N // 3
        producer.push({"x": np.full(50, 1000 * producer.number + n), "n": n}, wait=not dies)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        worker.set_cursor({"n": n + 1})
        worker.clock()
    producer.close()


def check(batch):
    np.testing.assert_array_equal(batch["n"], batch.numbers)
    expected = 1000 * batch.producers + batch.numbers
    np.testing.assert_array_equal(batch["x"], np.repeat(expected[:, None], 50, 1))


def values(moments):
    """Print no digit less than there are."""
    return {
        name: [float(moments.mean[name]).hex(), float(moments.std[name]).hex()] for name in "xn"
    }


def read(worker, reader):
    agreed = values(reader.agreed_moments(min_seen=N // 4))
    for done, batch in enumerate(reader.batches(8, min_seen=N // 4)):
        check(batch)
        if attempt == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        worker.set_cursor({"batches": done + 1})
        worker.clock()
    held = {}
    for held_out in (False, True):
        sizes = reader._filled(held_out)
        batch = reader._read(np.arange(sizes.sum()), sizes, held_out)
        check(batch)
        held[f"held out: {held_out}"] = [batch.producers.tolist(), batch.numbers.tolist()]
    counts = reader.counts()
    assert values(reader.agreed_moments()) == agreed
    return {
        "held": held,
        "counts": [counts.produced, counts.thinned, counts.ended],
        "moments": values(reader.moments()),
    }


def main(worker):
    if worker.index == 0:
        return read(worker, stream.reader(worker))
    return produce(worker, stream.producer(worker, worker.index - 1))


outcome = mpips.run(main, [stream], servers=2)
if outcome.is_first_worker:
    print(json.dumps({**outcome.value, "attempt": int(os.environ.get("MPIPS_GENERATION", "0"))}))
