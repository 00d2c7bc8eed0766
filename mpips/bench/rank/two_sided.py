"""Baselines: plain two-sided parameter servers, as a user writes them with mpi4py and NumPy.

Dense (`two_sided`): rank 0 is the server. It has a tensor and a receive buffer that it allocates once. It
subtracts each update from the tensor (the learning rate is 1, so that one pass over memory is enough) and
acknowledges it. Rank 1 is the client.

Rows (`RowServer`, `RowClient`): there are one server and one worker. The server answers in the order of the
messages. It allocates its buffers once and uses the NumPy calls that were fastest: `take` with `mode="clip"`,
which avoids a second copy. Keys are row numbers below the size of the table, without repeats: of several
updates of one row, NumPy's indexed assignment would apply only one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

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


class RowServer:
    """The server of one table. It uses plain SGD."""

    def __init__(self, comm: MPI.Intracomm, worker: int, table: Float32, batch: int) -> None:
        """Allocate the buffers.

        Args:
            comm: Communicator of server and worker.
            worker: Rank of the worker.
            table: float32, shape (rows, dim); changed in place.
            batch: Keys in a call.
        """
        self._comm = comm
        self._worker = worker
        self._table = table
        self._keys = np.empty(batch, np.int64)
        self._rows = np.empty((batch, table.shape[1]), np.float32)
        self._found = np.empty_like(self._rows)
        self._ack = np.zeros(1, np.uint8)

    def serve(self, lr: float) -> None:
        """Answer the worker's messages until it stops the server. Blocks. `lr`: learning rate."""
        status = MPI.Status()
        while True:
            self._comm.Recv(self._keys, self._worker, MPI.ANY_TAG, status)
            if status.tag == _PUSH:
                self._comm.Recv(self._rows, self._worker, _PUSH)
                self._apply(np.float32(lr))
                self._comm.Send(self._ack, self._worker, _PUSH)
            elif status.tag == _PULL:
                np.take(self._table, self._keys, axis=0, out=self._found, mode="clip")
                self._comm.Send(self._found, self._worker, _PULL)
            else:
                return

    def _apply(self, lr: np.float32) -> None:
        # Compute `table[keys] -= lr * rows` without temporary arrays.
        np.multiply(self._rows, lr, out=self._rows)
        np.take(self._table, self._keys, axis=0, out=self._found, mode="clip")
        np.subtract(self._found, self._rows, out=self._found)
        self._table[self._keys] = self._found


class RowClient:
    """The client on the worker."""

    def __init__(self, comm: MPI.Intracomm, server: int) -> None:
        """`server`: Rank of the server in `comm`."""
        self._comm = comm
        self._server = server
        self._ack = np.zeros(1, np.uint8)
        self._open = 0

    def push(self, keys: Int64, rows: Float32) -> None:
        """Send an update; return when all pushes but this one are acknowledged.

        Both ranks work at the same time, since the acknowledgement is received after the next push.

        Args:
            keys: int64, shape (batch,), without repeats; `batch` as on the server.
            rows: float32, shape (batch, dim).
        """
        self._comm.Send(keys, self._server, _PUSH)
        self._comm.Send(rows, self._server, _PUSH)
        self._open += 1
        self.settle(1)

    def settle(self, most: int = 0) -> None:
        """Wait until at most `most` pushes are not acknowledged yet."""
        while self._open > most:
            self._comm.Recv(self._ack, self._server, _PUSH)
            self._open -= 1

    def pull(self, keys: Int64, out: Float32) -> Float32:
        """Fetch rows into `out`, float32, shape (len(keys), dim), and return it. Blocks."""
        self.settle()
        self._comm.Send(keys, self._server, _PULL)
        self._comm.Recv(out, self._server, _PULL)
        return out

    def stop(self) -> None:
        """Wait for all acknowledgements and end the server's loop."""
        self.settle()
        self._comm.Send(np.empty(0, np.int64), self._server, _STOP)
