"""Beside an MPI program: ranks of a heat solver learn its stencil, under BSP and under SSP.

python solver.py [bsp|ssp [SECONDS]]: train one of both, with steps of the solver of this mean length.
"""

import sys
import time

import h5py
import numpy as np
from mpi4py import MPI

import mpips

CELLS, STEPS, LR = 64, 200, 0.1  # cells of a worker, time steps of the solver, learning rate
HEAT = np.array([0.2, 0.5, 0.2], np.float32)  # the stencil that the solver applies; a tenth is lost
MODELS = sys.argv[1:2] or ["bsp", "ssp"]
WORK_S = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
ssp = mpips.SSP(bound=2, policy=mpips.Accept())
tables = [
    mpips.DenseTable("bsp", (3,), mpips.SGD(LR), consistency=mpips.BSP(reduce="mean")),
    mpips.DenseTable("ssp", (3,), mpips.SGD(LR), consistency=ssp),
]


def simulate(comm, rng):
    """Return the neighbours of each cell, shape (STEPS, CELLS, 3), and its next value, of a heated rod."""
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    cells, found = rng.standard_normal(CELLS).astype(np.float32), []
    for _ in range(STEPS):
        from_left = comm.sendrecv(cells[-1], right, source=left)
        from_right = comm.sendrecv(cells[0], left, source=right)
        wide = np.concatenate([[from_left], cells, [from_right]]).astype(np.float32)
        around = np.lib.stride_tricks.sliding_window_view(wide, 3)
        found.append((around, around @ HEAT))
        cells = found[-1][1] + rng.standard_normal(CELLS).astype(np.float32)
    return [np.stack(parts) for parts in zip(*found, strict=True)]


def train(worker, model, x, y):
    """Return the squared error of this worker's cells at each clock."""
    table, errors = worker.table(model), np.empty(STEPS, np.float32)
    # n workers push n updates a clock under SSP, and one mean under BSP.
    share = 1 / worker.n_workers if model == "ssp" else 1.0
    rng = np.random.default_rng(worker.index)
    for step in range(STEPS):
        weights = table.pull()
        time.sleep(WORK_S * rng.exponential())  # steps of uneven length
        off = x[step] @ weights - y[step]
        errors[step] = np.mean(off**2)
        table.push(share * (off @ x[step]) / CELLS, base=weights)
        worker.clock()
        done = MODELS.index(model) * STEPS + step + 1
        worker.report(epoch=0, step=done, samples=CELLS, loss_sum=CELLS * float(errors[step]))
    worker.flush()
    return errors


def main(worker):
    # Make a communicator of the workers: the other ranks serve in mpips.run and call nothing.
    world = MPI.COMM_WORLD
    ranks = worker.gather("ranks", world.rank.to_bytes(4, "little"))
    group = world.group.Incl([int.from_bytes(rank, "little") for rank in ranks])
    with worker.paused():  # mpips calls no MPI in a thread of its own meanwhile
        solver = world.Create_group(group)
        x, y = simulate(solver, np.random.default_rng(worker.index))

    errors = [train(worker, model, x, y) for model in MODELS]
    weights = worker.table(MODELS[-1]).pull()
    worker.barrier("training is done")

    with worker.paused():
        mean = solver.allreduce(np.stack(errors)) / solver.size
        write(solver, y)
        solver.Free()
    return mean, weights, worker.counters()


def write(comm, fields):
    """Write the fields of all workers into a file, or into one for each if h5py is built without MPI."""
    parallel = h5py.get_config().mpi
    how = {"driver": "mpio", "comm": comm} if parallel else {}
    first, n = (comm.rank, comm.size) if parallel else (0, 1)
    with h5py.File("fields.h5" if parallel else f"fields-{comm.rank}.h5", "w", **how) as file:
        cells = file.create_dataset("cells", (STEPS, n * CELLS), "f4")
        cells[:, first * CELLS : (first + 1) * CELLS] = fields


outcome = mpips.run(main, tables)
if outcome.is_first_worker:
    errors, weights, counters = outcome.value
    print("clock", *(f"{model.upper():>6}" for model in MODELS))
    for clock in (0, 5, 10, 20, STEPS - 1):
        print(f"{clock:5}", *(f" {error:.3f}" for error in errors[:, clock]))
    shards = [server["tables"].get(MODELS[-1]) for server in outcome.statistics["servers"]]
    stale = sum(np.array(shard["staleness"]) for shard in shards if shard is not None)
    print(f"stencil {np.round(weights, 3)}, {counters['rejected']} updates of worker 0 rejected")
    print(f"staleness 0 to 4 of updates under {MODELS[-1].upper()}: {stale[:5].tolist()}")
