"""Beside a simulation: heat solvers push what they compute, and a worker learns their time step meanwhile."""

import numpy as np

import mpips

CELLS, STEPS, RUNS = 24, 40, 8  # cells of a side, steps of a simulation, simulations of a producer

stream = mpips.StreamTable(
    "heat",
    {"before": (CELLS, CELLS), "after": (CELLS, CELLS), "conductivity": ()},
    capacity=600,
    producers=8,
    held_out=0.1,
)
weights = mpips.DenseTable("weights", (10,), mpips.Adam(0.05), consistency=mpips.ASP())


def neighbours(field):
    """Return the cells around each cell, shape (..., CELLS, CELLS, 5)."""
    shifts = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]
    return np.stack([np.roll(field, shift, (-2, -1)) for shift in shifts], -1)


def simulate(worker, number):
    """Solve the heat equation from random fields, and push each step."""
    producer = stream.producer(worker, number)
    for run in range(producer.produced // STEPS, RUNS):
        random = np.random.default_rng([number, run])
        conductivity = random.uniform(0.05, 0.25)
        field = random.standard_normal((CELLS, CELLS))
        for step in range(STEPS):
            around = neighbours(field)
            after = field + conductivity * (around[..., 1:].sum(-1) - 4 * field)
            if run * STEPS + step >= producer.produced:  # after a restart, go on where it ended
                producer.push({"before": field, "after": after, "conductivity": conductivity})
                worker.clock()
            field = after
    producer.close()


def features(batch):
    """Return what the next value is a linear function of, shape (n, CELLS, CELLS, 10)."""
    around = neighbours(batch["before"])
    return np.concatenate([around, around * batch["conductivity"][:, None, None, None]], -1)


def learn(worker):
    """Fit the step of the solver to random batches while samples come; return counts and error."""
    reader, table = stream.reader(worker), worker.table("weights")
    for batch in reader.batches(16, min_seen=100, limit=2000):
        x = features(batch)
        off = x @ table.pull() - batch["after"]
        table.push((x * off[..., None]).mean((0, 1, 2)))
        worker.clock()
    w = table.pull()
    held_out = list(reader.all_held_out())
    off = np.concatenate([features(batch) @ w - batch["after"] for batch in held_out])
    change = np.concatenate([batch["after"] - batch["before"] for batch in held_out])
    return reader.counts(), float(np.sqrt(np.mean(off**2) / np.mean(change**2)))


def main(worker):
    alone = worker.n_workers == 1
    if alone or worker.index > 0:
        simulate(worker, max(0, worker.index - 1))
    return learn(worker) if worker.index == 0 else None


outcome = mpips.run(main, [stream, weights])
if outcome.is_first_worker:
    counts, error = outcome.value
    print(f"samples: {counts.produced}, producers: {counts.ended}")
    print(f"error of the learned step: {'below' if error < 0.1 else 'above'} 10 % of a change")
