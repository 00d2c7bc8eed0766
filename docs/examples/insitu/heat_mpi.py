"""Beside an MPI solver, in its mpirun or by itself: workers 1 and up push its samples, worker 0 learns.

Arguments: ranks of the solver; name of the queues, which `mpips run` gives itself.
"""

import sys

import numpy as np
from mpi4py import MPI

import mpips

ROWS, CELLS = 12, 24  # cells of a rank of the solver
RANKS = int(sys.argv[1]) if len(sys.argv) > 1 else 1
NAME = sys.argv[2] if len(sys.argv) > 2 else ""

stream = mpips.StreamTable(
    "heat",
    {"before": (ROWS + 2, CELLS), "after": (ROWS, CELLS), "conductivity": ()},
    capacity=1200,
    producers=RANKS,
    held_out=0.1,
)
weights = mpips.DenseTable("weights", (10,), mpips.Adam(0.05), consistency=mpips.ASP())


def features(batch):
    """Return what the next value is a linear function of, shape (n, ROWS, CELLS, 10)."""
    field = batch["before"]
    inside = field[:, 1:-1]
    beside = [np.roll(inside, shift, -1) for shift in (1, -1)]
    around = np.stack([inside, field[:, :-2], field[:, 2:], *beside], -1)
    return np.concatenate([around, around * batch["conductivity"][:, None, None, None]], -1)


def learn(worker):
    """Fit the step of the solver to random batches; return counts and error, as a share of a change."""
    reader, table = stream.reader(worker), worker.table("weights")
    for n, batch in enumerate(reader.batches(16, min_seen=100, limit=2000)):
        x = features(batch)
        off = x @ table.pull() - batch["after"]
        table.push((x * off[..., None]).mean((0, 1, 2)))
        worker.set_cursor({"batches": n + 1})
        worker.clock()
    for _ in reader.batches(1):  # until the solver has ended
        worker.clock()
    w, held_out = table.pull(), list(reader.all_held_out())
    off = np.concatenate([features(batch) @ w - batch["after"] for batch in held_out])
    change = np.concatenate([batch["after"] - batch["before"][:, 1:-1] for batch in held_out])
    return reader.counts(), float(np.sqrt(np.mean(off**2) / np.mean(change**2)))


def main(worker):
    alone = worker.n_workers == 1
    mine = range(max(0, worker.index - 1), RANKS, max(1, worker.n_workers - 1))
    if mine and (alone or worker.index > 0):
        stream.serve(worker, NAME, mine)
    return learn(worker) if worker.index == 0 else None


# The programs of one mpirun share COMM_WORLD: mpips gets the ranks of this program.
world = MPI.COMM_WORLD
part = world.Split(world.Get_attr(MPI.APPNUM) or 0, world.rank)
outcome = mpips.run(main, [stream, weights], comm=part)
if outcome.is_first_worker:
    counts, error = outcome.value
    print(f"samples: {counts.produced}, producers: {counts.ended}")
    print(f"error of the learned step: {'below' if error < 0.1 else 'above'} 10 % of a change")
part.Free()
