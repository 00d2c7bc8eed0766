"""Trainers in one mpirun with a solver; worker 0 fails when first samples are there. argv: ranks, name."""

import sys

import numpy as np
from mpi4py import MPI

import mpips

stream = mpips.StreamTable(
    "heat",
    {"before": (14, 24), "after": (12, 24), "conductivity": ()},
    100,
    producers=int(sys.argv[1]),
)


def main(worker):
    if worker.index > 0:
        stream.serve(worker, sys.argv[2], range(int(sys.argv[1])))
        return
    for batch in stream.reader(worker).batches(1, min_seen=10):
        raise ArithmeticError(f"no use for {np.shape(batch['after'])}")


part = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.Get_attr(MPI.APPNUM), 0)
mpips.run(main, [stream], comm=part)
