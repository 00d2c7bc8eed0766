"""What the memory of this machine allows, without any protocol: one process copies, the other sums."""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

from mpips import kernels


def copy_then_sum(comm: MPI.Intracomm, n: int, calls: int) -> float:
    """Seconds per update of a bare pipeline. Collective over two ranks of one node.

    Rank 1 copies `n` float32 from ordinary memory into one of two shared buffers, past the caches; rank 0
    adds it to a tensor of its own. Two flags hand the buffers over. Meaningful on rank 1.
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


# x86 keeps stores of one process in order, and the copy ends with a fence: good enough for a measurement.
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
