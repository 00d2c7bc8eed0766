"""Measure the memory of this machine without any protocol: one process copies, another one sums."""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

from mpips import kernels


def copy_then_sum(comm: MPI.Intracomm, n: int, calls: int) -> float:
    """Return the seconds per update of a bare pipeline. Collective over two ranks of one node. Blocks.

    Rank 1 copies `n` float32 from ordinary memory into one of two shared buffers, past the caches. Rank 0
    adds the buffer to its own tensor. Each buffer has a flag: rank 1 sets it when the buffer is full, rank 0
    clears it when the buffer is added.

    Args:
        comm: Two ranks of one node.
        n: float32 values in an update.
        calls: Updates in the measurement.

    Returns:
        Seconds per update; only the value on rank 1 counts.
    """
    rank = comm.Get_rank()
    window = MPI.Win.Allocate_shared((2 * n * 4 + 128) if rank == 1 else 0, 1, comm=comm)
    memory, _ = window.Shared_query(1)
    raw = np.asarray(memory)
    start = -raw.ctypes.data % 64
    full = raw[start : start + 16].view(np.int64)
    values = raw[start + 64 : start + 64 + 2 * n * 4].view(np.float32).reshape(2, n)
    if rank == 1:
        full[:] = 0
        values[:] = 1.0
    comm.Barrier()
    work = _fill if rank == 1 else _sum
    work(full, values, 2)
    comm.Barrier()
    begin = time.perf_counter()
    work(full, values, calls)
    seconds = (time.perf_counter() - begin) / calls
    comm.Barrier()
    del raw, full, values, memory
    window.Free()
    return seconds


# Nothing else orders values and flag: x86 keeps the stores of one process in order, and `copy_finite` ends
# its non-temporal stores with a fence. This is enough for a measurement.
def _fill(full: np.ndarray, values: np.ndarray, calls: int) -> None:
    update = np.ones(values.shape[1], np.float32)
    for i in range(calls):
        while full[i % 2]:
            pass
        kernels.copy_finite(values[i % 2], update, past_caches=True)
        full[i % 2] = 1
    while full.any():
        pass


def _sum(full: np.ndarray, values: np.ndarray, calls: int) -> None:
    total = np.zeros(values.shape[1], np.float32)
    for i in range(calls):
        while not full[i % 2]:
            pass
        kernels.add(total, values[i % 2])
        full[i % 2] = 0
