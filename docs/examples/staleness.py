"""Bounded staleness: workers run at most two clocks ahead, and every update counts exactly once."""

import numpy as np

import mpips

N_STEPS = 200
tables = [
    mpips.DenseTable(
        "total", (4,), mpips.SGD(lr=1.0), consistency=mpips.SSP(bound=2, policy=mpips.Accept())
    )
]


def main(worker):
    total = worker.table("total")
    seen = []
    for _ in range(N_STEPS):
        values = total.pull()  # holds all updates up to three clocks ago, and this worker's own
        seen.append(values[0])
        total.push(-np.ones(4, np.float32), base=values)
        worker.clock()
    worker.flush()
    worker.barrier("all pushes have been applied")
    # SSP promises these numbers; what came earlier depends on the timing.
    promised = [max(0, step - 2) * worker.n_workers for step in range(N_STEPS)]
    assert all(value >= least for value, least in zip(seen, promised, strict=True))
    return worker.n_workers, total.pull(), worker.counters()


outcome = mpips.run(main, tables)
if outcome.is_first_worker:
    n_workers, values, counters = outcome.value
    print(f"{n_workers} workers, {N_STEPS} steps each: every value is {values.min():.0f}")
    print(f"updates of worker 0: {counters['applied']} applied, {counters['rejected']} rejected")
