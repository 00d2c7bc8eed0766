"""The dense baseline: a plain two-sided parameter server, as a user writes it with mpi4py and NumPy.

Rank 0 is the server. It has a tensor and a receive buffer that it allocates once. It subtracts each update
from the tensor (the learning rate is 1, so that one pass over memory is enough) and acknowledges it. Rank 1
is the client.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

Float32 = NDArray[np.float32]

_PUSH, _PUSH_NO_ACK, _PULL, _STOP = 1, 2, 3, 4


class TwoSidedClient:
    """The client on rank 1. Every call blocks."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        """`comm`: Communicator of two ranks; rank 0 is the server."""
        self._comm = comm
        self._word = np.zeros(1, np.uint8)

    def push(self, update: Float32) -> None:
        """Send an update, float32 of the tensor's shape, and wait until it is applied."""
        self._comm.Send([update, MPI.FLOAT], 0, _PUSH)
        self._comm.Recv([self._word, MPI.BYTE], 0, _PUSH)

    def push_many(self, update: Float32, n: int) -> None:
        """Send an update `n` times and wait until the last one is applied."""
        for _ in range(n - 1):
            self._comm.Send([update, MPI.FLOAT], 0, _PUSH_NO_ACK)
        self.push(update)

    def pull(self, out: Float32) -> None:
        """Receive the tensor in `out`, float32."""
        self._comm.Send([self._word, MPI.BYTE], 0, _PULL)
        self._comm.Recv([out, MPI.FLOAT], 0, _PULL)


def two_sided(comm: MPI.Intracomm, n: int, work: Callable[[TwoSidedClient], None]) -> None:
    """Serve a tensor of `n` float32 on rank 0 while rank 1 calls `work`. Collective over two ranks."""
    if comm.Get_rank() == 1:
        work(TwoSidedClient(comm))
        comm.Send([np.zeros(1, np.uint8), MPI.BYTE], 0, _STOP)
        return
    values = np.zeros(n, np.float32)
    received = np.zeros(n, np.float32)
    word = np.zeros(1, np.uint8)
    status = MPI.Status()
    while True:
        comm.Recv([received, MPI.FLOAT], 1, MPI.ANY_TAG, status)
        tag = status.Get_tag()
        if tag == _PULL:
            comm.Send([values, MPI.FLOAT], 1, _PULL)
        elif tag == _STOP:
            return
        else:
            np.subtract(values, received, out=values)
            if tag == _PUSH:
                comm.Send([word, MPI.BYTE], 1, _PUSH)
