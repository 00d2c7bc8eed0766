"""The baseline for rows: a plain parameter server in NumPy that receives messages by mpi4py.

There are one server and one worker. The server answers in the order of the messages. It allocates its buffers
once and uses the NumPy calls that were fastest: `take` with `mode="clip"`, which avoids a second copy. Keys
are row numbers below the size of the table, without repeats: of several updates of one row, NumPy's indexed
assignment would apply only one.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

_PUSH, _PULL, _STOP = 1, 2, 3


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
