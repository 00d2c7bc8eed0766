"""A script for `mpips run`: after a failure it continues at the step it stood at."""

import numpy as np

import mpips

N_STEPS = 300
target = np.arange(8, dtype=np.float32)
tables = [mpips.DenseTable("w", (8,), mpips.SGD(lr=0.1))]


def main(worker):
    w = worker.table("w")
    # The cursor of the restart is the one that set_cursor stored before its clock.
    first = worker.start.cursor["step"] if worker.start and worker.start.cursor else 0
    for step in range(first, N_STEPS):
        noise = worker.random.normal(size=8).astype(np.float32)  # its state is saved as well
        error = w.pull() - target
        w.push(error + 0.01 * noise)
        worker.report(epoch=0, step=step, samples=1, loss_sum=float(error @ error))
        worker.set_cursor({"step": step + 1})
        worker.clock()
    return np.abs(w.pull() - target).max()


outcome = mpips.run(main, tables)
if outcome.is_first_worker:
    print("converged" if outcome.value < 0.1 else f"off by {outcome.value:.3f}")
