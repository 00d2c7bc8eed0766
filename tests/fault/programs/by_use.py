"""A script that pushes and pulls by first use; worker 0 prints a JSON line with a digest of all values.

usage: by_use.py STEPS TRANSPORT [kill:WORKER:STEP ...]   see local_sgd.py. Kills come behind push_pull, when
updates and values are on their way.
"""

import hashlib
import json
import sys

import numpy as np
from local_sgd import disturb

import mpips

SIZES = (300_000, 9, 70_000, 2_000)
STEPS, TRANSPORT = int(sys.argv.pop(1)), sys.argv.pop(1)
sys.argv.insert(1, "disturbances")  # as `disturb` counts them


def main(worker: mpips.Worker) -> dict[str, object]:
    """Push numbers that depend on the values, so that an error anywhere changes all later values."""
    names = [f"t{i}" for i in range(len(SIZES))]
    first = int(worker.cursor.get("step", 0))
    values = {name: worker.table(name).pull() for name in names}
    for step in range(first, STEPS):
        updates = {}
        for i in np.random.default_rng([worker.index, step]).permutation(len(names)):
            noise = np.random.default_rng([worker.index, step, i]).standard_normal(SIZES[i])
            updates[names[i]] = (noise + values[names[i]]).astype(np.float32)
        worker.set_cursor({"step": step + 1})
        pulls = worker.push_pull(updates)
        disturb(worker, step)
        values = {name: pulls.wait(name) for name in updates}
    whole = b"".join(values[name].tobytes() for name in names)
    return {
        "worker": 0,
        "first": first,
        "digest": hashlib.blake2b(whole, digest_size=8).hexdigest(),
    }


if __name__ == "__main__":
    outcome = mpips.run(
        main,
        [mpips.DenseTable(f"t{i}", (n,), mpips.Adam(0.01)) for i, n in enumerate(SIZES)],
        servers=2,
        timeout_s=60.0,
        transport=TRANSPORT,
    )
    if outcome.is_first_worker:
        print(json.dumps(outcome.value), flush=True)
