"""Beside a simulation in C or Fortran: workers 1 and up push its samples, worker 0 learns."""

import sys

import numpy as np

import mpips

CELLS = 24  # cells of a side
PRODUCERS = int(sys.argv[1]) if len(sys.argv) > 1 else 1

stream = mpips.StreamTable(
    "heat",
    {"before": (CELLS, CELLS), "after": (CELLS, CELLS), "conductivity": ()},
    capacity=600,
    producers=PRODUCERS,
    held_out=0.1,
)
weights = mpips.DenseTable("weights", (10,), mpips.Adam(0.05), consistency=mpips.ASP())
stop = mpips.DenseTable("stop", (1,), mpips.SGD(1.0), consistency=mpips.ASP())


def features(batch):
    """Return what the next value is a linear function of, shape (n, CELLS, CELLS, 10)."""
    field = batch["before"]
    shifts = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]
    around = np.stack([np.roll(field, shift, (-2, -1)) for shift in shifts], -1)
    return np.concatenate([around, around * batch["conductivity"][:, None, None, None]], -1)


def error_of(w, batches):
    """Return the error of the learned step, as a share of a change."""
    off = np.concatenate([features(batch) @ w - batch["after"] for batch in batches])
    change = np.concatenate([batch["after"] - batch["before"] for batch in batches])
    return float(np.sqrt(np.mean(off**2) / np.mean(change**2)))


def learn(worker):
    """Fit the step of the solver to random batches while samples come; end the solvers when it is good."""
    reader, table, is_good = stream.reader(worker), worker.table("weights"), False
    for n, batch in enumerate(reader.batches(16, min_seen=100, limit=1000)):
        x = features(batch)
        off = x @ table.pull() - batch["after"]
        table.push((x * off[..., None]).mean((0, 1, 2)))
        if (
            n % 50 == 49
            and not is_good
            and error_of(table.pull(), [reader.sample(64, held_out=True)]) < 0.01
        ):
            is_good = True
            worker.table("stop").push(np.float32([-1]))  # SGD subtracts it: the value becomes 1
        worker.set_cursor(
            {"batches": n + 1}
        )  # without a cursor, a restart begins with an empty stream
        worker.clock()
    return reader.counts(), error_of(table.pull(), list(reader.all_held_out()))


def main(worker):
    alone = worker.n_workers == 1
    servers = max(1, worker.n_workers - 1)
    if alone or worker.index > 0:
        mine = range(max(0, worker.index - 1), PRODUCERS, servers)
        if mine:
            stream.serve(worker, "heat", mine, steer="stop")
    return learn(worker) if worker.index == 0 else None


outcome = mpips.run(main, [stream, weights, stop])
if outcome.is_first_worker:
    counts, error = outcome.value
    print(f"samples: {counts.produced}, producers: {counts.ended}")
    print(f"error of the learned step: {'below' if error < 0.1 else 'above'} 10 % of a change")
