"""heat_mpi.c in Python: each rank of an MPI program pushes its rows into the stream of heat_mpi.py.

    mpirun -n 2 python heat_mpi_program.py 8 heat : -n 4 python heat_mpi.py 2 heat

Arguments: number of simulations; name of the queues, which `mpips run` gives itself.
"""

import sys

import numpy as np
from mpi4py import MPI

import mpips

ROWS, CELLS, STEPS = 12, 24, 40  # rows of a rank, besides a halo row above and below
RUNS = int(sys.argv[1])
NAME = sys.argv[2] if len(sys.argv) > 2 else ""

# The programs of one mpirun share COMM_WORLD: take the ranks of this program.
world = MPI.COMM_WORLD
solver = world.Split(world.Get_attr(MPI.APPNUM) or 0, world.rank)
above, below = (solver.rank - 1) % solver.size, (solver.rank + 1) % solver.size

with mpips.attach(NAME, comm=solver, timeout_s=120.0) as producer:
    # After a restart, go on where the last rank has ended; the others do not push samples again.
    mine = producer.produced
    first = solver.allreduce(mine, op=MPI.MIN)
    field = np.empty(
        (ROWS + 2, CELLS)
    )  # the field is periodic: above the first rank is the last one
    for run in range(first // STEPS, RUNS):
        conductivity = np.random.default_rng(run).uniform(0.05, 0.25)
        field[1:-1] = np.random.default_rng([run, solver.rank]).standard_normal((ROWS, CELLS))
        for step in range(STEPS):
            solver.Sendrecv(field[1], above, recvbuf=field[-1], source=below)
            solver.Sendrecv(field[-2], below, recvbuf=field[0], source=above)
            inside = field[1:-1]
            beside = np.roll(inside, 1, 1) + np.roll(inside, -1, 1)
            after = inside + conductivity * (field[:-2] + field[2:] + beside - 4 * inside)
            if run * STEPS + step >= mine:
                producer.push({"before": field, "after": after, "conductivity": conductivity})
            field[1:-1] = after
    print(f"heat_mpi: rank {solver.rank} of {solver.size} has pushed {producer.produced} samples")
solver.Free()
